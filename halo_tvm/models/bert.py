"""BERT: post-norm encoder with token, position and segment embeddings.

Shapes
    input_ids, attention_mask, token_type_ids [batch, sequence] int64   ->   last_hidden_state [batch, sequence, hidden]
    attention_mask defaults to ones, token_type_ids to zeros
References
    arXiv:1810.04805
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from ..errors import UnsupportedModel
from ..imported import InputSpec
from ._definition import Family, Interface
from .builder import ModelBuilder

# Random query and key weights are scaled so that scores have a standard deviation near 2: attention is not flat.
_QK_GAIN = 1.4


@dataclass(frozen=True)
class BertConfig:
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30522
    positions: int = 512
    segments: int = 2
    feed_forward: int = 3072
    activation: str = "gelu"
    eps: float = 1e-12


def interface(config: BertConfig) -> Interface:
    shape = ("batch", "sequence")
    inputs = (
        InputSpec("input_ids", shape, "int64", values=(0, config.vocabulary - 1)),
        InputSpec("attention_mask", shape, "int64", values=(0, 1), default="ones"),
        InputSpec("token_type_ids", shape, "int64", values=(0, config.segments - 1), default="zeros"),
    )
    return Interface(inputs, {"batch": (1, 16), "sequence": (1, config.positions)}, {"batch": 1, "sequence": 128})


def define(config: BertConfig, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    c = config
    batch, sequence = m.dim("batch"), m.dim("sequence")
    m.layer = "embeddings"

    def embed(ids: relax.Expr, name: str, rows: int) -> relax.Var:
        return m.op("embedding", ids, m.weight(f"embeddings.{name}.weight", (rows, c.hidden)), layout="nk", n=rows)

    positions = m.emit(relax.op.arange(0, sequence, 1, "int64"))
    x = m.emit(
        relax.op.add(
            embed(m.inputs["input_ids"], "word_embeddings", c.vocabulary),
            embed(positions, "position_embeddings", c.positions),
        )
    )
    x = m.emit(relax.op.add(x, embed(m.inputs["token_type_ids"], "token_type_embeddings", c.segments)))
    x = m.layer_norm(x, "embeddings.LayerNorm", c.hidden, c.eps)
    head_dim = c.hidden // c.heads
    for i in range(c.layers):
        layer = f"encoder.layer.{i}"
        m.layer = f"{layer}.attention"
        q, k, v = (
            m.emit(
                relax.op.reshape(
                    m.linear(x, f"{layer}.attention.self.{part}", c.hidden, c.hidden, gain=gain),
                    (batch, sequence, c.heads, head_dim),
                )
            )
            for part, gain in (("query", _QK_GAIN), ("key", _QK_GAIN), ("value", 1.0))
        )
        heads = m.op(
            "attention",
            q,
            k,
            v,
            m.inputs["attention_mask"],
            num_heads=c.heads,
            num_kv_heads=c.heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            has_key_mask=True,
        )
        joined = m.emit(relax.op.reshape(heads, (batch, sequence, c.hidden)))
        projected = m.linear(joined, f"{layer}.attention.output.dense", c.hidden, c.hidden)
        x = m.layer_norm(m.emit(relax.op.add(projected, x)), f"{layer}.attention.output.LayerNorm", c.hidden, c.eps)
        m.layer = f"{layer}.ffn"
        up = m.linear_weights(f"{layer}.intermediate.dense", c.hidden, c.feed_forward)
        down = m.linear_weights(f"{layer}.output.dense", c.feed_forward, c.hidden)
        ffn = m.op("ffn", x, *up, *down, activation=c.activation, gated=False, bias=True, layout="nk")
        x = m.layer_norm(m.emit(relax.op.add(ffn, x)), f"{layer}.output.LayerNorm", c.hidden, c.eps)
    return {"last_hidden_state": x}


_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def from_huggingface(config: Mapping[str, object]) -> BertConfig:
    activation = _ACTIVATIONS.get(str(config.get("hidden_act", "gelu")))
    positions = config.get("position_embedding_type", "absolute")
    if activation is None or positions != "absolute":
        raise UnsupportedModel(
            "expected a BERT config with hidden_act gelu, gelu_new or relu and absolute positions, found "
            f"hidden_act={config.get('hidden_act')!r}, position_embedding_type={positions!r}: "
            "export the model to ONNX instead"
        )
    return BertConfig(
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=int(config["num_attention_heads"]),
        vocabulary=int(config["vocab_size"]),
        positions=int(config["max_position_embeddings"]),
        segments=int(config.get("type_vocab_size", 2)),
        feed_forward=int(config["intermediate_size"]),
        activation=activation,
        eps=float(config.get("layer_norm_eps", 1e-12)),
    )


BERT = Family(
    name="bert",
    presets={"bert-base": BertConfig(), "bert-large": BertConfig(layers=24, hidden=1024, heads=16, feed_forward=4096)},
    interface=interface,
    define=define,
    huggingface_types=("bert",),
    heads=("BertModel",),
    bare=True,
    from_huggingface=from_huggingface,
    prefixes=("", "bert."),
)
