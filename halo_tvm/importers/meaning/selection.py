"""The largest or smallest elements along an axis, however many are asked for."""

from __future__ import annotations

from tvm import ir, relax, te, tirx

from .builder import Builder, expr_shape
from .sizes import Dim


def first_in_order(b: Builder, x: relax.Expr, k: Dim, axis: int, *, largest: bool) -> tuple[relax.Expr, relax.Expr]:
    """(values, places in int64) of the `k` largest or smallest along `axis`, sorted; of equal ones the first is first.

    `k` may be open; it is no more than there are elements.
    """
    rank = len(expr_shape(x))
    order = [i for i in range(rank) if i != axis] + [axis]
    rows = b.emit(relax.op.permute_dims(x, order)) if axis != rank - 1 else x
    ranked = b.emit(relax.op.argsort(rows, -1, descending=largest, dtype="int64"))  # stable
    shape = [*expr_shape(rows)[:-1], k]

    def places(ranked: te.Tensor, out: list[Dim]) -> te.Tensor:
        return te.compute(out, lambda *i: ranked(*i[:-1], tirx.min(i[-1], ranked.shape[-1] - 1)), name="first")

    def values(data: te.Tensor, ranked: te.Tensor, out: list[Dim]) -> te.Tensor:
        def element(*i: ir.Expr) -> ir.Expr:
            return data(*i[:-1], ranked(*i[:-1], tirx.min(i[-1], ranked.shape[-1] - 1)))

        return te.compute(out, element, name="values")

    results = b.te(values, rows, ranked, shape), b.te(places, ranked, shape)
    if axis == rank - 1:
        return results
    back = [order.index(i) for i in range(rank)]
    return b.emit(relax.op.permute_dims(results[0], back)), b.emit(relax.op.permute_dims(results[1], back))
