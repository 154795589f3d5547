"""The tensors of a decoder as its graph reads them: q, k and v as one, in the order of the one rotation.

What a checkpoint stores otherwise is made of its tensors by recipes, when the artifact is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from ..builder import ModelBuilder
from .config import DecoderConfig, Layer, Rope
from .rope import turned_channels

# Random query and key weights are scaled so that scores have a standard deviation near 2: attention is not flat.
_QKV_GAIN = 1.4


def norm(c: DecoderConfig, m: ModelBuilder, x: relax.Expr, name: str, width: int) -> relax.Var:
    """x through the norm `name` over its last axis."""
    stored = f"{name}.weight"
    if not c.norm_weight:
        weight = m.ones(width)
    elif c.norm_plus_one:
        m.source(stored, (width,), scale=0.1)
        weight = m.derived(f"{stored}+1", "shift", [stored], (width,), by=1.0)
    else:
        weight = m.weight(stored, (width,), scale=0.1, offset=1.0)
    if c.norm == "layer":
        bias = m.weight(f"{name}.bias", (width,), scale=0.1) if c.norm_bias and c.norm_weight else m.zeros(width)
        return m.op("layer_norm", x, weight, bias, eps=c.eps)
    return m.op("rms_norm", x, weight, eps=c.eps)


def query_key_value(c: DecoderConfig, m: ModelBuilder, layer: str, kind: Layer) -> list[relax.Var]:
    """The weight (and bias) of one linear whose columns are all queries, then keys, then values.

    Keys and values that layers of this `kind` do not project are left out.
    """
    names = c.names
    columns = c.query_width + kind.projected * c.key_width
    rows = _rows(c, kind.rope)
    tensors = [("weight", c.hidden)] + ([("bias", 0)] if c.query_key_value_bias else [])
    found = []
    for tensor, depth in tensors:
        axis = 1 if depth and names.layout == "kn" else 0
        scale = _QKV_GAIN / math.sqrt(c.hidden) if depth else 0.1

        def shape(width: int, depth: int = depth) -> tuple[int, ...]:
            return (width,) if not depth else (depth, width) if names.layout == "kn" else (width, depth)

        if names.joined:
            stored = f"{layer}.{names.joined}.{tensor}"
            if rows is None:
                found.append(m.weight(stored, shape(columns), scale=scale))
                continue
            m.source(stored, shape(columns), scale=scale)
            order = tuple(i for part in rows for i in part)
            found.append(m.derived(f"{stored}:qkv", "take", [stored], shape(columns), indices=order, axis=axis))
            continue
        parts = []
        widths = (c.query_width, *(c.key_width,) * kind.projected)
        for name, width, order in zip((names.query, names.key, names.value), widths, rows or (None,) * 3):
            stored = f"{layer}.{name}.{tensor}"
            if c.query_gate and name == names.query:
                m.source(stored, shape(2 * width), scale=scale)
                rows_of = _doubled(c, order or tuple(range(width)))
                parts.append(m.recipe(f"{stored}:queries", "take", [stored], shape(width), indices=rows_of, axis=axis))
                continue
            m.source(stored, shape(width), scale=scale)
            if order is not None and order != tuple(range(width)):
                m.recipe(f"{stored}:turned", "take", [stored], shape(width), indices=order, axis=axis)
                stored = f"{stored}:turned"
            parts.append(stored)
        alone = len(parts) == 1
        found.append(
            m.stored(parts[0]) if alone else m.derived("+".join(parts), "concat", parts, shape(columns), axis=axis)
        )
    return found


def query_gate(c: DecoderConfig, m: ModelBuilder, layer: str) -> relax.Var:
    """The weight [query_width, hidden] of the gates that stand behind the queries of their heads, of `nk` layout."""
    stored = f"{layer}.{c.names.query}.weight"
    behind = tuple(row + c.head_size for row in _doubled(c, tuple(range(c.query_width))))
    return m.derived(f"{stored}:gates", "take", [stored], (c.query_width, c.hidden), indices=behind, axis=0)


def _doubled(c: DecoderConfig, rows: Sequence[int]) -> tuple[int, ...]:
    """Where `rows` of queries lie where every head's gate is behind its query."""
    return tuple(row // c.head_size * 2 * c.head_size + row % c.head_size for row in rows)


def gate_and_up(c: DecoderConfig, m: ModelBuilder, layer: str) -> list[relax.Var]:
    """Weights (and biases) of the gate, where there is one, then of the projection up."""
    names, bias = c.names, c.ffn_bias
    up = f"{layer}.{names.up}"
    if not names.gate_up or not c.gated:
        gate = [f"{layer}.{names.gate}"] if c.gated else []
        stems = [*gate, up]
        if c.gate_scale is not None and not bias:
            shape = (c.feed_forward, c.hidden) if names.layout == "nk" else (c.hidden, c.feed_forward)
            stored = m.source(f"{gate[0]}.weight", shape, scale=1 / math.sqrt(c.hidden))
            scaled = m.derived(f"{stored}:scaled", "scaled", [stored], shape, by=c.gate_scale)
            return [scaled, *m.linear_weights(up, c.hidden, c.feed_forward, names.layout, bias)]
        return [w for stem in stems for w in m.linear_weights(stem, c.hidden, c.feed_forward, names.layout, bias)]
    return halves(m, f"{layer}.{names.gate_up}", c.hidden, c.feed_forward, names.layout, bias)


def halves(m: ModelBuilder, stem: str, hidden: int, width: int, layout: str, bias: bool) -> list[relax.Var]:
    """Weights (and biases) of the gate and of the projection up, which are one tensor `stem`, the gate first."""
    found = []
    for part, begin in (("gate", 0), ("up", width)):
        for kind, depth in [("weight", hidden)] + ([("bias", 0)] if bias else []):
            axis = 1 if depth and layout == "kn" else 0
            whole, half = (
                (n,) if not depth else (depth, n) if layout == "kn" else (n, depth) for n in (2 * width, width)
            )
            stored = m.source(f"{stem}.{kind}", whole, scale=1 / math.sqrt(hidden) if depth else 0.1)
            attrs = {"axes": [axis], "begin": [begin], "end": [begin + width], "strides": [1]}
            found.append(m.derived(f"{stored}:{part}", "strided_slice", [stored], half, **attrs))
    return found


def _rows(c: DecoderConfig, rope: Rope | None) -> tuple[tuple[int, ...], ...] | None:
    """Where the rows of queries, keys and values lie in what is stored; None where it is stored as it is read."""
    order = turned_channels(rope, c.head_size) if rope else None
    grouped = c.names.joined and c.names.grouped
    if order is None and not grouped and c.joined_blocks == 1:
        return None
    order, plain = order or tuple(range(c.head_size)), tuple(range(c.head_size))
    if c.joined_blocks > 1:
        return _of_blocks(c, order, plain)
    if not c.names.joined:
        return spread(order, c.heads), spread(order, c.key_heads), spread(plain, c.key_heads)
    if not grouped:
        starts = (0, c.query_width, c.query_width + c.key_width)
        counts = (c.heads, c.key_heads, c.key_heads)
        return tuple(spread(o, n, start) for o, n, start in zip((order, order, plain), counts, starts))
    d, per = c.head_size, c.heads // c.key_heads
    groups = [g * (per + 2) * d for g in range(c.key_heads)]
    queries = tuple(g + e * d + i for g in groups for e in range(per) for i in order)
    keys = tuple(g + per * d + i for g in groups for i in order)
    values = tuple(g + (per + 1) * d + i for g in groups for i in plain)
    return queries, keys, values


def _of_blocks(
    c: DecoderConfig, order: Sequence[int], plain: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Rows of queries, keys and values where every block of heads has its queries, then values, then keys."""
    per = c.heads // c.joined_blocks
    piece = per * c.head_size

    def rows(channels: Sequence[int], place: int) -> tuple[int, ...]:
        starts = [b * 3 * piece + place * piece for b in range(c.joined_blocks)]
        return tuple(i for start in starts for i in spread(channels, per, start))

    return rows(order, 0), rows(order, 2), rows(plain, 1)


def spread(order: Sequence[int], heads: int, start: int = 0) -> tuple[int, ...]:
    """Rows of so many heads, each with its channels in `order`."""
    return tuple(start + head * len(order) + i for head in range(heads) for i in order)
