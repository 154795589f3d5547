"""Elements by value: the largest or smallest along an axis, and those that are not zero."""

from __future__ import annotations

from tvm import relax, te

from ...heaps import first_places
from .builder import Builder, expr_shape
from .sizes import Dim


def first_in_order(b: Builder, x: relax.Expr, k: Dim, axis: int, *, largest: bool) -> tuple[relax.Expr, relax.Expr]:
    """(values, places in int64) of the `k` largest or smallest along `axis`, sorted; of equal ones the first is first.

    `k` may be open; it is no more than there are elements.
    """
    rank = len(expr_shape(x))
    order = [i for i in range(rank) if i != axis] + [axis]
    rows = b.emit(relax.op.permute_dims(x, order)) if axis != rank - 1 else x
    shape = [*expr_shape(rows)[:-1], k]
    if b.sizes.is_equal(k, expr_shape(rows)[-1]):  # all of them: a merge sort takes three quarters of a heap's time
        places = b.emit(relax.op.argsort(rows, -1, descending=largest, dtype="int64"))  # stable
    else:
        flat = b.emit(relax.op.reshape(rows, [b.sizes.product(shape[:-1]), expr_shape(rows)[-1]]))
        found = b.te(first_places, flat, k, name="topk", largest=largest)
        places = b.emit(relax.op.reshape(found, shape))

    def values(data: te.Tensor, places: te.Tensor) -> te.Tensor:
        return te.compute(places.shape, lambda *i: data(*i[:-1], places(*i)), name="values")

    results = b.te(values, rows, places), places
    if axis == rank - 1:
        return results
    back = [order.index(i) for i in range(rank)]
    return b.emit(relax.op.permute_dims(results[0], back)), b.emit(relax.op.permute_dims(results[1], back))


def nonzero_places(b: Builder, x: relax.Expr, count: Dim) -> relax.Expr:
    """int64 [rank, count]: where `x` is not zero, in order. `count` is a dimension that the caller made for this."""
    found = b.block.emit(relax.op.nonzero(x))
    return b.block.match_cast(found, relax.TensorType([len(expr_shape(x)), count], "int64"))
