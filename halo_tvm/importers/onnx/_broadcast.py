"""Operands of one broadcasting operator, given shapes from which Relax can derive the result's."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ._node import Node, expr_shape
from ._values import Dim


def aligned(node: Node, xs: Sequence[relax.Expr]) -> list[relax.Expr]:
    """`xs` with every pair of sizes provably equal or one of them 1.

    Sizes that may differ, as far as can be proven, are declared equal; a run where they are not is refused then.
    """
    rank = max(len(expr_shape(x)) for x in xs)
    out: list[Dim] = [1] * rank
    for x in xs:
        for axis, dim in enumerate(expr_shape(x), rank - len(expr_shape(x))):
            if _is_one(out[axis]) or (not isinstance(out[axis], int) and isinstance(dim, int) and dim != 1):
                out[axis] = dim
    return [_declared(node, x, out[rank - len(expr_shape(x)) :]) for x in xs]


def _declared(node: Node, x: relax.Expr, wanted: Sequence[Dim]) -> relax.Expr:
    shape = expr_shape(x)
    if all(_is_one(d) or node.sizes.is_equal(d, w) for d, w in zip(shape, wanted)):
        return x
    for dim, size in zip(shape, wanted):
        if isinstance(dim, int) and isinstance(size, int) and dim not in (1, size):
            node.refuse(f"shapes cannot be broadcast: {dim} and {size} meet")
    dims = [d if _is_one(d) else w for d, w in zip(shape, wanted)]
    return node.declared(x, dims)


def _is_one(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 1
