"""The graphs of an encoder-decoder: what reads a text or a sound, and what answers it.

Shapes, for every decoder layer i
    main      input_ids, attention_mask [batch, source], decoder_input_ids [batch, tokens] int64
              ->   logits [batch, tokens, vocabulary]
    encode    input_ids, attention_mask [batch, sequence]   ->   last_hidden_state [batch, sequence, hidden]
    cross     last_hidden_state   ->   cross_key_i, cross_value_i [batch, source, heads, head_dim]
    decode    input_ids [1, 1] int64, lengths [1] int32, cross_key_i, cross_value_i [1, source, heads, head_dim], and
              key_i, value_i [1, capacity, heads, head_dim], written in place   ->   logits [1, vocabulary]
    A sound is input_features [batch, bands, 2 * positions] float32, without a mask.
    attention_mask defaults to ones; `lengths` says how many positions of the caches are filled before the call
References
    arXiv:1706.03762; arXiv:1910.13461 (BART); arXiv:2212.04356 (Whisper)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..builder import ModelBuilder, rows_of
from .config import EncoderDecoderConfig

# Random query and key weights are scaled so that scores have a standard deviation near 2: attention is not flat.
_QK_GAIN = 1.4
_HEADS = ("lm_head", "proj_out")
_SHARED = ("shared", "encoder.embed_tokens", "decoder.embed_tokens", *_HEADS)  # names of the one table


@dataclass
class _Side:
    """The encoder, or the decoder."""

    c: EncoderDecoderConfig
    m: ModelBuilder
    part: str  # the beginning of its tensors' names
    heads: int
    feed_forward: int

    def layer(self, index: int) -> str:
        return f"{self.part}.layers.{index}"

    def norm(self, x: relax.Expr, name: str) -> relax.Var:
        return self.m.layer_norm(x, name, self.c.hidden, self.c.eps)

    def front(self, x: relax.Var, name: str) -> relax.Var:
        """What the next part of a layer reads."""
        return self.norm(x, name) if self.c.norm_front else x

    def behind(self, x: relax.Var, name: str) -> relax.Var:
        """The residual stream behind that part."""
        return x if self.c.norm_front else self.norm(x, name)

    def split(self, x: relax.Expr, count: int) -> relax.Var:
        """x [batch, length, count * head_dim] as heads."""
        return self.m.emit(relax.op.reshape(x, (*rows_of(x), count, self.c.hidden // self.heads)))

    def joined(self, x: relax.Expr, name: str) -> relax.Var:
        """The queries, keys and values of x in one row [batch, length, 3 * hidden]."""
        m, width = self.m, self.c.hidden
        stems = [f"{name}.{part}_proj" for part in "qkv"]
        weights = [
            m.source(f"{stem}.weight", (width, width), scale=gain / math.sqrt(width))
            for stem, gain in zip(stems, (_QK_GAIN, _QK_GAIN, 1.0))
        ]
        biases = [
            m.source(f"{stem}.bias", (width,), scale=0.1)
            if self.c.key_bias or not stem.endswith(".k_proj")
            else m.kept(f"zeros.{width}", np.zeros(width, np.float32))
            for stem in stems
        ]
        weight = m.derived("+".join(weights), "concat", weights, (3 * width, width), axis=0)
        bias = m.derived("+".join(biases), "concat", biases, (3 * width,), axis=0)
        return m.op("linear", x, weight, bias, layout="nk", n=3 * width)

    def attend(self, x: relax.Expr, name: str, args: list[relax.Expr], **attrs: bool) -> relax.Var:
        """x plus the projected attention over `args`."""
        m, size = self.m, self.c.hidden // self.heads
        kinds = {"num_heads": self.heads, "num_kv_heads": self.heads, "head_dim": size, "scale": size**-0.5}
        found = m.op("attention", *args, **kinds, **attrs)
        whole = m.emit(relax.op.reshape(found, (*rows_of(x), self.c.hidden)))
        return m.emit(relax.op.add(m.linear(whole, f"{name}.out_proj", self.c.hidden, self.c.hidden), x))

    def fed_forward(self, x: relax.Var, layer: str) -> relax.Var:
        m, c = self.m, self.c
        m.layer = f"{layer}.ffn"
        read = self.front(x, f"{layer}.final_layer_norm")
        args = m.linear_weights(f"{layer}.fc1", c.hidden, self.feed_forward)
        args += m.linear_weights(f"{layer}.fc2", self.feed_forward, c.hidden)
        ffn = m.op("ffn", read, *args, activation=c.activation, gated=False, bias=True, layout="nk")
        return self.behind(m.emit(relax.op.add(ffn, x)), f"{layer}.final_layer_norm")

    def embedded(self, ids: relax.Var, table: relax.Var, rows: int, positions: relax.Expr, longest: int) -> relax.Var:
        """The tokens `ids` at `positions`, of which there are `longest`."""
        c, m = self.c, self.m
        m.layer = f"{self.part}.embeddings"
        x = m.op("embedding", ids, table, layout="nk", n=rows)
        if c.embedding_scale is not None:
            x = m.emit(relax.op.multiply(x, relax.const(c.embedding_scale, "float32")))
        tokens_alone = c.norm_tokens and self.part == "decoder"
        x = self.norm(x, f"{self.part}.layernorm_embedding") if tokens_alone else x
        count = longest + c.position_offset
        if c.position_offset:
            positions = m.emit(relax.op.add(positions, relax.const(c.position_offset, "int64")))
        x = m.emit(relax.op.add(x, m.op("embedding", positions, self.places(count), layout="nk", n=count)))
        behind = c.embedding_norm and not tokens_alone
        return self.norm(x, f"{self.part}.layernorm_embedding") if behind else x

    def places(self, count: int) -> relax.Var:
        """The table of `count` positions."""
        c, m, name = self.c, self.m, f"{self.part}.embed_positions.weight"
        if c.sinusoids is None or m.weights.has(name):
            return m.weight(name, (count, c.hidden), scale=0.1)
        half = c.hidden // 2
        fastest = np.exp(np.arange(half) * -(math.log(10000) / ((half - 1) if c.sinusoids.whole else half)))
        angles = np.arange(count)[:, None] * fastest
        table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
        if c.sinusoids.silent is not None and c.sinusoids.silent < count:
            table[c.sinusoids.silent] = 0
        return m.table(f"positions.{count}", table.astype(np.float32))


def encode(c: EncoderDecoderConfig, m: ModelBuilder) -> relax.Var:
    """The states [batch, length, hidden] of the inputs: `input_ids` and `attention_mask`, or `input_features`."""
    side = _Side(c, m, "encoder", c.heads, c.feed_forward)
    mask = m.inputs.get("attention_mask")
    if c.bands:
        x = _heard(side, m.inputs["input_features"])
    else:
        ids = m.inputs["input_ids"]
        positions = m.emit(relax.op.arange(0, rows_of(ids)[1], 1, "int64"))
        x = side.embedded(ids, _table(c, m, "encoder"), c.source_vocabulary, positions, c.positions)
    for i in range(c.layers):
        layer = side.layer(i)
        m.layer = name = f"{layer}.self_attn"
        norm = f"{layer}.self_attn_layer_norm"
        args = [side.joined(side.front(x, norm), name), *([] if mask is None else [mask])]
        x = side.behind(side.attend(x, name, args, packed=True, has_key_mask=mask is not None), norm)
        x = side.fed_forward(x, layer)
    m.layer = "encoder.layer_norm"
    return side.norm(x, "encoder.layer_norm") if c.norm_front else x


def _heard(side: _Side, features: relax.Var) -> relax.Var:
    """Two convolutions over the spectrum [batch, bands, frames], the second with a stride of two, and positions."""
    c, m, x = side.c, side.m, features
    for name, channels, stride in (("conv1", c.bands or 0, 1), ("conv2", c.hidden, 2)):
        m.layer = f"encoder.{name}"
        weight = m.weight(f"encoder.{name}.weight", (c.hidden, channels, 3), scale=1 / math.sqrt(3 * channels))
        bias = m.weight(f"encoder.{name}.bias", (c.hidden,), scale=0.1)
        window = {"layout": "first", "strides": (stride,), "pads": (1, 1), "dilations": (1,), "groups": 1}
        y = m.op("convolution", x, weight, **window)
        x = m.emit(relax.op.nn.gelu(m.emit(relax.op.add(y, m.emit(relax.op.reshape(bias, (1, c.hidden, 1)))))))
    x = m.emit(relax.op.permute_dims(x, [0, 2, 1]))
    table = m.weight("encoder.embed_positions.weight", (c.positions, c.hidden), scale=0.1)
    return m.emit(relax.op.add(x, table))


def cross(c: EncoderDecoderConfig, m: ModelBuilder, states: relax.Expr) -> dict[str, relax.Var]:
    """Keys and values [batch, source, heads, head_dim] of `states`, by the names of the decoder's inputs."""
    side = _decoder(c, m)
    found = {}
    for i in range(c.decoder_layers):
        m.layer = f"{side.layer(i)}.encoder_attn"
        for kind, gain, bias in (("key", _QK_GAIN, c.key_bias), ("value", 1.0, True)):
            y = m.linear(states, f"{m.layer}.{kind[0]}_proj", c.hidden, c.hidden, bias=bias, gain=gain)
            found[f"cross_{kind}_{i}"] = side.split(y, side.heads)
    return found


# The layer's number, and its queries, keys and values in one row -> the arguments of its attention, and its attributes.
Attended = Callable[[int, relax.Var], tuple[list[relax.Expr], dict[str, bool]]]


def decode(
    c: EncoderDecoderConfig,
    m: ModelBuilder,
    ids: relax.Var,
    positions: relax.Expr,
    attended: Attended,
    read: Mapping[str, relax.Expr],
    mask: relax.Expr | None,
) -> relax.Var:
    """Logits [batch, tokens, vocabulary] of `ids` at `positions`.

    `attended` is how a layer sees the answer before them; of the text it sees `read`, hidden where `mask` is 0.
    """
    side = _decoder(c, m)
    table = _table(c, m, "decoder")
    x = side.embedded(ids, table, c.vocabulary, positions, c.answer)
    for i in range(c.decoder_layers):
        layer = side.layer(i)
        m.layer = name = f"{layer}.self_attn"
        norm = f"{name}_layer_norm"
        args, attrs = attended(i, side.joined(side.front(x, norm), name))
        x = side.behind(side.attend(x, name, args, causal=True, **attrs), norm)
        m.layer = name = f"{layer}.encoder_attn"
        norm = f"{name}_layer_norm"
        query = m.linear(side.front(x, norm), f"{name}.q_proj", c.hidden, c.hidden, gain=_QK_GAIN)
        args = [side.split(query, side.heads), read[f"cross_key_{i}"], read[f"cross_value_{i}"]]
        args += [] if mask is None else [mask]
        x = side.behind(side.attend(x, name, args, has_key_mask=mask is not None), norm)
        x = side.fed_forward(x, layer)
    m.layer = "decoder.layer_norm"
    x = side.norm(x, "decoder.layer_norm") if c.norm_front else x
    m.layer = "lm_head"
    name = next((n for n in _HEADS if m.weights.has(f"{n}.weight")), _HEADS[0])
    head = table if c.tied else m.weight(f"{name}.weight", (c.vocabulary, c.hidden))
    more = []
    if m.weights.has("final_logits_bias"):
        bias = m.source("final_logits_bias", (1, c.vocabulary))
        more = [m.derived(f"{bias}:row", "sum", [bias], (c.vocabulary,), axes=[0], keepdims=False)]
    return m.op("linear", x, head, *more, layout="nk", n=c.vocabulary)


def define(c: EncoderDecoderConfig, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    """The function `main`."""
    read = cross(c, m, encode(c, m))
    ids = m.inputs["decoder_input_ids"]
    positions = m.emit(relax.op.arange(0, rows_of(ids)[1], 1, "int64"))
    mask = m.inputs.get("attention_mask")
    return {"logits": decode(c, m, ids, positions, lambda _, row: ([row], {"packed": True}), read, mask)}


def define_decode(c: EncoderDecoderConfig, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    """The function `decode`."""
    lengths, side = m.inputs["lengths"], _decoder(c, m)
    filled = m.emit(relax.op.add(lengths, relax.const(1, "int32")))

    def attended(i: int, row: relax.Var) -> tuple[list[relax.Expr], dict[str, bool]]:
        caches = [m.inputs[f"key_{i}"], m.inputs[f"value_{i}"]]
        found = m.op("append_heads", side.split(row, 3 * side.heads), *caches, lengths)
        return [*(m.emit(relax.TupleGetItem(found, place)) for place in range(3)), filled], {"has_lengths": True}

    position = m.emit(relax.op.astype(m.emit(relax.op.expand_dims(lengths, 1)), "int64"))
    logits = decode(c, m, m.inputs["input_ids"], position, attended, m.inputs, mask=None)
    return {"logits": m.emit(relax.op.reshape(logits, (1, c.vocabulary)))}


def _decoder(c: EncoderDecoderConfig, m: ModelBuilder) -> _Side:
    return _Side(c, m, "decoder", c.decoder_heads, c.decoder_feed_forward)


def _table(c: EncoderDecoderConfig, m: ModelBuilder, part: str) -> relax.Var:
    """The token table of a part, under whichever of its names the checkpoint keeps it."""
    own = f"{part}.embed_tokens"
    names = [own, "shared"] if not c.tied else list(_SHARED) if c.shared else [own, *_HEADS]
    name = next((n for n in names if m.weights.has(f"{n}.weight")), names[0])
    rows = c.vocabulary if part == "decoder" else c.source_vocabulary
    return m.weight(f"{name}.weight", (rows, c.hidden), scale=1 / (c.embedding_scale or 1))
