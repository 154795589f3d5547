"""Operators over images that torch also takes without a batch."""

from __future__ import annotations

from tvm import relax

from ._call import Call


def batched(c: Call, x: relax.Expr, spatial: int) -> relax.Expr:
    """`x` [n, c, *space], or [c, *space] of `spatial` axes with a batch of 1 before them."""
    return x if x.ty.ndim == spatial + 2 else c.emit(relax.op.expand_dims(x, 0))


def unbatched(c: Call, y: relax.Expr) -> relax.Expr:
    """`y` without the batch that `batched` gave the operator's input."""
    return y if y.ty.ndim == c.out.dim() else c.emit(relax.op.squeeze(y, [0]))
