"""Convolution of [n, c, *space] with any number of spatial axes, in groups; transposed convolution is beside it."""

from __future__ import annotations

from tvm import relax, te

from ...relay_ops.convolution import Convolution
from .broadcast import same_sizes
from .builder import Builder, expr_shape
from .windows import Window, filled, is_static


def convolution(
    builder: Builder, x: relax.Expr, weight: relax.Expr, bias: relax.Expr | None, window: Window, groups: int
) -> relax.Expr:
    """halo.convolution of x [n, c, *space] by weight [m, c/groups, *kernel], plus bias [m]."""
    shape = expr_shape(weight)
    builder.refuse_unless(groups > 0 and shape[0] % groups == 0, f"expected output channels in {groups} groups")
    sizes = [None, shape[1] * groups, *[None] * (len(shape) - 2)]
    x = filled(builder, same_sizes(builder, x, sizes, "input"), window)
    pads = window.pads_over(builder.sizes, expr_shape(x)[2:])
    attrs = {"layout": "first", "strides": window.strides, "dilations": window.dilations, "groups": groups}
    if is_static(pads):
        out = builder.emit(Convolution.call(x, weight, **attrs, pads=pads))
    else:

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return Convolution.compute(x, w, **attrs, pads=window.pads_over(builder.sizes, list(x.shape[2:])))

        out = builder.te(compute, x, weight, name="convolution")
    return with_bias(builder, out, bias)


def with_bias(builder: Builder, out: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """`out` [n, m, *space] plus `bias` [m]; `out` itself without one."""
    if bias is None:
        return out
    spread = [1, expr_shape(bias)[0], *[1] * (len(expr_shape(out)) - 2)]
    return builder.emit(relax.op.add(out, builder.emit(relax.op.reshape(bias, spread))))
