"""Convolutions, pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ...meaning.builder import Refused
from .._call import Call, constant, fixed
from .._registry import converter
from .norms import per_channel
from .shapes import padded

_LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}
_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose, 3: relax.op.nn.conv3d_transpose}


def _each(c: Call, value: object, count: int, what: str) -> list[int]:
    values = list(value) if isinstance(value, Sequence) else [value]
    return [fixed(v, what) for v in (values * count if len(values) == 1 else values)]


@converter(
    "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "convolution.default"
)
def convolution(c: Call) -> relax.Expr:
    x, weight = c.tensor("input"), c.tensor("weight")
    n = c.rank("weight") - 2
    stride, dilation = _each(c, c["stride"], n, "stride"), _each(c, c["dilation"], n, "dilation")
    x, batched = _batched(c, x, n)
    padding = _padding(c, weight, stride, dilation, n)
    before, after = padding
    if before != after:
        x = padded(c, x, [0, 0, *before], [0, 0, *after], "constant", 0.0)
        before = [0] * n
    data, kernel = _LAYOUTS[n]
    options = {
        "strides": stride,
        "padding": before,
        "dilation": dilation,
        "groups": int(c["groups"]),
        "data_layout": data,
    }
    if c.nodes.get("transposed"):
        y = _TRANSPOSED[n](
            x,
            weight,
            **options,
            kernel_layout="IO" + kernel[2:],
            output_padding=_each(c, c["output_padding"], n, "output padding"),
        )
    else:
        y = _CONVOLUTIONS[n](x, weight, **options, kernel_layout=kernel)
    y = c.emit(y)
    return _unbatched(c, per_channel(c, y, None, c.tensor("bias") if c.has("bias") else None), batched)


@converter("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed_convolution(c: Call) -> relax.Expr:
    x, weight = c.tensor("input"), c.tensor("weight")
    n = c.rank("weight") - 2
    x, batched = _batched(c, x, n)
    data, kernel = _LAYOUTS[n]
    y = c.emit(
        _TRANSPOSED[n](
            x,
            weight,
            strides=_each(c, c["stride"], n, "stride"),
            padding=_each(c, c["padding"], n, "padding"),
            output_padding=_each(c, c["output_padding"], n, "output padding"),
            dilation=_each(c, c["dilation"], n, "dilation"),
            groups=int(c["groups"]),
            data_layout=data,
            kernel_layout="IO" + kernel[2:],
        )
    )
    return _unbatched(c, per_channel(c, y, None, c.tensor("bias") if c.has("bias") else None), batched)


def _batched(c: Call, x: relax.Expr, n: int) -> tuple[relax.Expr, bool]:
    if x.ty.ndim == n + 2:
        return x, True
    return c.reshape(x, [tirx.IntImm("int64", 1), *x.ty.shape.values]), False


def _unbatched(c: Call, y: relax.Expr, batched: bool) -> relax.Expr:
    return y if batched else c.reshape(y, c.shape)


def _padding(
    c: Call, weight: relax.Expr, stride: list[int], dilation: list[int], n: int
) -> tuple[list[int], list[int]]:
    """Elements added before and behind each axis."""
    padding = c["padding"]
    if padding == "valid":
        return [0] * n, [0] * n
    if padding == "same":
        if any(s != 1 for s in stride):
            raise Refused("padding='same' and a stride")
        total = [d * (fixed(k, "kernel") - 1) for d, k in zip(dilation, weight.ty.shape.values[2:])]
        return [t // 2 for t in total], [t - t // 2 for t in total]
    amounts = _each(c, padding, n, "padding")
    return amounts, amounts


def _pooled_rank(c: Call) -> int:
    return int(next(ch for ch in str(c.node.target).split("pool")[1] if ch.isdigit()))


@converter(
    *(f"{kind}_pool{n}d.default" for kind in ("max", "avg") for n in (1, 2, 3)), "max_pool2d_with_indices.default"
)
def pool(c: Call) -> object:
    """Windows as loops of our own: rounding up, and whether padding counts, are torch's."""
    n = _pooled_rank(c)
    kernel = _each(c, c["kernel_size"], n, "kernel size")
    stride = _each(c, c["stride"] or kernel, n, "stride")
    padding = _each(c, c["padding"], n, "padding")
    dilation = _each(c, c["dilation"], n, "dilation") if "dilation" in c.nodes else [1] * n
    largest = "max_pool" in str(c.node.target)
    counted = bool(c.nodes.get("count_include_pad", True))
    divisor = c["divisor_override"] if "divisor_override" in c.nodes else None
    x, batched = _batched(c, c.tensor("self"), n)
    shape = c.shape if batched else [tirx.IntImm("int64", 1), *c.shape]

    def compute(x: te.Tensor) -> te.Tensor:
        window = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]
        lowest = tirx.min_value(x.dtype) if largest else tirx.const(0, x.dtype)

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            places = [j * s - p + w * d for j, s, p, w, d in zip(i[2:], stride, padding, window, dilation)]
            inside = [part for p, size in zip(places, x.shape[2:]) for part in (p >= 0, p < size)]
            value = tirx.if_then_else(tirx.all(*inside), x[(*i[:2], *places)], lowest)
            return (te.max if largest else te.sum)(value, axis=window)

        total = te.compute(shape, at, name="pool")
        if largest:
            return total

        def count(*i: tirx.Var) -> tirx.PrimExpr:
            if divisor is not None:
                return tirx.const(divisor, "int64")
            product = tirx.const(1, "int64")
            for j, s, p, k, size in zip(i[2:], stride, padding, kernel, x.shape[2:]):
                start = j * s - p
                end = tirx.min(start + k, size + p)
                if not counted:
                    start, end = tirx.max(start, tirx.const(0, "int64")), tirx.min(end, size)
                product = product * (end - start)
            return product

        return te.compute(shape, lambda *i: total[i] / count(*i).astype(x.dtype), name="average")

    y = _unbatched(c, c.te(compute, x, name="max_pool" if largest else "avg_pool"), batched)
    if "with_indices" not in str(c.node.target):
        return y
    if any(user.args[1] == 1 for user in c.node.users):
        raise Refused("indices that are used")
    return y, constant(np.zeros(0), "int64")


@converter(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
)
def adaptive_pool(c: Call) -> relax.Expr:
    n = _pooled_rank(c)
    x, sizes, wanted = c.tensor("self"), c.shape_of("self")[-n:], c.shape[-n:]
    axes = list(range(c.rank("self") - n, c.rank("self")))
    if all(isinstance(w, tirx.IntImm) and int(w) == 1 for w in wanted):
        return c.emit(relax.op.mean(x, axes, keepdims=True))
    if c.translator.same_shape(x.ty, c.shape):
        return x
    kernels = [_window(size, want) for size, want in zip(sizes, wanted)]

    def compute(x: te.Tensor) -> te.Tensor:
        window = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernels)]

        def bounds(i: tuple) -> list[tuple[tirx.PrimExpr, tirx.PrimExpr]]:
            return [
                (tirx.floordiv(j * size, want), tirx.floordiv((j + 1) * size + want - 1, want))
                for j, size, want in zip(i[-n:], sizes, wanted)
            ]

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            places = [start + w for (start, _), w in zip(bounds(i), window)]
            inside = [p < end for p, (_, end) in zip(places, bounds(i))]
            return te.sum(
                tirx.if_then_else(tirx.all(*inside), x[(*i[:-n], *places)], tirx.const(0, x.dtype)), axis=window
            )

        total = te.compute([*x.shape[:-n], *wanted], at, name="pool")

        def average(*i: tirx.Var) -> tirx.PrimExpr:
            count = tirx.const(1, "int64")
            for start, end in bounds(i):
                count = count * (end - start)
            return total[i] / count.astype(x.dtype)

        return te.compute(total.shape, average, name="average")

    return c.te(compute, x, name="adaptive_avg_pool")


def _window(size: tirx.PrimExpr, wanted: tirx.PrimExpr) -> int:
    """The largest window of an adaptive pooling."""
    if not isinstance(size, tirx.IntImm) or not isinstance(wanted, tirx.IntImm):
        raise Refused("a dynamic size and an output size other than 1")
    size, wanted = int(size), int(wanted)
    return max(((i + 1) * size + wanted - 1) // wanted - i * size // wanted for i in range(wanted))


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
