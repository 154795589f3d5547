"""Resizing."""

from __future__ import annotations

from tvm import relax, te, tirx

from ...meaning.builder import Refused
from .._call import Call
from .._registry import converter


@converter(
    "upsample_bilinear2d.vec",
    "upsample_bilinear2d.default",
    "upsample_nearest2d.vec",
    "upsample_nearest2d.default",
    "upsample_nearest1d.vec",
    "upsample_linear1d.vec",
    "_upsample_nearest_exact2d.vec",
    "upsample_bicubic2d.vec",
)
def upsample(c: Call) -> relax.Expr:
    """Coordinates as torch computes them: aligned corners, or centres of half a pixel."""
    name = str(c.node.target)
    if "bicubic" in name:
        raise Refused("bicubic resizing")
    linear = "linear" in name
    aligned = bool(c.nodes.get("align_corners", False))
    x = c.tensor("self" if "self" in c.nodes else "input")
    n = c.out.dim() - 2
    wanted = c.shape[2:]
    scales = _scales(c, n)

    def compute(x: te.Tensor) -> te.Tensor:
        sizes = x.shape[2:]

        def coordinate(j: tirx.Var, axis: int) -> tirx.PrimExpr:
            size, want = sizes[axis].astype("float32"), wanted[axis].astype("float32")
            one, half = tirx.const(1, "float32"), tirx.const(0.5, "float32")
            if linear and aligned:
                step = (size - one) / tirx.max(want - one, one)
                return j.astype("float32") * step
            step = size / want if scales[axis] is None else tirx.const(1 / scales[axis], "float32")
            if not linear:
                return (j.astype("float32") + (half if "exact" in name else tirx.const(0, "float32"))) * step
            return tirx.max((j.astype("float32") + half) * step - half, tirx.const(0, "float32"))

        def clipped(k: tirx.PrimExpr, axis: int) -> tirx.PrimExpr:
            return tirx.max(tirx.min(k, sizes[axis] - 1), tirx.const(0, "int64"))

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            places = [coordinate(j, axis) for axis, j in enumerate(i[2:])]
            floors = [tirx.floor(p).astype("int64") for p in places]
            if not linear:
                return x[(*i[:2], *(clipped(f, axis) for axis, f in enumerate(floors)))]
            total = tirx.const(0, "float32")
            for corner in range(1 << n):
                weight, index = tirx.const(1, "float32"), []
                for axis, (p, f) in enumerate(zip(places, floors)):
                    rest = p - f.astype("float32")
                    high = bool(corner >> axis & 1)
                    weight = weight * (rest if high else tirx.const(1, "float32") - rest)
                    index.append(clipped(f + (1 if high else 0), axis))
                total = total + weight * x[(*i[:2], *index)].astype("float32")
            return total.astype(x.dtype)

        return te.compute([*x.shape[:2], *wanted], at, name="upsample")

    return c.te(compute, x, name="upsample")


def _scales(c: Call, n: int) -> list[float | None]:
    """torch uses given scale factors as they are, else those that the sizes have."""
    if c.nodes.get("scale_factors"):
        return [float(s) for s in c["scale_factors"]]
    given = [c.nodes.get(key) for key in ("scales_h", "scales_w")] if n == 2 else [c.nodes.get("scales")]
    return [None if s is None else float(s) for s in given]
