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
from ..relay_ops.operator import operator_of
from ..tir_schedules.blocks import is_const
from ._moves import order_of, parts_of
from .graph_pass import op_name

RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
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
        numbers = [integers_of(arg) for arg in call.args[1:]]
        x = call.args[0]
        if None in numbers or len(numbers[0]) != 1 or numbers[3:] not in ([], [[1]]):
            return None
        if not isinstance(x.ty.shape, relax.ShapeExpr):
            return None
        axis, begin = numbers[0][0] % x.ty.ndim, numbers[1][0]
        size = x.ty.shape.values[axis]
        if not isinstance(size, tirx.IntImm) or not 0 <= begin < (end := min(numbers[2][0], int(size))):
            return None
        return cls(x, axis, begin, end)

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
    cuts, views = [Cut.of(call)], []
    while (cut := cuts[-1]) is not None and op_name(view := value(cut.expr)) in ("relax.permute_dims", *RESHAPES):
        if len(views) == _LONGEST:
            return None
        views.append(view)
        cuts.append(cut.before(view))
    if cut is None or len(views) < 2 or op_name(views[-1]) == "relax.permute_dims":
        return None
    operator = operator_of(value(cut.expr))
    moves = any(op_name(view) == "relax.permute_dims" for view in views)
    if not moves or operator is None or operator.name != "linear" or cut.axis != cut.expr.ty.ndim - 1:
        return None
    last = cuts[-2]
    part = relax.op.strided_slice(last.expr, [last.axis], [last.begin], [last.end])
    for view, behind in zip(views[-2::-1], cuts[-3::-1]):
        if op_name(view) == "relax.permute_dims":
            part = relax.op.permute_dims(part, order_of(view))
        else:
            dims = list(view.ty.shape.values)
            dims[behind.axis] = tirx.IntImm("int64", behind.end - behind.begin)
            part = relax.op.reshape(part, dims)
    return part


def columns_of(call: relax.Call, value: Values) -> Cut | None:
    """What the strided_slice `call`, also of a reshape, takes of the last axis of a tensor; None where it is no such."""
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
