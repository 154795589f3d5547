"""What the parts of T5 share: sizes, the relative position bias, projections to heads, the feed-forward network.

T5 1.0 has a ReLU and a head tied to the table, scaled by hidden**-0.5; T5 1.1, FLAN-T5 and mT5 have a gated GELU and
usually a head of their own; UMT5 has a position bias of every layer. Scores are not scaled; norms have no bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..errors import UnsupportedModel
from .builder import ModelBuilder, rows_of

HUGGINGFACE_TYPES = ("t5", "mt5", "umt5")
LONGEST = 512  # of what activations are planned for by default; positions have no end in T5
# Random query and key weights are scaled so that the unscaled scores of 64 dimensions spread by about 2.
_QK_GAIN = 0.5
_ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu"}


@dataclass(frozen=True)
class T5Config:
    layers: int = 6
    decoder_layers: int = 6
    hidden: int = 512
    heads: int = 8
    head_dim: int = 64
    feed_forward: int = 2048
    vocabulary: int = 32128
    buckets: int = 32
    distance: int = 128
    activation: str = "relu"
    gated: bool = False
    tied: bool = True  # the head is the token table, over hidden**-0.5
    eps: float = 1e-6
    bias_by_layer: bool = False  # every layer has a position bias of its own


_BASE = T5Config(layers=12, decoder_layers=12, hidden=768, heads=12, feed_forward=3072)
PRESETS = {
    "t5-small": T5Config(),
    "t5-base": _BASE,
    "flan-t5-small": T5Config(
        layers=8, decoder_layers=8, heads=6, feed_forward=1024, activation="gelu_tanh", gated=True, tied=False
    ),
    "flan-t5-base": T5Config(
        layers=12,
        decoder_layers=12,
        hidden=768,
        heads=12,
        feed_forward=2048,
        activation="gelu_tanh",
        gated=True,
        tied=False,
    ),
}


def presets(part: str) -> dict[str, T5Config]:
    """The presets under the names of a part: `t5-small` becomes `t5-small-decoder`."""
    return {f"{name}-{part}": config for name, config in PRESETS.items()}


def from_huggingface(config: Mapping[str, object]) -> T5Config:
    word = str(config.get("feed_forward_proj", "relu"))
    gated, _, kind = word.rpartition("-")
    # transformers reads gated-gelu, as checkpoints of T5 1.1 say it, as the approximation by tanh.
    activation = "gelu_tanh" if word == "gated-gelu" else _ACTIVATIONS.get(kind)
    if activation is None or gated not in ("", "gated"):
        raise UnsupportedModel(
            f"expected a T5 config with feed_forward_proj relu, gelu, gated-gelu or gated-silu, found {word!r}: "
            "export the model to ONNX instead"
        )
    layers = int(config["num_layers"])
    # Only T5 1.0 scales what its head reads. Newer transformers say so in a word of its own, and tie in any case.
    tied = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    parsed = T5Config(
        layers=layers,
        decoder_layers=int(config.get("num_decoder_layers") or layers),
        hidden=int(config["d_model"]),
        heads=int(config["num_heads"]),
        head_dim=int(config["d_kv"]),
        feed_forward=int(config["d_ff"]),
        vocabulary=int(config["vocab_size"]),
        buckets=int(config.get("relative_attention_num_buckets", 32)),
        distance=int(config.get("relative_attention_max_distance", 128)),
        activation=activation,
        gated=gated == "gated",
        tied=bool(tied) and config["model_type"] != "mt5",
        eps=float(config.get("layer_norm_epsilon", 1e-6)),
        bias_by_layer=config["model_type"] == "umt5",
    )
    if parsed.buckets % 4 or not parsed.buckets // 2 < parsed.distance <= 1 << 16:
        raise ValueError(f"{parsed.buckets} buckets, no multiple of 4, or none for distances up to {parsed.distance}")
    return parsed


def table_of(c: T5Config, m: ModelBuilder) -> relax.Var:
    """The token table, under whichever of its names the checkpoint keeps it."""
    names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    name = next((n for n in names if m.weights.has(n)), names[0])
    # Of the order of 1, as trained ones are: the residual stream is not normalised behind it.
    return m.weight(name, (c.vocabulary, c.hidden), scale=1.0)


def bucket(delta: np.ndarray, buckets: int, distance: int, both_ways: bool) -> np.ndarray:
    """The bucket of each key position minus query position: exact when near, logarithmic up to `distance`."""
    found = np.zeros_like(delta)
    if both_ways:
        buckets //= 2
        found += np.where(delta > 0, buckets, 0)
        delta = np.abs(delta)
    else:
        delta = np.maximum(-delta, 0)
    exact = buckets // 2
    steps = np.log(np.maximum(delta, exact) / exact) / math.log(distance / exact) * (buckets - exact)
    # 1e-6: a quotient that is a whole number in exact arithmetic stays one.
    far = np.minimum(exact + np.floor(steps + 1e-6).astype(np.int64), buckets - 1)
    return found + np.where(delta < exact, delta, far)


def position_biases(
    c: T5Config, m: ModelBuilder, part: str, queries: relax.Expr, keys: tvm.ir.Expr, both_ways: bool
) -> list[relax.Var]:
    """The bias [1, heads, queries, keys] of each layer, one and the same unless they differ."""
    count = c.layers if part == "encoder" else c.decoder_layers
    if c.bias_by_layer:
        return [_position_bias(c, m, f"{part}.block.{i}", queries, keys, both_ways) for i in range(count)]
    return [_position_bias(c, m, f"{part}.block.0", queries, keys, both_ways)] * count


def _position_bias(
    c: T5Config, m: ModelBuilder, block: str, queries: relax.Expr, keys: tvm.ir.Expr, both_ways: bool
) -> relax.Var:
    """The bias [1, heads, queries, keys] whose table is in `block`; `queries` int64 [queries, 1] are their positions.

    The table of buckets becomes one of distances, a weight made once; beyond `distance` every value is the last one's.
    """
    reach = np.arange(-c.distance, c.distance + 1 if both_ways else 1)
    m.layer = f"{block if c.bias_by_layer else block.partition('.')[0]}.position_bias"
    name = f"{block}.layer.0.SelfAttention.relative_attention_bias.weight"
    table = m.weight(name, (c.buckets, c.heads), scale=0.5)
    ids = relax.const(bucket(reach, c.buckets, c.distance, both_ways), "int64")
    by_distance = m.op("embedding", ids, table, layout="nk", n=c.buckets)

    def number(value: int) -> relax.Expr:
        return relax.const(value, "int64")

    delta = m.emit(relax.op.subtract(positions(m, 0, keys, axis=0), queries))
    near = m.emit(relax.op.minimum(m.emit(relax.op.maximum(delta, number(-c.distance))), number(int(reach[-1]))))
    places = m.emit(relax.op.add(near, number(c.distance)))
    bias = m.op("embedding", places, by_distance, layout="nk", n=len(reach))
    return m.emit(relax.op.expand_dims(m.emit(relax.op.permute_dims(bias, [2, 0, 1])), 0))


def positions(m: ModelBuilder, begin: tvm.ir.Expr | int, end: tvm.ir.Expr, *, axis: int) -> relax.Var:
    """The integers begin..end, as a row [1, n] (axis 0) or a column [n, 1] (axis 1)."""
    return m.emit(relax.op.expand_dims(m.emit(relax.op.arange(begin, end, 1, "int64")), axis))


def project(c: T5Config, m: ModelBuilder, x: relax.Expr, name: str) -> relax.Var:
    """x [batch, length, hidden] as heads [batch, length, heads, head_dim]; `name` ends in q, k or v."""
    y = m.linear(x, name, c.hidden, c.heads * c.head_dim, bias=False, gain=_gain(name))
    return m.emit(relax.op.reshape(y, (*rows_of(x), c.heads, c.head_dim)))


def project_joined(c: T5Config, m: ModelBuilder, x: relax.Expr, layer: str) -> relax.Var:
    """x [batch, length, hidden] as the heads of queries, then keys, then values [batch, length, 3 * heads, head_dim].

    The weight is the one that `fuse_projections` makes of the three where attention reads them at once.
    """
    width = c.heads * c.head_dim
    scale = 1 / math.sqrt(c.hidden)
    names = [f"{layer}.{part}.weight" for part in "qkv"]
    for name in names:
        m.source(name, (width, c.hidden), scale=scale * _gain(name.removesuffix(".weight")))
    stored = m.derived("+".join(names), "concat", names, (3 * width, c.hidden), axis=0)
    y = m.op("linear", x, stored, layout="nk", n=3 * width)
    return m.emit(relax.op.reshape(y, (*rows_of(x), 3 * c.heads, c.head_dim)))


def _gain(name: str) -> float:
    return 1.0 if name.endswith(".v") else _QK_GAIN


def attend(c: T5Config, m: ModelBuilder, x: relax.Expr, name: str, args: list[relax.Expr], **attrs: bool) -> relax.Var:
    """x plus the projected attention over `args`: q, k, v, then mask, bias and lengths where `attrs` say so."""
    heads = m.op("attention", *args, num_heads=c.heads, num_kv_heads=c.heads, head_dim=c.head_dim, scale=1.0, **attrs)
    joined = m.emit(relax.op.reshape(heads, (*rows_of(x), c.heads * c.head_dim)))
    return m.emit(relax.op.add(m.linear(joined, f"{name}.o", c.heads * c.head_dim, c.hidden, bias=False), x))


def feed_forward(c: T5Config, m: ModelBuilder, x: relax.Expr, layer: str) -> relax.Var:
    """x plus the feed-forward network of its norm."""
    m.layer = f"{layer}.ffn"
    name = f"{layer}.DenseReluDense"
    normed = m.rms_norm(x, f"{layer}.layer_norm", c.hidden, c.eps)
    weights = [
        weight
        for part in (("wi_0", "wi_1") if c.gated else ("wi",))
        for weight in m.linear_weights(f"{name}.{part}", c.hidden, c.feed_forward, bias=False)
    ] + m.linear_weights(f"{name}.wo", c.feed_forward, c.hidden, bias=False)
    ffn = m.op("ffn", normed, *weights, activation=c.activation, gated=c.gated, bias=False, layout="nk")
    return m.emit(relax.op.add(ffn, x))
