"""Places beyond either end of an axis, which stand for those at its other end."""

from __future__ import annotations

from tvm import ir, tirx


def around(at: ir.Expr, size: ir.Expr | int) -> ir.Expr:
    """The place of `at`, which is within -size .. 2 size - 1.

    By comparison: of an element's place TVM takes two remainders of shifted axes for one of their product, and drops
    one of the shifts (its map of iterations compares the extents of two parts, not where they begin).
    """
    return tirx.Select(at < 0, at + size, tirx.Select(at >= size, at - size, at))
