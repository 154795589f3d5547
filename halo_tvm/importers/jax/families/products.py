"""dot_general in every form, as one matrix product between views of its operands."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ...meaning.builder import expr_dtype
from ...meaning.constant import Constant
from ...meaning.sizes import Dim
from .._primitive import Primitive
from .._registry import converter
from .._values import Value
from .movement import permuted, reshaped

_LOOKED_AT = 1 << 16  # bytes of a factor that may be nothing but ones


@converter("dot_general")
def dot_general(c: Primitive) -> Value:
    """[batch, left, right]: sums of products over the contracted axes of both.

    With a weight it is a product with a matrix on the right. Of two tensors the one whose contracted axis is not its
    last comes second, so that neither is turned around where that can be avoided. Where nothing is summed it is a
    multiplication.
    """
    (lhs_sum, rhs_sum), (lhs_batch, rhs_batch) = c.params["dimension_numbers"]
    sides = [
        _Side(c, 0, list(lhs_batch), list(lhs_sum)),
        _Side(c, 1, list(rhs_batch), list(rhs_sum)),
    ]
    if not lhs_sum:
        return _elementwise(c, sides[0], sides[1])
    turned = _is_better_turned(c, sides[0], sides[1])
    first, second = (sides[1], sides[0]) if turned else (sides[0], sides[1])
    out = _multiplied(c, first, second)
    shape = [*first.sizes(first.batch), *first.sizes(first.free), *second.sizes(second.free)]
    if not turned:
        return c.reshape(out, shape)
    batch, left = len(first.batch), len(first.free)
    order = [*range(batch), *range(batch + left, len(shape)), *range(batch, batch + left)]
    return c.permute(c.reshape(out, shape), order)


class _Side:
    """An operand: its axes that are batched, summed over and kept."""

    def __init__(self, c: Primitive, index: int, batch: list[int], summed: list[int]) -> None:
        self.c, self.index, self.value, self.shape = c, index, c.values[index], c.shape_of(index)
        self.batch, self.summed = batch, summed
        self.free = [a for a in range(len(self.shape)) if a not in (*batch, *summed)]

    @property
    def is_weight(self) -> bool:
        return isinstance(self.value, Constant) and not self.batch

    def sizes(self, axes: Sequence[int]) -> list[Dim]:
        return [self.shape[a] for a in axes]

    def size(self, axes: Sequence[int]) -> Dim:
        return self.c.sizes.product(self.sizes(axes))

    def view(self, order: Sequence[int], shape: Sequence[Dim], dtype: str) -> relax.Expr:
        """The operand with its axes in `order`, then in `shape`."""
        value = reshaped(self.c, permuted(self.c, self.value, order), shape)
        return self.c.cast(self.c.walker.expr_of(value), dtype)


def _elementwise(c: Primitive, left: _Side, right: _Side) -> relax.Expr:
    """[batch, left, right] products; factors of one by batch alone (a mask of heads that are all there) are none."""

    def factor(side: _Side, before: Sequence[Dim | int], behind: Sequence[Dim | int]) -> relax.Expr:
        shape = [*side.sizes(side.batch), *before, *side.sizes(side.free), *behind]
        return side.view([*side.batch, *side.free], shape, c.dtype)

    for side, other in ((left, right), (right, left)):
        if not side.free and (c.number(side.index) == 1 or _is_ones(side.value)):
            return factor(other, (), ())
    a, b = factor(left, (), [1] * len(right.free)), factor(right, [1] * len(left.free), ())
    return c.emit(relax.op.multiply(a, b))


def _is_ones(value: Value) -> bool:
    return isinstance(value, Constant) and value.size_bytes <= _LOOKED_AT and bool((value.array == 1).all())


def _is_better_turned(c: Primitive, left: _Side, right: _Side) -> bool:
    if left.is_weight or right.is_weight:
        return left.is_weight and not right.is_weight
    last = [len(side.shape) - 1 in side.summed for side in (left, right)]
    return last == [False, True]


def _multiplied(c: Primitive, first: _Side, second: _Side) -> relax.Expr:
    out, dtypes = c.dtype, (c.dtype_of(0), c.dtype_of(1))
    dtype = dtypes[0] if dtypes[0] == dtypes[1] else out
    batch = first.sizes(first.batch)
    depth, width = first.size(first.summed), second.size(second.free)
    # Rows stay as many axes where the second is one matrix; else they are one axis.
    rows = first.sizes(first.free) if not batch else [first.size(first.free)]
    a = first.view([*first.batch, *first.free, *first.summed], [*batch, *rows, depth], dtype)
    if second.free and second.free[-1] < second.summed[-1] if second.summed and second.free else False:
        turned = second.view([*second.batch, *second.free, *second.summed], [*batch, width, depth], dtype)
        rank = len(batch) + 2
        b = c.permute(turned, [*range(rank - 2), rank - 1, rank - 2])
    else:
        b = second.view([*second.batch, *second.summed, *second.free], [*batch, depth, width], dtype)
    if not rows:
        a = c.reshape(a, [1, depth])
    if "float" not in dtype:
        return c.cast(c.emit(relax.op.matmul(a, b, out_dtype=out)), out)
    product = c.emit(relax.op.matmul(a, b))
    return product if expr_dtype(product) == out else c.cast(product, out)
