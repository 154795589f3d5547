"""Norms of queries and keys: RMS over a head or over all heads at once, or a layer norm of every head."""

from __future__ import annotations

from tvm import relax

from ..builder import ModelBuilder
from .config import DecoderConfig, Rope
from .rope import turned_channels
from .weights import spread


def head_norm(c: DecoderConfig, m: ModelBuilder, x: relax.Expr, name: str, rope: Rope | None) -> relax.Var:
    """x through the norm `name` of queries or keys, over its last axis, by `DecoderConfig.query_key_norm`.

    x is [batch, tokens, heads * head_dim] for "all", else [batch, tokens, heads, head_dim]; its channels lie in the
    order of the rotation, and so do those of the weights.
    """
    width = int(x.ty.shape.values[-1])
    if c.query_key_norm == "layer":
        bias = _part(c, m, f"{name}.bias", width, rope, 0.0)
        return m.op("layer_norm", x, _part(c, m, f"{name}.weight", width, rope, 1.0), bias, eps=c.eps)
    if c.query_key_norm == "each":
        normed = m.op("layer_norm", x, m.ones(width), m.zeros(width), eps=c.eps)
        heads = int(x.ty.shape.values[-2])
        return m.emit(relax.op.multiply(normed, _of_each(c, m, name, (heads, width), rope)))
    weight = _part(c, m, f"{name}.weight", width, rope, 1.0) if c.norm_weight else m.ones(width)
    return m.op("rms_norm", x, weight, eps=c.eps)


def _part(c: DecoderConfig, m: ModelBuilder, stored: str, width: int, rope: Rope | None, offset: float) -> relax.Var:
    """A tensor [width] of a norm, of one head or of all of them."""
    m.source(stored, (width,), scale=0.1, offset=offset - c.norm_plus_one)
    if c.norm_plus_one:
        stored = m.recipe(f"{stored}+1", "shift", [stored], (width,), by=1.0)
    order = turned_channels(rope, c.head_size) if rope else None
    if order is None:
        return m.stored(stored)
    rows = spread(order, width // c.head_size)
    return m.derived(f"{stored}:turned", "take", [stored], (width,), indices=rows, axis=0)


def _of_each(c: DecoderConfig, m: ModelBuilder, name: str, shape: tuple[int, int], rope: Rope | None) -> relax.Var:
    """The weights [heads, head_dim] of a norm of every head, which are one tensor, or one for each number in `name`."""
    heads, width = shape
    stored = f"{name}.weight"
    if "{}" in name:
        parts = [m.source(stored.format(head), (width,), scale=0.1, offset=1.0) for head in range(heads)]
        row = m.recipe(f"{name}:row", "concat", parts, (heads * width,), axis=0)
        stored = m.reshaped(stored, row, shape)
    else:
        m.source(stored, shape, scale=0.1, offset=1.0)
    order = turned_channels(rope, c.head_size) if rope else None
    if order is None:
        return m.stored(stored)
    return m.derived(f"{stored}:turned", "take", [stored], shape, indices=order, axis=1)
