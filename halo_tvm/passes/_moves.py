"""Reshapes and transpositions of tensors whose channels lie last, on the order that they have in memory.

Before -> after
    reshape [n, c, h, w] -> [n, a, b, h, w], permute_dims, reshape -> [n, c', h', w']
        ->   reshape [n, h, w, c] -> [n, h, w, a, b], permute_dims to [n, h', w', c'], reshape
Channel shuffles, pixel shuffles and their inverses move once, then, from channels last to channels last; and flattened
places with their channels behind them are a view. So is a transposition that moves axes of one element only.
Leaves alone
    reshapes that join a part of the channels with a part of the image
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import ir, relax

from ..dimensions import product
from ..tir_schedules.blocks import is_const

# axes of the one shape -> axes of the other that hold the same elements
Parts = list[tuple[range, range]]
_MOST = 4  # axes of one shape that meet as many of the other


@dataclass(frozen=True)
class Moved:
    """A tensor whose axis a is the axis `order[a]` of `value`."""

    value: relax.Expr
    order: tuple[int, ...]
    rank: int  # of the tensor with its channels last that it is made of

    @property
    def is_value(self) -> bool:
        """Whether nothing has to move."""
        return list(self.order) == list(range(len(self.order)))

    def permuted(self, axes: Sequence[int]) -> Moved:
        return replace(self, order=tuple(self.order[a] for a in axes))

    def reshaped(self, builder: relax.BlockBuilder, old: Sequence[ir.Expr], new: Sequence[ir.Expr]) -> Moved | None:
        """`old` -> `new` as a view of `value`; with a transposition to channels last where it joins distant axes."""
        parts = parts_of(old, new)
        if parts is None:
            return None
        runs = [[self.order[a] for a in given] for given, _ in parts]
        value = self.value
        if all(run == list(range(run[0], run[0] + len(run))) for run in runs):
            laid = sorted(range(len(parts)), key=lambda i: runs[i][0])
        elif len(new) > 2 and len(parts) == len(new):  # each axis of the result is one part
            laid = [0, *range(2, len(new)), 1]
            value = builder.emit(transposed(value, [a for i in laid for a in runs[i]]))
        else:
            return None
        made = [a for i in laid for a in parts[i][1]]
        shape = [new[a] for a in made]
        order = tuple(made.index(a) for a in range(len(new)))
        return replace(self, value=builder.emit(relax.op.reshape(value, shape)), order=order)


def transposed(x: relax.Expr, axes: Sequence[int]) -> relax.Call:
    """permute_dims of `x`, as a reshape where only axes of one element move and the sizes are known."""
    if not isinstance(x.ty.shape, relax.ShapeExpr):  # behind a match_cast to a rank
        return relax.op.permute_dims(x, list(axes))
    dims = list(x.ty.shape.values)
    moving = [a for a in axes if not is_const(dims[a], 1)]
    if moving == sorted(moving):
        return relax.op.reshape(x, [dims[a] for a in axes])
    return relax.op.permute_dims(x, list(axes))


def parts_of(old: Sequence[ir.Expr], new: Sequence[ir.Expr]) -> Parts | None:
    """The smallest runs of axes with as many elements in both shapes, none of them empty; None where some are none."""
    analyzer, found = tvm.sym.Analyzer(), []
    i = j = 0
    while i < len(old) and j < len(new):
        sizes = sorted(itertools.product(range(1, _MOST + 1), repeat=2), key=sum)
        fits = next(
            (
                (a, b)
                for a, b in sizes
                if i + a <= len(old)
                and j + b <= len(new)
                and analyzer.can_prove_equal(product(old[i : i + a]), product(new[j : j + b]))
            ),
            None,
        )
        if fits is None:
            return None
        found.append((range(i, i + fits[0]), range(j, j + fits[1])))
        i, j = i + fits[0], j + fits[1]
    return found if i == len(old) and j == len(new) else None
