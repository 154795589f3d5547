"""Convolutions with few output channels: several neighbouring places of the last axis at once, as channels.

Before -> after
    y [n, .., w, m] = conv(x)   ->   z [n, .., ceil(w / b), b * m] = conv'(x),   y = z as [n, .., ceil(w / b) * b, m],
                                     cut to w places
    y + bias, relu(y)           ->   the same of z, so that they stay stages of the convolution
A panel of the weight is as wide as a vector: 3 channels use 3 of 16 lanes, 5 places of 3 channels use 15. A window of b
places is stride * (b - 1) elements longer, and has zeros where a place does not have the element.
Leaves alone
    convolutions in groups, or whose last axis is dilated; what computes less than a quarter less that way
Numerics
    as the convolution; NaN and infinities also reach neighbouring places, whose weight is such a zero
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, te

from ..relay_ops.operator import same_dimension
from ..targets import Target
from ..tir_schedules.code.lanes import constant, simplify
from ..tir_schedules.products.packing import pack_shape

_GAIN = 0.75  # of the products, at most
_NOT_WHOLE = 1.1  # what is computed where the places have to be cut off again


@dataclass(frozen=True)
class Neighbours:
    """A value [n, .., w, m] that `value` [n, .., ceil(w / count), count * m] holds."""

    value: relax.Expr
    count: int
    shape: tuple[ir.Expr, ...]

    def apart(self, builder: relax.BlockBuilder) -> relax.Var:
        """The value with a place for itself each: a view, cut off where the last places are too many."""
        *outer, places, m = self.shape
        whole = simplify(self.value.ty.shape.values[-2] * self.count)
        y = builder.emit(relax.op.reshape(self.value, [*outer, whole, m]))
        if same_dimension(whole, places):
            return y

        def cut(y: te.Tensor) -> te.Tensor:
            return te.compute([*outer, places, m], lambda *i: y[i], name="cut")

        return builder.emit(builder.call_te(cut, y, primfunc_name_hint="cut"))

    def followed_by(
        self,
        builder: relax.BlockBuilder,
        call: relax.Call,
        held: Mapping[relax.Expr, Neighbours],
        operand: Callable[[relax.Expr], relax.Expr | None],
    ) -> Neighbours | None:
        """This behind the element-wise `call`, of whose arguments it is one; None where another is no vector.

        `held`: the arguments that are like this; `operand` gives another with its channels last, None where it cannot.
        """
        args = []
        for arg in call.args:
            if arg in held or not isinstance(arg.ty, relax.TensorType):
                args.append(held[arg].value if arg in held else arg)
                continue
            other = operand(arg)
            dims = list(other.ty.shape.values) if other is not None else []
            if other is not None and all(same_dimension(d, 1) for d in dims):
                args.append(other)
            elif len(dims) == 1 and same_dimension(dims[0], self.shape[-1]):
                args.append(builder.emit(relax.op.concat([other] * self.count, 0)))
            else:
                return None
        made = builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        return Neighbours(made, self.count, self.shape)


def at_once(weight: Sequence[int], attrs: Mapping[str, Any], places: ir.Expr, target: Target) -> int:
    """How many places of the last axis a convolution of `weight` [m, c, *kernel] computes at once; 1: one by one."""
    m, depth, width, stride = weight[0], math.prod(weight[1:-1]), weight[-1], int(attrs["strides"][-1])
    if attrs["groups"] != 1 or attrs["dilations"][-1] != 1:
        return 1
    known = constant(places)

    def products(count: int) -> float:
        """Of one place, those with the zeros of panels and windows included."""
        length = width + (count - 1) * stride
        _, nr = pack_shape(depth * length, count * m, target)
        columns = -(-count * m // nr) * nr
        if count == 1:
            return length * columns
        if known is None:
            return length * columns / count * _NOT_WHOLE
        return length * columns * -(-known // count) / known * (_NOT_WHOLE if known % count else 1.0)

    most = max(1, 2 * target.lanes_f32 // m)
    best = min(range(1, min(most, known if known is not None else most) + 1), key=products, default=1)
    return best if products(best) <= _GAIN * products(1) else 1


def together(attrs: Mapping[str, Any], count: int) -> dict[str, object]:
    """The attributes of the convolution that computes `count` places at once."""
    step = attrs["strides"][-1]
    strides, pads = (
        [*attrs["strides"][:-1], step * count],
        [*attrs["pads"][:-1], attrs["pads"][-1] + (count - 1) * step],
    )
    return {**attrs, "strides": tuple(strides), "pads": tuple(pads)}
