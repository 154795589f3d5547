"""Exact convolutions of small integers."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from ...relay_ops.convolution import Convolution
from ...relay_ops.convolution_integer import ConvolutionInteger
from ...relay_ops.linear_integer import DEEPEST
from ...relay_ops.operator import number_of
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.windows import Window, filled, is_static
from ._integer import EXACT, centred, signed_weight, unsigned_rows, vector_for
from ._node import Node
from ._spell import derived, multiply, subtract


def integer_convolution(
    node: Node,
    x: relax.Expr,
    w: object,
    zero: relax.Expr | None,
    w_zeros: np.ndarray | relax.Expr,
    window: Window,
    groups: int,
    *,
    floats: bool = False,
) -> relax.Expr:
    """Convolution of x - zero, padded with 0, by w - w_zeros, in int32; x and w are 8-bit integers.

    With `floats` whole numbers in float32 will do.

    `w_zeros` has one number, or one per output channel, known or not. By a known weight it is
    `halo.convolution_integer`, but channel by channel: sums of so few products are floats, of bytes all the same.
    """
    shape = w.shape
    node.refuse_unless(groups > 0 and shape[0] % groups == 0, f"expected output channels in {groups} groups")
    x = same_sizes(node, x, [None, shape[1] * groups, *[None] * (len(shape) - 2)], "input")
    x = filled(node, x, window)
    pads = window.pads_over(node.sizes, expr_shape(x)[2:])
    node.refuse_unless(is_static(pads), "expected sizes known for auto_pad, found symbolic ones")
    attrs = {"layout": "first", "strides": window.strides, "dilations": window.dilations, "pads": pads}
    depth = prod(shape[1:])
    single = groups > 1 and shape[1] == 1
    if not single and depth <= DEEPEST and isinstance(w, Constant) and isinstance(w_zeros, np.ndarray):
        q, known, rows = unsigned_rows(node, x, zero)
        if rows is None:
            return _by_weight(node, q, known, w, w_zeros, {**attrs, "groups": groups})
    wide = "float32" if depth * 255 * 255 < EXACT else "float64"
    known = number_of(zero) if zero is not None else 0
    if single and shape[0] == groups and known is not None and wide == "float32" and isinstance(w, Constant):
        weight = _restored(node, w, w_zeros, wide)
        sums = node.emit(Convolution.call(x, weight, groups=groups, zero=int(known), **attrs))
        return sums if floats else node.cast(sums, "int32")
    data = node.cast(centred(node, x, zero), wide)
    weight = _restored(node, w, w_zeros, wide)
    return node.cast(node.emit(Convolution.call(data, weight, groups=groups, **attrs)), "int32")


def _by_weight(
    node: Node, q: relax.Expr, zero: relax.Expr, w: Constant, w_zeros: np.ndarray, attrs: dict[str, object]
) -> relax.Expr:
    weight, rest = signed_weight(w, w_zeros, axis=0)
    total = node.emit(ConvolutionInteger.call(q, zero, node.graph.parameter_of(weight), **attrs))
    if rest is None:
        return total
    groups = attrs["groups"]
    ones = Constant.of(np.ones((groups, *w.shape[1:]), np.int8), f"{w.name}_ones")
    sums = node.emit(ConvolutionInteger.call(q, zero, node.graph.parameter_of(ones), **attrs))
    if groups > 1:
        sums = node.emit(relax.op.repeat(sums, w.shape[0] // groups, 1))
    left = relax.const(rest.reshape(-1, *[1] * (len(w.shape) - 2)), "int32")
    return subtract(node, total, multiply(node, sums, left))


def _restored(node: Node, w: object, zeros: np.ndarray | relax.Expr, dtype: str) -> relax.Expr:
    """w - zeros in `dtype`, a parameter where both are known."""
    if isinstance(zeros, np.ndarray):
        along = zeros.reshape(-1, *[1] * (len(w.shape) - 1)).astype(np.int32)
        if isinstance(w, Constant):
            return node.graph.expr_of(derived(w, lambda: (w.array - along).astype(dtype), dtype, suffix="_restored"))
        zeros = relax.const(along, "int32")
    return node.cast(centred(node, node.graph.expr_of(w), vector_for(node, zeros, len(w.shape), 0)), dtype)
