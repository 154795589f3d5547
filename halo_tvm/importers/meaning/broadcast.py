"""Operands whose sizes must fit each other: those of one broadcasting operator, and those of declared sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from ...dimensions import is_one, text_of
from .builder import Builder, expr_shape
from .sizes import Dim, prim


def aligned(builder: Builder, xs: Sequence[relax.Expr]) -> list[relax.Expr]:
    """`xs` with every pair of sizes provably equal or one of them 1.

    Sizes that may differ, as far as can be proven, are declared equal; a run where they are not is refused then.
    One that is never more than 1, as that of the last row alone, is declared to be 1 beside any other.
    """
    rank = max(len(expr_shape(x)) for x in xs)
    out: list[Dim] = [1] * rank
    for x in xs:
        for axis, dim in enumerate(expr_shape(x), rank - len(expr_shape(x))):
            wider = not isinstance(out[axis], int) and not is_one(dim)
            if is_one(out[axis]) or (wider and (isinstance(dim, int) or _is_single(builder, out[axis], dim))):
                out[axis] = dim
    return [_declared(builder, x, out[rank - len(expr_shape(x)) :]) for x in xs]


def same_sizes(builder: Builder, x: relax.Expr, shape: Sequence[Dim | None], what: str = "input") -> relax.Expr:
    """`x` of `shape` (None: any size). What is known to differ is refused now, what may differ when it does."""
    return _fitted(builder, x, shape, what, lambda dim, size: size, "", lambda dim, size: dim == size)


def at_most(builder: Builder, x: relax.Expr, shape: Sequence[Dim | None], what: str = "input") -> relax.Expr:
    """As `same_sizes`, for sizes that may be smaller; the sizes of the result are minima of both."""
    return _fitted(
        builder, x, shape, what, builder.sizes.minimum, "at most ", lambda dim, size: prim(dim) <= prim(size)
    )


def at_least(builder: Builder, x: relax.Expr, shape: Sequence[Dim | None], what: str = "input") -> relax.Expr:
    """As `same_sizes`, for sizes that may be larger; the sizes of the result are maxima of both."""
    return _fitted(
        builder, x, shape, what, builder.sizes.maximum, "at least ", lambda dim, size: prim(dim) >= prim(size)
    )


def _fitted(
    builder: Builder,
    x: relax.Expr,
    shape: Sequence[Dim | None],
    what: str,
    joined: Callable[[Dim, Dim], Dim],
    word: str,
    fits: Callable[[Dim, Dim], object],
) -> relax.Expr:
    found = expr_shape(x)
    builder.refuse_unless(len(found) == len(shape), f"expected {what} of rank {len(shape)}, found {len(found)}")
    dims = list(found)
    for axis, (dim, size) in enumerate(zip(found, shape)):
        if size is None or builder.sizes.is_equal(dim, size):
            continue
        is_known = isinstance(dim, int) and isinstance(size, int)
        decided = builder.sizes.decided(fits(dim, size)) if word or is_known else None
        builder.refuse_unless(
            decided is not False,
            f"expected {what} of size {word}{text_of(size)} along axis {axis}, found {text_of(dim)}",
        )
        if decided is None:
            dims[axis] = joined(dim, size)
    return x if all(d is f for d, f in zip(dims, found)) else builder.declared(x, dims)


def _declared(builder: Builder, x: relax.Expr, wanted: Sequence[Dim]) -> relax.Expr:
    shape = expr_shape(x)
    if all(is_one(d) or builder.sizes.is_equal(d, w) for d, w in zip(shape, wanted)):
        return x
    for dim, size in zip(shape, wanted):
        if isinstance(dim, int) and isinstance(size, int) and dim not in (1, size):
            builder.refuse(f"shapes cannot be broadcast: {dim} and {size} meet")
    dims = [1 if is_one(d) or _is_single(builder, d, w) else w for d, w in zip(shape, wanted)]
    return builder.declared(x, dims)


def _is_single(builder: Builder, dim: Dim, other: Dim) -> bool:
    """Whether the open size `dim` is at most 1, and not always the same as `other`."""
    if isinstance(dim, int) or builder.sizes.is_equal(dim, other):
        return False
    return builder.sizes.decided(prim(dim) <= 1) is True
