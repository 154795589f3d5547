"""Products with a matrix of every head, as `halo.experts`: each head is the expert of its own rows."""

from __future__ import annotations

import tvm
from tvm import relax

from ..builder import ModelBuilder


def each_head(m: ModelBuilder, x: relax.Var, weight: relax.Var, n: int, bias: relax.Var | None = None) -> relax.Var:
    """x [batch, tokens, heads, k] times the weight [heads, n, k] of each head, plus the bias [heads, n]."""
    batch, tokens, heads, k = x.ty.shape.values
    heads, rows = int(heads), tvm.sym.Analyzer().simplify(batch * tokens)
    each = m.emit(relax.op.reshape(x, (rows, heads, k)))
    ids = m.emit(relax.op.broadcast_to(m.emit(relax.op.arange(0, heads, 1, "int32")), (batch, tokens, heads)))
    ids = m.emit(relax.op.reshape(ids, (rows, heads)))
    more = [] if bias is None else [bias]
    found = m.op("experts", each, ids, weight, *more, layout="nk", n=n, experts=heads)
    return m.emit(relax.op.reshape(found, (batch, tokens, heads, n)))
