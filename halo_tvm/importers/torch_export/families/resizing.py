"""torch's upsample operators: by neighbours, lines or cubes, at aligned corners or at centres of elements."""

from __future__ import annotations

from tvm import relax

from ...meaning.builder import expr_shape
from ...meaning.resizing import Axis, Way, resized
from ...meaning.sizes import Dim, plain
from .._call import Call
from .._registry import converter

_KINDS = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")


@converter(
    *(f"upsample_{kind}.{overload}" for kind in _KINDS for overload in ("vec", "default")),
    *(f"_upsample_nearest_exact{n}d.{overload}" for n in (1, 2, 3) for overload in ("vec", "default")),
    *(f"_upsample_{kind}_aa.{overload}" for kind in ("bilinear2d", "bicubic2d") for overload in ("vec", "default")),
)
def upsample(c: Call) -> relax.Expr:
    x = c.tensor("self" if "self" in c.nodes else "input")
    sizes, wanted = expr_shape(x)[2:], [plain(d) for d in c.shape[2:]]
    aligned = bool(c.nodes.get("align_corners"))
    c.refuse_unless(not (aligned and c.op.endswith("_aa")), "expected align_corners=False beside antialias, found True")
    # Aligned corners leave no scale but that of the sizes.
    scales = [None] * len(wanted) if aligned else _scales(c, len(wanted))
    table = [(Axis(2 + i, _scale(scales[i], sizes[i], want)), want) for i, want in enumerate(wanted)]
    return resized(c, x, table, _way(c))


def _way(c: Call) -> Way:
    antialias = c.op.endswith("_aa")
    if "nearest" in c.op:
        # Exact ones take the element around their centre; the others the one at or before their corner.
        exact = "exact" in c.op
        places = ("half_pixel", "round_prefer_ceil") if exact else ("asymmetric", "floor")
        return Way("nearest", *places, single=c.dtype != "float64")
    # Shares of elements outside are given to those inside by antialiasing; else the border is repeated.
    transform = "align_corners" if c["align_corners"] else "half_pixel"
    mode = "cubic" if "cubic" in c.op else "linear"
    return Way(mode, transform, cubic=-0.5 if antialias else -0.75, antialias=antialias, exclude_outside=antialias)


def _scale(given: float | None, size: Dim, wanted: Dim) -> float | None:
    """torch takes a scale that is given as it is, else the one that the sizes have."""
    if given is not None:
        return given
    return wanted / size if isinstance(size, int) and isinstance(wanted, int) else None


def _scales(c: Call, n: int) -> list[float | None]:
    if c.nodes.get("scale_factors"):
        return [float(s) for s in c["scale_factors"]]
    keys = ("scales_d", "scales_h", "scales_w")[3 - n :] if n > 1 else ("scales",)
    given = [c.nodes.get(key) for key in keys]
    return [None if s is None else float(s) for s in given]
