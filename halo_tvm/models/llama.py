"""Llama: pre-norm decoder with RMS norm, rotary positions, grouped-query attention and a gated feed-forward.

Shapes
    input_ids [batch, sequence] int64   ->   logits [batch, sequence, vocabulary]
References
    arXiv:2302.13971, arXiv:2407.21783
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from ..errors import UnsupportedModel
from ..imported import InputSpec
from ..relay_ops.rotary import rotary_tables
from ._builder import ModelBuilder
from ._definition import Family, Interface


@dataclass(frozen=True)
class LlamaConfig:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    positions: int
    theta: float
    scaling: tuple[float, float, float, float] | None  # llama3: factor, low, high frequency factor, original positions
    tied: bool
    attention_bias: bool
    eps: float


def interface(config: LlamaConfig) -> Interface:
    ids = InputSpec("input_ids", ("batch", "sequence"), "int64", values=(0, config.vocabulary - 1))
    # Activations are planned for the largest declared size: longer prompts are declared with --shape.
    longest = min(config.positions, 2048)
    return Interface((ids,), {"batch": (1, 4), "sequence": (1, longest)}, {"batch": 1, "sequence": 128})


def define(config: LlamaConfig, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    c = config
    batch, sequence = m.dim("batch"), m.dim("sequence")
    embedding = m.weight("model.embed_tokens.weight", (c.vocabulary, c.hidden))
    m.layer = "model.embed_tokens"
    x = m.op("embedding", m.inputs["input_ids"], embedding, layout="nk", n=c.vocabulary)
    positions = m.emit(relax.op.arange(0, sequence, 1, "int64"))
    longest = interface(c).ranges["sequence"][1]
    tables = rotary_tables(longest, c.head_dim, c.theta, c.scaling)
    cos, sin = (m.table(f"rotary.{name}", values) for name, values in zip(("cos", "sin"), tables))
    for i in range(c.layers):
        layer = f"model.layers.{i}"
        m.layer = f"{layer}.self_attn"
        normed = m.rms_norm(x, f"{layer}.input_layernorm", c.hidden, c.eps)

        def project(part: str, heads: int, normed: relax.Var = normed, layer: str = layer) -> relax.Var:
            y = m.linear(normed, f"{layer}.self_attn.{part}_proj", c.hidden, heads * c.head_dim, bias=c.attention_bias)
            return m.emit(relax.op.reshape(y, (batch, sequence, heads, c.head_dim)))

        q, k, v = project("q", c.heads), project("k", c.kv_heads), project("v", c.kv_heads)
        q, k = (m.op("rotary", y, positions, cos, sin, interleaved=False) for y in (q, k))
        heads = m.op(
            "attention",
            q,
            k,
            v,
            num_heads=c.heads,
            num_kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            scale=c.head_dim**-0.5,
            causal=True,
        )
        joined = m.emit(relax.op.reshape(heads, (batch, sequence, c.heads * c.head_dim)))
        projected = m.linear(joined, f"{layer}.self_attn.o_proj", c.heads * c.head_dim, c.hidden, bias=c.attention_bias)
        x = m.emit(relax.op.add(projected, x))
        m.layer = f"{layer}.mlp"
        normed = m.rms_norm(x, f"{layer}.post_attention_layernorm", c.hidden, c.eps)
        weights = [
            *m.linear_weights(f"{layer}.mlp.gate_proj", c.hidden, c.feed_forward, bias=False),
            *m.linear_weights(f"{layer}.mlp.up_proj", c.hidden, c.feed_forward, bias=False),
            *m.linear_weights(f"{layer}.mlp.down_proj", c.feed_forward, c.hidden, bias=False),
        ]
        ffn = m.op("ffn", normed, *weights, activation="silu", gated=True, bias=False, layout="nk")
        x = m.emit(relax.op.add(ffn, x))
    m.layer = "model.norm"
    normed = m.rms_norm(x, "model.norm", c.hidden, c.eps)
    m.layer = "lm_head"
    head = embedding if c.tied else m.weight("lm_head.weight", (c.vocabulary, c.hidden))
    return {"logits": m.op("linear", normed, head, layout="nk", n=c.vocabulary)}


def from_huggingface(config: Mapping[str, object]) -> LlamaConfig:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else repr(rope)
    activation = config.get("hidden_act", "silu")
    if kind not in ("default", "llama3") or activation != "silu" or config.get("mlp_bias"):
        raise UnsupportedModel(
            "expected a Llama config with rope type default or llama3, hidden_act silu and no mlp_bias, found "
            f"rope {kind!r}, hidden_act {activation!r}, mlp_bias {config.get('mlp_bias')!r}: "
            "export the model to ONNX instead"
        )
    scaling = None
    if kind == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling = tuple(float(rope[key]) for key in keys)
        if not scaling[1] < scaling[2]:
            raise ValueError(f"{keys[1]} {scaling[1]} is not below {keys[2]} {scaling[2]}")
    return LlamaConfig(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        feed_forward=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        positions=int(config["max_position_embeddings"]),
        theta=float(config.get("rope_theta") or rope.get("rope_theta", 10000.0)),
        scaling=scaling,
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        eps=float(config.get("rms_norm_eps", 1e-6)),
    )


LLAMA = Family(
    name="llama",
    presets={},
    interface=interface,
    define=define,
    huggingface_types=("llama",),
    tied={"model.embed_tokens.weight": "lm_head.weight"},
    even=("head_dim",),  # rotary positions turn halves of a head
    from_huggingface=from_huggingface,
)
