"""The graph of a decoder: one residual layer after another, over whole sequences or behind a cache.

Shapes
    main      input_ids [batch, sequence] int64   ->   logits [batch, sequence, vocabulary]
    prefill   input_ids [1, tokens] int64, lengths [1] int32, and for every layer i
              key_i, value_i [1, capacity, kv_heads, head_dim], written in place   ->   logits [1, vocabulary]
              or, of a layer without attention, the states that `mixers` names
    decode    the same with one token
    decode_slots    input_ids [slots, 1], lengths [slots], key_i, value_i [slots, capacity, kv_heads, head_dim]
              ->   logits [slots, vocabulary]
    with_past input_ids, position_ids [batch, tokens], attention_mask [batch, total] int64, and for every layer i
              past_key_values.{i}.key, .value [batch, kv_heads, past, head_dim], total = past + tokens
              ->   logits [batch, tokens, vocabulary], present.{i}.key, .value [batch, kv_heads, total, head_dim]
    Attention over latents (`Latent`) has key_i alone, of one head: its keys are its values.
    `lengths` says how many positions of the caches are filled before the call; logits are those of the last token. A
    length of -1 is a slot that takes no part: nothing is written there, and its logits mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import tvm
from tvm import relax

from ..builder import ModelBuilder
from . import alibi, latent, layer_embeddings, streams, weights
from .config import DecoderConfig, Layer, Rope
from .feed_forward import feed_forward
from .head_norms import head_norm
from .mixers import mix
from .mixture import mixed, names_of
from .rope import tables

PAST = "past_key_values"  # as torch's exporters and onnxruntime's tools call these inputs


class Caches(Enum):
    """Where the keys and values of earlier tokens are."""

    NONE = "there are none"
    IN_PLACE = "in inputs to which those of the new tokens are written"
    RETURNED = "in inputs, and in outputs with those of the new tokens behind them: what other engines take"


@dataclass
class _Step:
    """What all layers of one function share."""

    c: DecoderConfig
    m: ModelBuilder
    rows: tuple[tvm.ir.Expr | int, tvm.ir.Expr | int]  # batch, tokens
    positions: relax.Var  # [tokens] or, behind a cache, [batch, tokens]
    lengths: relax.Var | None = None  # before the call; None without a cache
    filled: relax.Var | None = None  # after it
    shown: relax.Var | None = None  # [batch, total]: keys that are no padding, where caches are returned
    present: dict[str, relax.Var] = field(default_factory=dict)  # the caches to return
    read: dict[int, list[relax.Expr]] = field(default_factory=dict)  # keys and values that attention reads, by layer

    def heads(self, x: relax.Expr, count: int) -> relax.Var:
        return self.m.emit(relax.op.reshape(x, (*self.rows, count, self.c.head_size)))

    def normed(self, x: relax.Expr, name: str) -> relax.Var:
        return weights.norm(self.c, self.m, x, name, self.c.hidden)

    def scaled(self, x: relax.Var, factor: float | None) -> relax.Var:
        return x if factor is None else self.m.emit(relax.op.multiply(x, relax.const(factor, "float32")))


def define(c: DecoderConfig, m: ModelBuilder, *, caches: Caches, last: bool) -> Mapping[str, relax.Expr]:
    """The function of which `m` has the inputs, `last` with logits of the last token alone."""
    step = _step(c, m, caches)
    table = m.weight(f"{c.names.embedding}.weight", (c.vocabulary, c.embedding_width or c.hidden))
    x = _embedded(step, table)
    bias = alibi.bias(c, m, _key_count(step), c.alibi) if c.alibi else None
    by_layer = layer_embeddings.by_layer(c, m, x) if c.layer_embeddings else None
    xs = streams.spread(c, m, x) if c.streams else []
    for index in range(c.layers):
        if c.streams:
            xs = _streamed(step, xs, index, by_layer)
            continue
        x = _layer(replace(step, c=c.at(index)), x, index, bias)
        if by_layer is not None:
            x = layer_embeddings.added(c, m, x, by_layer, index)
        if c.layer_scale:
            by = m.weight(f"{c.names.layer.format(index)}.{c.layer_scale}", (1,), scale=0.1, offset=1.0)
            x = m.emit(relax.op.multiply(x, by))
    batch, tokens = step.rows
    x = streams.united(c, m, xs) if c.streams else x
    m.layer = c.names.norm
    if last:
        if not isinstance(tokens, int) or tokens > 1:
            x = m.emit(relax.op.strided_slice(x, axes=[1], begin=[tokens - 1], end=[tokens]))
        one = (1,) if caches is Caches.RETURNED else ()  # other engines want the token's axis
        x = m.emit(relax.op.reshape(x, (batch, *one, c.hidden)))
    if c.names.norm:
        x = step.normed(x, c.names.norm)
    m.layer = c.names.head
    if c.embedding_width not in (None, c.hidden):
        x = m.linear(x, c.names.project_out, c.hidden, c.embedding_width, bias=False)
    name = f"{c.names.head}.weight"
    head = table if c.tied else m.weight(name, (c.vocabulary, c.embedding_width or c.hidden))
    more = [m.weight(f"{c.names.head}.bias", (c.vocabulary,), scale=0.1)] if c.head_bias else []
    logits = step.scaled(m.op("linear", x, head, *more, layout="nk", n=c.vocabulary), c.logit_scale)
    if c.logit_softcap is not None:
        soft = m.emit(relax.op.tanh(step.scaled(logits, 1 / c.logit_softcap)))
        logits = step.scaled(soft, c.logit_softcap)
    return {"logits": logits, **step.present}


def _step(c: DecoderConfig, m: ModelBuilder, caches: Caches) -> _Step:
    batch, tokens = (int(d) if isinstance(d, tvm.tirx.IntImm) else d for d in m.inputs["input_ids"].ty.shape.values)
    if caches is Caches.RETURNED:
        total = m.inputs[f"{PAST}.0.key"].ty.shape.values[2] + tokens
        shown = m.matched(m.inputs["attention_mask"], (batch, total))
        return _Step(c, m, (batch, tokens), m.inputs["position_ids"], shown=shown)
    if caches is Caches.NONE:
        return _Step(c, m, (batch, tokens), m.emit(relax.op.arange(0, tokens, 1, "int64")))
    lengths = m.inputs["lengths"]
    new = m.emit(relax.op.expand_dims(m.emit(relax.op.arange(0, tokens, 1, "int32")), 0))
    positions = m.emit(relax.op.add(m.emit(relax.op.expand_dims(lengths, 1)), new))
    last = m.emit(relax.op.strided_slice(positions, axes=[1], begin=[tokens - 1], end=[tokens]))
    last = m.emit(relax.op.reshape(last, (batch,)))
    filled = m.emit(relax.op.add(last, relax.const(1, "int32")))
    if not isinstance(batch, int):  # the position of a slot that takes no part is read, too
        positions = m.emit(relax.op.maximum(positions, relax.const(0, "int32")))
    return _Step(c, m, (batch, tokens), positions, lengths, filled)


def _embedded(step: _Step, table: relax.Var) -> relax.Var:
    c, m = step.c, step.m
    m.layer = c.names.embedding
    x = m.op("embedding", m.inputs["input_ids"], table, layout="nk", n=c.vocabulary)
    x = step.scaled(x, c.embedding_scale)
    if c.embedding_width not in (None, c.hidden):
        x = m.linear(x, c.names.project_in, c.embedding_width, c.hidden, bias=False)
    if c.position_offset is not None:
        rows = c.positions + c.position_offset
        stored = m.weight(f"{c.names.positions}.weight", (rows, c.hidden))
        m.layer = c.names.positions
        at = step.positions
        if c.position_offset:
            at = m.emit(relax.op.add(at, relax.const(c.position_offset, str(at.ty.dtype))))
        x = m.emit(relax.op.add(x, m.op("embedding", at, stored, layout="nk", n=rows)))
    if c.names.embedding_norm:
        x = step.normed(x, c.names.embedding_norm)
    return x


def _layer(step: _Step, x: relax.Var, index: int, bias: relax.Var | None) -> relax.Var:
    c, m, names = step.c, step.m, step.c.names
    layer = names.layer.format(index)

    def normed(y: relax.Var, name: str) -> relax.Var:
        return step.normed(y, f"{layer}.{name}") if name else y

    def added(y: relax.Var, onto: relax.Var) -> relax.Var:
        return m.emit(relax.op.add(step.scaled(y, c.residual_scale), onto))

    kind = c.layer(index)
    m.layer = f"{layer}.{names.attention}"
    read = x if c.norm_behind else normed(x, names.attention_norm)
    if not kind.attends:
        return added(_fed(step, read, x, index, layer), x)
    found = mix(m, c, kind.mixer, read, index, step.lengths) if kind.mixer else None
    if found is None or kind.beside:
        m.layer = f"{layer}.{names.attention}"
        attended = _latent(step, read, index, layer) if c.latent else _attention(step, read, index, layer, bias)
        attended = step.scaled(attended, c.attention_scale)
        found = attended if found is None else m.emit(relax.op.add(found, attended))
    attended = normed(found, names.attention_post_norm)
    onto = added(attended, x)
    if c.streams:
        onto = streams.beside_attention(c, m, onto, read, layer)
    if not kind.feeds:
        return onto
    m.layer = f"{layer}.{names.ffn}"
    if c.norm_behind:
        read = onto = normed(onto, names.attention_norm)
    elif c.parallel:
        read = normed(x, names.ffn_norm) if names.ffn_norm else read
    else:
        read = normed(onto, names.ffn_norm)
    out = added(normed(_fed(step, read, onto, index, layer), names.ffn_post_norm), onto)
    return normed(out, names.ffn_norm) if c.norm_behind else out


def _streamed(step: _Step, xs: list[relax.Var], index: int, by_layer: relax.Var | None) -> list[relax.Var]:
    """The streams behind layer `index`, which reads the active one."""
    c, m = step.c, step.m
    assert c.streams is not None
    layer = c.names.layer.format(index)
    expected = streams.predicted(c, m, xs, layer)
    y = _layer(replace(step, c=c.at(index)), expected[c.streams.active], index, None)
    xs = streams.corrected(c, m, expected, y, layer)
    if by_layer is None:
        return xs
    brought = layer_embeddings.brought(c, m, streams.active(c, m, xs, layer), by_layer, index)
    return [xs[0], *(m.emit(relax.op.add(x, brought)) for x in xs[1:])]


def _fed(step: _Step, x: relax.Var, stream: relax.Var, index: int, layer: str) -> relax.Var:
    """What one feed-forward, or experts, of layer `index` make of x, which is the residual `stream` behind a norm."""
    c, m, mixture = step.c, step.m, step.c.mixture_of(index)
    if mixture is None:
        found = feed_forward(c, m, x, layer, c.layer(index).sparsity)
    elif mixture.parallel:
        names = names_of(m, mixture, layer)
        found = step.normed(feed_forward(c, m, x, layer), f"{layer}.{names.feed_forward_post_norm}")
        chosen = mixed(c, mixture, m, step.normed(stream, f"{layer}.{names.norm}"), layer, routed_by=stream)
        found = m.emit(relax.op.add(found, step.normed(chosen, f"{layer}.{names.post_norm}")))
    else:
        found = mixed(c, mixture, m, x, layer)
    return step.scaled(found, c.down_scale)


def _attention(step: _Step, x: relax.Var, index: int, layer: str, bias: relax.Var | None) -> relax.Var:
    """The output projection of the attention that layer `index` computes of x [batch, tokens, hidden]."""
    c, m, kind = step.c, step.m, step.c.layer(index)
    columns = c.query_width + kind.projected * c.key_width
    stored = weights.query_key_value(c, m, layer, kind)
    joined = m.op("linear", x, *stored, layout=c.names.layout, n=columns)
    if c.clip is not None:
        most, least = (relax.const(bound, "float32") for bound in (c.clip, -c.clip))
        joined = m.emit(relax.op.maximum(m.emit(relax.op.minimum(joined, most)), least))
    attrs: dict[str, object] = {
        "num_heads": c.heads,
        "num_kv_heads": c.key_heads,
        "head_dim": c.head_size,
        "scale": c.scale if c.scale is not None else c.head_size**-0.5,
        "causal": True,
    }
    attrs |= {"window": kind.window} if kind.window is not None else {}
    attrs |= {"softcap": c.softcap} if c.softcap is not None else {}
    extras = [bias] if bias is not None else []
    attrs |= {"has_bias": True} if extras else {}
    if c.names.sinks:
        extras.append(m.weight(f"{layer}.{c.names.sinks}", (c.heads,), scale=1.0))
        attrs |= {"has_sinks": True}
    if step.shown is None and step.lengths is None and c.query_key_norm is None:
        joined = joined if kind.rope is None else _turned(step, joined, kind.rope)
        heads = m.op("attention", joined, *extras, packed=True, **attrs)
    else:
        shown = [] if step.shown is None else [step.shown]
        filled = [] if step.filled is None else [step.filled]
        attrs |= {name: True for name, given in (("has_key_mask", shown), ("has_lengths", filled)) if given}
        heads = m.op("attention", *_query_keys_values(step, joined, index, layer), *shown, *extras, *filled, **attrs)
    if c.names.head_gate:
        gate = m.linear(x, f"{layer}.{c.names.head_gate}", c.hidden, c.heads, bias=False)
        gate = m.emit(relax.op.expand_dims(m.emit(relax.op.sigmoid(gate)), 3))
        heads = m.emit(relax.op.multiply(heads, gate))
    whole = m.emit(relax.op.reshape(heads, (*step.rows, c.query_width)))
    if c.query_gate:
        gate = m.op("linear", x, weights.query_gate(c, m, layer), layout="nk", n=c.query_width)
        whole = m.emit(relax.op.multiply(whole, m.emit(relax.op.sigmoid(gate))))
    if c.names.output_norm:
        whole = weights.norm(c, m, whole, f"{layer}.{c.names.output_norm}", c.query_width)
    return m.linear(
        whole, f"{layer}.{c.names.output}", c.query_width, c.hidden, layout=c.names.layout, bias=c.output_bias
    )


def _latent(step: _Step, x: relax.Var, index: int, layer: str) -> relax.Var:
    """The same of attention whose keys and values are one vector of a token: its key is its value, too."""
    c, m, kind = step.c, step.m, step.c.layer(index)
    assert c.latent is not None and kind.rope is not None, "latents have channels that positions turn"
    q, key = latent.projected(c, m, x, layer, kind.rope, step.positions, _tables(step, kind.rope))
    attrs = {"num_heads": c.heads, "num_kv_heads": 1, "head_dim": c.latent.width, "scale": c.scale, "causal": True}
    if step.shown is not None:
        q, key = _with_past(step, [q, key], index)
        heads = m.op("attention", q, key, key, step.shown, has_key_mask=True, **attrs)
    elif step.lengths is None:
        heads = m.op("attention", q, key, key, **attrs)
    else:
        key = m.op("kv_append", m.inputs[f"key_{index}"], key, step.lengths)
        heads = m.op("attention", q, key, key, step.filled, has_lengths=True, **attrs)
    whole = latent.values(c, m, heads, layer)
    return m.linear(whole, f"{layer}.{c.names.output}", c.heads * c.latent.value, c.hidden, bias=c.output_bias)


def _turned(step: _Step, joined: relax.Var, rope: Rope) -> relax.Var:
    """The joined row with its queries and keys rotated."""
    c, m = step.c, step.m
    heads = step.heads(joined, c.heads + 2 * c.key_heads)
    count = c.heads + c.key_heads
    heads = m.op("rotary", heads, step.positions, *_tables(step, rope), interleaved=False, turned=count)
    return m.emit(relax.op.reshape(heads, (*step.rows, c.query_width + 2 * c.key_width)))


def _query_keys_values(step: _Step, joined: relax.Var, index: int, layer: str) -> list[relax.Expr]:
    """What attention reads of the joined row and of what is kept: its own keys and values, or an earlier layer's."""
    kind = step.c.layer(index)
    if kind.keys_of is not None:
        return [*_parts(step, joined, layer, kind), *step.read[kind.keys_of]]
    if step.shown is not None:
        found = _with_past(step, _parts(step, joined, layer, kind), index)
    elif step.lengths is None:
        found = _parts(step, joined, layer, kind)
    else:
        found = _behind_caches(step, joined, index, layer)
    step.read[index] = found[1:]
    return found


def _behind_caches(step: _Step, joined: relax.Var, index: int, layer: str) -> list[relax.Expr]:
    """Queries of the joined row, and the caches with its keys and values."""
    c, m, kind = step.c, step.m, step.c.layer(index)
    caches = [m.inputs[f"{name}_{index}"] for name in ("key", "value")]
    if c.query_key_norm is not None:
        q, *new = _parts(step, joined, layer, kind)
        return [q, *(m.op("kv_append", cache, part, step.lengths) for cache, part in zip(caches, new))]
    heads = step.heads(joined, c.heads + 2 * c.key_heads)
    tables = [] if kind.rope is None else _tables(step, kind.rope)
    found = m.op("append_heads", heads, *caches, step.lengths, *tables)
    return [m.emit(relax.TupleGetItem(found, position)) for position in range(3)]


def _with_past(step: _Step, parts: list[relax.Var], index: int) -> list[relax.Var]:
    """Queries, and all keys (and values) [batch, total, kv_heads, head_dim]; these are kept to be returned."""
    m = step.m
    found = parts[:1]
    for name, new in zip(("key", "value"), parts[1:]):
        past = m.inputs[f"{PAST}.{index}.{name}"]
        new = m.emit(relax.op.permute_dims(new, [0, 2, 1, 3]))
        step.present[f"present.{index}.{name}"] = whole = m.emit(relax.op.concat([past, new], axis=2))
        found.append(m.emit(relax.op.permute_dims(whole, [0, 2, 1, 3])))
    return found


def _parts(step: _Step, joined: relax.Var, layer: str, kind: Layer) -> list[relax.Var]:
    """Queries, keys and values [batch, tokens, heads, head_dim] of the joined row, normalised and rotated.

    A layer that reads another's has queries alone.
    """
    c, m = step.c, step.m
    ends = [c.query_width + i * c.key_width for i in range(kind.projected + 1)]
    parts = [
        m.emit(relax.op.strided_slice(joined, axes=[2], begin=[begin], end=[end]))
        for begin, end in zip([0, *ends], ends)
    ]
    stems = [f"{layer}.{name}" if name else "" for name in (c.names.query_norm, c.names.key_norm)]
    found = [_turned_heads(step, part, stem, kind) for part, stem in zip(parts, stems)]
    if kind.keys_of is None:
        values = step.heads(parts[-1], c.key_heads)
        found.append(m.op("rms_norm", values, m.ones(c.head_size), eps=c.eps) if c.value_norm else values)
    return found


def _turned_heads(step: _Step, part: relax.Var, stem: str, kind: Layer) -> relax.Var:
    """Queries or keys [batch, tokens, width] by head, behind the norm `stem` and their rotation."""
    c, m = step.c, step.m
    by = c.query_key_norm if stem else None
    if by == "all":
        part = head_norm(c, m, part, stem, kind.rope)
    heads = step.heads(part, int(part.ty.shape.values[-1]) // c.head_size)
    of_heads = by not in (None, "all")
    if of_heads and not c.norm_turned:
        heads = head_norm(c, m, heads, stem, kind.rope)
    if kind.rope is not None:
        heads = m.op("rotary", heads, step.positions, *_tables(step, kind.rope), interleaved=False)
    return head_norm(c, m, heads, stem, kind.rope) if of_heads and c.norm_turned else heads


def _tables(step: _Step, rope: Rope) -> list[relax.Var]:
    """cos and sin of a rotation, kept with the weights; all functions of an artifact share them."""
    c, m = step.c, step.m
    ropes = list(dict.fromkeys(layer.rope for layer in c.pattern if layer.rope is not None))
    suffix = f".{ropes.index(rope)}" if len(ropes) > 1 else ""
    names = [f"rotary.{part}{suffix}" for part in ("cos", "sin")]
    values = tables(rope, c.positions, c.turned_width)
    return [m.table(name, value) for name, value in zip(names, values)]


def _key_count(step: _Step) -> tvm.ir.Expr | int:
    """How many keys attention sees at most."""
    if step.lengths is not None:
        return step.m.inputs["key_0"].ty.shape.values[1]
    return step.rows[1] if step.shown is None else step.shown.ty.shape.values[1]
