"""Parts of a projection that are taken behind its transposition: queries, keys and values of one product.

Before                                                        after
    y = reshape(linear(x))                 [b, s, 3, h, d]        q = strided_slice(y, axis 2, from 0 to 1)
    z = permute_dims(y, 2, 0, 3, 1, 4)                            q = permute_dims(q, 2, 0, 3, 1, 4)
    q = strided_slice(z, axis 0, from 0 to 1)
A part moves once, instead of all of them and then each; attention reads it in place, as columns of the product.
Leaves alone
    parts with a stride, of other axes than the columns, and of columns that lie apart
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx

from ..dimensions import integers_of
from ..relay_ops.operator import RESHAPES, op_name, operator_of, order_of
from ..tir_schedules.blocks import is_const
from ._moves import parts_of

_LONGEST = 6
Values = Callable[[relax.Expr], relax.Expr]  # what a variable is bound to; anything else is its own value


@dataclass(frozen=True)
class Cut:
    """From `begin` to `end` along `axis` of `expr`."""

    expr: relax.Expr
    axis: int
    begin: int
    end: int

    @classmethod
    def of(cls, call: relax.Call) -> Cut | None:
        """What the strided_slice `call` takes; None where that is another thing."""
        x, axes, begins, ends, *strides = call.args[0], *map(integers_of, call.args[1:])
        if axes is None or begins is None or ends is None or len(axes) != 1 or strides not in ([], [[1]]):
            return None
        if not isinstance(x.ty.shape, relax.ShapeExpr):
            return None
        size = x.ty.shape.values[axes[0] % x.ty.ndim]
        if not isinstance(size, tirx.IntImm) or not 0 <= begins[0] < (end := min(ends[0], int(size))):
            return None
        return cls(x, axes[0] % x.ty.ndim, begins[0], end)

    def before(self, view: relax.Call) -> Cut | None:
        """The same elements of what `view`, the value of `expr`, is a view of."""
        source = view.args[0]
        if not isinstance(source.ty.shape, relax.ShapeExpr):
            return None
        if op_name(view) == "relax.permute_dims":
            return Cut(source, order_of(view)[self.axis], self.begin, self.end)
        found = _outer_part(source.ty.shape.values, view.ty.shape.values, self.axis)
        return found and Cut(source, found[0], self.begin * found[1], self.end * found[1])


def part_of_projection(call: relax.Call, value: Values) -> relax.Expr | None:
    """The strided_slice `call` as views of a part that is taken in front of them; None where it is no such part."""
    cut = Cut.of(call)
    passed: list[tuple[relax.Call, Cut]] = []  # views, the last first, and what is cut of the result of each
    while cut is not None and op_name(view := value(cut.expr)) in ("relax.permute_dims", *RESHAPES):
        if len(passed) == _LONGEST:
            return None
        passed.append((view, cut))
        cut = cut.before(view)
    operator = None if cut is None else operator_of(value(cut.expr))
    if cut is None or operator is None or operator.name != "linear" or cut.axis != cut.expr.ty.ndim - 1:
        return None
    moves = [op_name(view) == "relax.permute_dims" for view, _ in passed]
    if not any(moves) or moves[-1]:
        return None
    first = passed.pop()[1]
    part = relax.op.strided_slice(first.expr, [first.axis], [first.begin], [first.end])
    for view, behind in reversed(passed):
        if op_name(view) == "relax.permute_dims":
            part = relax.op.permute_dims(part, order_of(view))
        else:
            dims = list(view.ty.shape.values)
            dims[behind.axis] = tirx.IntImm("int64", behind.end - behind.begin)
            part = relax.op.reshape(part, dims)
    return part


def columns_of(call: relax.Call, value: Values) -> Cut | None:
    """What the strided_slice `call`, also of a reshape, takes of a tensor's last axis; None where it is no such."""
    cut = Cut.of(call)
    while cut is not None and op_name(view := value(cut.expr)) in RESHAPES:
        cut = cut.before(view)
    return cut if cut is not None and cut.axis == cut.expr.ty.ndim - 1 else None


def _outer_part(old: Sequence[ir.Expr], new: Sequence[ir.Expr], axis: int) -> tuple[int, int] | None:
    """The axis of `old` that `axis` of `new` is the outer part of, and how many of its elements one is; else None."""
    for given, made in parts_of(old, new) or ():
        if axis in made:
            real = [a for a in given if not is_const(old[a], 1)]
            outer, inner = new[made.start : axis], new[axis + 1 : made.stop]
            if len(real) != 1 or not all(is_const(d, 1) for d in outer):
                return None
            if not all(isinstance(d, tirx.IntImm) for d in inner):
                return None
            return real[0], math.prod(map(int, inner))
    return None
