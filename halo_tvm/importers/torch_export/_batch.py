"""Operators over images that torch also takes without a batch."""

from __future__ import annotations

from tvm import relax

from ..meaning.builder import expr_shape
from ._call import Call


def batched(c: Call, x: relax.Expr, spatial: int) -> relax.Expr:
    """`x` [n, c, *space], or [c, *space] of `spatial` axes with a batch of 1 before them."""
    return x if x.ty.ndim == spatial + 2 else c.emit(relax.op.reshape(x, [1, *expr_shape(x)]))  # a view


def unbatched(c: Call, y: relax.Expr) -> relax.Expr:
    """`y` without the batch that `batched` gave the operator's input."""
    return y if y.ty.ndim == c.out.dim() else c.emit(relax.op.reshape(y, expr_shape(y)[1:]))
