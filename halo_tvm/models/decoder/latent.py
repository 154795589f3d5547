"""Attention over latents: one vector of a token stands for the keys and values of all heads (arXiv:2405.04434).

Shapes
    x [batch, tokens, hidden]   ->   queries [batch, tokens, heads, width], keys [batch, tokens, 1, width]
    heads [batch, tokens, heads, width]   ->   values [batch, tokens, heads * value],   width = rank + turned
Computation
    key = (norm(down(x)), turned by positions), k its first `rank` numbers; a head's own key and value are K_h k, V_h k
    q . (K_h k) = (K_h^T q) . k   and   sum_j w_j (V_h k_j) = V_h (sum_j w_j k_j)
    So queries and results pass through K_h^T and V_h, and what is kept of a token is read as it is, once for all heads.
    Both are products of `halo.experts`: every head is the expert of its own rows, in the precision that experts have.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..builder import ModelBuilder
from .config import DecoderConfig, Latent, Rope
from .head_matrices import each_head
from .rope import turned_channels


def projected(
    c: DecoderConfig,
    m: ModelBuilder,
    x: relax.Var,
    layer: str,
    rope: Rope,
    positions: relax.Var,
    tables: list[relax.Var],
) -> tuple[relax.Var, relax.Var]:
    """Queries as they meet what is kept, and what is kept of every token of x."""
    kind = _of(c)
    batch, tokens, _ = x.ty.shape.values
    first = kind.query_rank or c.heads * (kind.plain + kind.turned)
    joined = m.op("linear", x, *_down(c, m, layer, rope, first), layout="nk", n=first + kind.width)

    def part(of: relax.Var, axis: int, begin: int, end: int) -> relax.Var:
        return m.emit(relax.op.strided_slice(of, axes=[axis], begin=[begin], end=[end]))

    def turned(heads: relax.Var) -> relax.Var:
        return m.op("rotary", heads, positions, *tables, interleaved=False)

    q = part(joined, 2, 0, first)
    if kind.query_rank:
        q = m.rms_norm(q, f"{layer}.{kind.query_norm}", first, kind.eps)
        columns = c.heads * (kind.plain + kind.turned)
        q = m.op("linear", q, m.stored(_queries(c, m, f"{layer}.{kind.query_up}", first, rope)), layout="nk", n=columns)
    q = m.emit(relax.op.reshape(q, (batch, tokens, c.heads, kind.plain + kind.turned)))
    plain = each_head(m, part(q, 3, 0, kind.plain), _keys(c, m, layer), kind.rank)
    q = m.emit(relax.op.concat([plain, turned(part(q, 3, kind.plain, kind.plain + kind.turned))], axis=3))
    kept = m.rms_norm(part(joined, 2, first, first + kind.rank), f"{layer}.{kind.norm}", kind.rank, kind.eps)
    kept = m.emit(relax.op.reshape(kept, (batch, tokens, 1, kind.rank)))
    place = part(joined, 2, first + kind.rank, first + kind.width)
    place = turned(m.emit(relax.op.reshape(place, (batch, tokens, 1, kind.turned))))
    return q, m.emit(relax.op.concat([kept, place], axis=3))


def values(c: DecoderConfig, m: ModelBuilder, heads: relax.Var, layer: str) -> relax.Var:
    """The values of all heads side by side, of the sums of what is kept."""
    kind = _of(c)
    batch, tokens, *_ = heads.ty.shape.values
    sums = m.emit(relax.op.strided_slice(heads, axes=[3], begin=[0], end=[kind.rank]))
    weight = m.derived(
        f"{layer}.{kind.up}.weight:values",
        "strided_slice",
        [_up(c, m, layer)],
        (c.heads, kind.value, kind.rank),
        axes=[1],
        begin=[kind.plain],
        end=[kind.plain + kind.value],
        strides=[1],
    )
    found = each_head(m, sums, weight, kind.value)
    return m.emit(relax.op.reshape(found, (batch, tokens, c.heads * kind.value)))


def _of(c: DecoderConfig) -> Latent:
    assert c.latent is not None, "a decoder with latents"
    return c.latent


def _down(c: DecoderConfig, m: ModelBuilder, layer: str, rope: Rope, first: int) -> list[relax.Var]:
    """The weight (and bias) of one linear: queries, or what they are made of, then what is kept."""
    kind, hidden = _of(c), c.hidden
    if kind.query_rank:
        stem = f"{layer}.{kind.query_down}"
        query = m.source(f"{stem}.weight", (first, hidden), scale=1 / math.sqrt(hidden))
    else:
        query = _queries(c, m, f"{layer}.{kind.query}", hidden, rope)
    kept = f"{layer}.{kind.down}"
    order = _order(kind.rank, kind.turned, 1, rope)
    parts = [query, _ordered(m, f"{kept}.weight", (kind.width, hidden), 1 / math.sqrt(hidden), order)]
    found = [m.derived("+".join(parts), "concat", parts, (first + kind.width, hidden), axis=0)]
    if kind.bias:
        none = m.kept(f"zeros.{first}", np.zeros(first, np.float32))
        query = m.source(f"{stem}.bias", (first,), scale=0.1) if kind.query_rank else none
        parts = [query, _ordered(m, f"{kept}.bias", (kind.width,), 0.1, order)]
        found.append(m.derived("+".join(parts), "concat", parts, (first + kind.width,), axis=0))
    return found


def _queries(c: DecoderConfig, m: ModelBuilder, stem: str, depth: int, rope: Rope) -> str:
    """The weight [heads * (plain + turned), depth] of queries, its name."""
    kind = _of(c)
    shape = (c.heads * (kind.plain + kind.turned), depth)
    return _ordered(m, f"{stem}.weight", shape, 1 / math.sqrt(depth), _order(kind.plain, kind.turned, c.heads, rope))


def _order(plain: int, turned: int, heads: int, rope: Rope) -> tuple[int, ...] | None:
    """Where the rows of heads lie in what is stored, for a rotation by halves; None: where they are read."""
    inner = turned_channels(rope, turned)
    if inner is None:
        return None
    row = (*range(plain), *(plain + i for i in inner))
    return tuple(head * (plain + turned) + i for head in range(heads) for i in row)


def _ordered(m: ModelBuilder, name: str, shape: tuple[int, ...], scale: float, order: tuple[int, ...] | None) -> str:
    stored = m.source(name, shape, scale=scale)
    if order is None:
        return stored
    return m.recipe(f"{stored}:turned", "take", [stored], shape, indices=order, axis=0)


def _up(c: DecoderConfig, m: ModelBuilder, layer: str) -> str:
    """The stored projections up, [heads, plain + value, rank]: of keys, then of values."""
    kind = _of(c)
    each, name = kind.plain + kind.value, f"{layer}.{kind.up}.weight"
    m.source(name, (c.heads * each, kind.rank), scale=1 / math.sqrt(kind.rank))
    return m.reshaped(f"{name}:heads", name, (c.heads, each, kind.rank))


def _keys(c: DecoderConfig, m: ModelBuilder, layer: str) -> relax.Var:
    """The weight [heads, rank, plain] that leads from queries to what is kept."""
    kind = _of(c)
    name, shape = f"{layer}.{kind.up}.weight:keys", (c.heads, kind.plain, kind.rank)
    of_keys = {"axes": [1], "begin": [0], "end": [kind.plain], "strides": [1]}
    stored = m.recipe(name, "strided_slice", [_up(c, m, layer)], shape, **of_keys)
    turned = (c.heads, kind.rank, kind.plain)
    return m.derived(f"{name}:turned", "permute_dims", [stored], turned, axes=[0, 2, 1])
