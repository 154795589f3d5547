"""Groups of channels with their places as rows, as instance and group norms read them, with the channels last.

Before -> after
    r = reshape(x [n, c, *space], [n, groups, width])   ->   x' [n, *space, c], each channel of a group
    mean(r, [2])                                        ->   sums of x' along its last place, then of these and a group
    f(r, v [n, groups, 1])                              ->   f(x', v' [n, 1, ..., c]), v' an element for each channel
    reshape(f, [n, c, *space])                          ->   what f gave, as it lies
Leaves alone
    rows whose sums would be one long chain: a single spatial axis of unknown or prime length
Numerics
    a mean is a sum of sums, none of which is longer than the last spatial axis or what all others leave
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, te, tirx

from ..relay_ops.operator import same_dimension, shaped
from ..tir_schedules.code.lanes import constant

_LONGEST = 512  # elements of one chain of additions along a single axis


@dataclass(frozen=True)
class Grouped:
    """Rows [n, groups, width] of an image `value` [n, *space, c] whose channels lie last."""

    value: relax.Expr
    groups: int

    @property
    def channels(self) -> int:
        return int(self.value.ty.shape.values[-1])

    @property
    def image(self) -> list[ir.Expr]:
        """Sizes with the channels second."""
        batch, *space, channels = self.value.ty.shape.values
        return [batch, channels, *space]

    def mean(self, builder: relax.BlockBuilder) -> relax.Expr | None:
        """The mean of every row, [n, groups, 1]; None where its sums would be long chains."""
        sizes = list(self.value.ty.shape.values)
        value = self.value
        if len(sizes) == 3:  # one axis as two
            length = constant(sizes[1]) or 0  # unknown: no parts
            parts = [d for d in range(1, _LONGEST) if length % d == 0 and 0 < length // d <= _LONGEST]
            if not parts:
                return None
            last = min(parts, key=lambda d: abs(d * d - length))
            value = builder.emit(relax.op.reshape(value, [sizes[0], length // last, last, sizes[2]]))
        rank = value.ty.ndim
        sums = builder.emit(relax.op.sum(value, [rank - 2]))
        each, groups = self.channels // self.groups, self.groups

        def joined(sums: te.Tensor, space: Sequence[ir.Expr]) -> te.Tensor:
            count = tirx.const(each, "int64")
            for size in space:
                count = count * size
            axes = [te.reduce_axis((0, size), f"o{i}") for i, size in enumerate(sums.shape[1:-1])]
            within = [te.reduce_axis((0, each), "m")] if each > 1 else []

            def total(n: tirx.Var, g: tirx.Var, _: tirx.Var) -> tirx.PrimExpr:
                channel = g * each + within[0] if within else g
                return te.sum(sums[(n, *axes, channel)], axis=[*axes, *within])

            whole = te.compute([sums.shape[0], groups, 1], total, name="total")
            return te.compute(whole.shape, lambda *i: whole[i] / tirx.Cast(whole.dtype, count), name="mean")

        return builder.call_te(joined, sums, sizes[1:-1], primfunc_name_hint="mean_of_groups")

    def of_channels(self, builder: relax.BlockBuilder, vector: relax.Expr) -> relax.Expr | None:
        """`vector` [n or 1, groups, 1] with an element for each channel, as [n or 1, 1, ..., c]; None for others."""
        if not shaped(vector.ty):
            return None
        dims, rank = list(vector.ty.shape.values), self.value.ty.ndim
        if all(same_dimension(d, 1) for d in dims):
            return vector if len(dims) < 2 else builder.emit(relax.op.reshape(vector, [1] * rank))
        if len(dims) != 3 or not same_dimension(dims[2], 1) or not same_dimension(dims[1], self.groups):
            return None
        shape, each = [dims[0], *[1] * (rank - 2), self.channels], self.channels // self.groups
        if each > 1:  # a kernel of its own, since a reshape is: what reads it reads vectors
            vector = builder.emit(relax.op.broadcast_to(vector, [dims[0], self.groups, each]))
        return builder.emit(relax.op.reshape(vector, shape))


def groups_of(image: Sequence[ir.Expr], rows: Sequence[ir.Expr]) -> int | None:
    """How many groups of channels a reshape of `image` [n, c, *space] to `rows` has as its rows; None for others."""
    if len(image) < 3 or len(rows) != 3 or not same_dimension(image[0], rows[0]):
        return None
    channels, groups = constant(image[1]), constant(rows[1])
    if not channels or not groups or channels % groups:
        return None
    left = [tirx.IntImm("int64", channels // groups), *image[2:]]
    return groups if same_dimension(math.prod(left[1:], start=left[0]), rows[2]) else None
