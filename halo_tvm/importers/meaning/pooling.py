"""Pooling of [n, c, *space]: the largest element, the mean or the p-norm of windows, or of whole images."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax, te, tirx

from ...extremes import is_nan
from ...relay_ops.parts.in_order import element_count
from ...relay_ops.pooling import Pooling, least
from .builder import Builder, expr_dtype, expr_shape
from .pointwise import widened
from .sizes import Sizes
from .windows import Window, filled, is_static


def pooling(
    builder: Builder,
    x: relax.Expr,
    window: Window,
    kind: str,
    *,
    ceil: bool = False,
    include_pad: bool = False,
    p: int = 2,
) -> relax.Expr:
    """halo.pooling: `kind` is max, average or lp; with `ceil` a last window may be cut off."""
    attrs = {
        "layout": "first",
        "kind": kind,
        "kernel": window.kernel,
        "strides": window.strides,
        "dilations": window.dilations,
        "ceil": ceil,
        "include_pad": include_pad,
        "p": p,
    }
    pads = window.pads_over(builder.sizes, expr_shape(x)[2:])
    if is_static(pads):
        return builder.emit(Pooling.call(filled(builder, x, window, ceil=ceil), **attrs, pads=pads))
    if kind == "max":  # padding that depends on sizes is written out, so that the windows stay an operator
        around = builder.te(lambda x: _surrounded(x, window, builder.sizes), x, name="surrounded")
        return builder.emit(Pooling.call(around, **attrs, pads=(0,) * len(pads)))

    def compute(x: te.Tensor) -> te.Tensor:
        return Pooling.compute(x, **attrs, pads=window.pads_over(builder.sizes, list(x.shape[2:])))

    return builder.te(compute, x, name="pooling")


def _surrounded(x: te.Tensor, window: Window, sizes: Sizes) -> te.Tensor:
    """What the windows of `x` [n, c, *space] see, a window for every stride: least numbers where x ends."""
    space, rank = list(x.shape[2:]), len(window.kernel)
    before, outside = window.pads_over(sizes, space)[:rank], least(str(x.dtype))
    shape = [
        (sizes.ceildiv(size, stride) - 1) * stride + max(extent, stride)  # stride: of no elements nothing is seen
        for size, stride, extent in zip(space, window.strides, window.extents)
    ]

    def element(n, c, *place):
        at = [i - b for i, b in zip(place, before)]
        inside = tirx.all(*(test for i, size in zip(at, space) for test in (i >= 0, i < size)))
        return tirx.if_then_else(inside, x[(n, c, *at)], outside)

    return te.compute([*x.shape[:2], *shape], element, name="surrounded")


def places(builder: Builder, x: relax.Expr, out: relax.Expr, window: Window, *, number: str) -> relax.Expr:
    """Where the largest element of each window is, int64.

    `number` says how places are counted: "rows" through the whole input, the last axis fastest; "columns" likewise,
    the first spatial axis fastest; "image" within one channel of one image, the last axis fastest.
    """

    def compute(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        sizes = list(x.shape[2:])
        pads = window.pads_over(builder.sizes, sizes)
        image = element_count(sizes)
        ks = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window.kernel)]

        def element(n, c, *place):
            at = [o * s + k * d - b for o, k, s, d, b in zip(place, ks, window.strides, window.dilations, pads)]
            inside = tirx.all(*(test for i, size in zip(at, sizes) for test in (i >= 0, i < size)))
            count = tirx.const(0, "int64")
            for axis in reversed(range(len(at))) if number == "columns" else range(len(at)):
                count = count * sizes[axis] + at[axis]
            if number != "image":
                count = (n * x.shape[1] + c) * image + count
            return place_of(inside, x[(n, c, *at)], y[(n, c, *place)], count, ks)

        return first_place(te.compute(y.shape, element, name="numbers"))

    return builder.te(compute, x, out, name="places")


def place_of(inside: ir.Expr, here: te.TensorSlice, largest: ir.Expr, number: ir.Expr, ks: Sequence) -> ir.Expr:
    """The least `number` of an element `here` that is the `largest`; where that is NaN, the last NaN's, below 0."""
    same = tirx.if_then_else(inside, here == largest, tirx.const(False, "bool"))
    found = tirx.Select(same, number, te.max_value("int64"))
    if "float" in str(here.dtype):
        nan = tirx.if_then_else(inside, is_nan(here), tirx.const(False, "bool"))
        found = tirx.Select(nan, -1 - number, found)
    return te.min(found, axis=ks)


def first_place(numbers: te.Tensor) -> te.Tensor:
    """Places of numbers of `place_of`."""
    return te.compute(numbers.shape, lambda *i: tirx.Select(numbers[i] < 0, -1 - numbers[i], numbers[i]), name="places")


def global_pooling(builder: Builder, x: relax.Expr, kind: str, p: int = 2) -> relax.Expr:
    """One element per image and channel; the spatial axes stay, of size 1."""
    axes = list(range(2, len(expr_shape(x))))
    builder.refuse_unless(bool(axes), f"expected an input of rank 3 or more, found {len(expr_shape(x))}")
    if kind == "max":
        return builder.emit(relax.op.max(x, axes, keepdims=True))
    if kind == "average":
        mean = builder.emit(relax.op.mean(widened(builder, x), axes, keepdims=True))
        return builder.cast(mean, expr_dtype(x))
    dtype, size = expr_dtype(x), builder.emit(relax.op.abs(widened(builder, x)))
    power = size
    for _ in range(p - 1):
        power = builder.emit(relax.op.multiply(power, size))
    total = builder.emit(relax.op.sum(power, axes, keepdims=True))
    root = total if p == 1 else builder.emit(relax.op.power(total, relax.const(1.0 / p, expr_dtype(total))))
    return builder.cast(root, dtype)
