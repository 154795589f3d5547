"""GPT-2: pre-norm decoder with learned positions and a language-model head tied to the embedding.

Shapes
    input_ids [batch, sequence] int64   ->   logits [batch, sequence, vocabulary]
    `gpt2-last`: logits [batch, vocabulary] of the last position, which is what a prompt is read for
References
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from ..errors import UnsupportedModel
from ..imported import InputSpec
from ._builder import ModelBuilder
from ._definition import Family, Interface

# Random query and key weights are scaled so that scores have a standard deviation near 2: attention is not flat.
_QKV_GAIN = 1.4


@dataclass(frozen=True)
class GPT2Config:
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    feed_forward: int = 3072
    activation: str = "gelu_tanh"
    eps: float = 1e-5
    last_only: bool = False  # logits of the last position alone


def interface(config: GPT2Config) -> Interface:
    ids = InputSpec("input_ids", ("batch", "sequence"), "int64", values=(0, config.vocabulary - 1))
    return Interface((ids,), {"batch": (1, 8), "sequence": (1, config.positions)}, {"batch": 1, "sequence": 128})


def define(config: GPT2Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    c = config
    batch, sequence = m.dim("batch"), m.dim("sequence")
    wte = m.weight("wte.weight", (c.vocabulary, c.hidden))
    wpe = m.weight("wpe.weight", (c.positions, c.hidden))
    positions = m.emit(relax.op.arange(0, sequence, 1, "int64"))
    m.layer = "wte"
    tokens = m.op("embedding", m.inputs["input_ids"], wte, layout="nk", n=c.vocabulary)
    m.layer = "wpe"
    x = m.emit(relax.op.add(tokens, m.op("embedding", positions, wpe, layout="nk", n=c.positions)))
    for i in range(c.layers):
        m.layer = f"h.{i}.attn"
        normed = m.layer_norm(x, f"h.{i}.ln_1", c.hidden, c.eps)
        qkv = m.linear(normed, f"h.{i}.attn.c_attn", c.hidden, 3 * c.hidden, layout="kn", gain=_QKV_GAIN)
        head_dim = c.hidden // c.heads
        heads = m.op(
            "attention",
            qkv,
            packed=True,
            num_heads=c.heads,
            num_kv_heads=c.heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
        )
        joined = m.emit(relax.op.reshape(heads, (batch, sequence, c.hidden)))
        x = m.emit(relax.op.add(m.linear(joined, f"h.{i}.attn.c_proj", c.hidden, c.hidden, layout="kn"), x))
        m.layer = f"h.{i}.mlp"
        normed = m.layer_norm(x, f"h.{i}.ln_2", c.hidden, c.eps)
        up = m.linear_weights(f"h.{i}.mlp.c_fc", c.hidden, c.feed_forward, "kn")
        down = m.linear_weights(f"h.{i}.mlp.c_proj", c.feed_forward, c.hidden, "kn")
        ffn = m.op("ffn", normed, *up, *down, activation=c.activation, gated=False, bias=True, layout="kn")
        x = m.emit(relax.op.add(ffn, x))
    m.layer = "ln_f"
    if c.last_only:
        x = m.emit(relax.op.strided_slice(x, axes=[1], begin=[sequence - 1], end=[sequence]))
        x = m.emit(relax.op.reshape(x, (batch, c.hidden)))
    normed = m.layer_norm(x, "ln_f", c.hidden, c.eps)
    m.layer = "lm_head"
    return {"logits": m.op("linear", normed, wte, layout="nk", n=c.vocabulary)}


_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}


def from_huggingface(config: Mapping[str, object]) -> GPT2Config:
    activation = _ACTIVATIONS.get(str(config.get("activation_function", "gelu_new")))
    if (
        activation is None
        or config.get("scale_attn_by_inverse_layer_idx")
        or not config.get("scale_attn_weights", True)
    ):
        raise UnsupportedModel(
            "expected a GPT-2 config with activation gelu_new or gelu and plain attention scaling, found "
            f"activation_function={config.get('activation_function')!r} and scale_attn_*: "
            "export the model to ONNX instead"
        )
    hidden = int(config["n_embd"])
    return GPT2Config(
        layers=int(config["n_layer"]),
        hidden=hidden,
        heads=int(config["n_head"]),
        vocabulary=int(config["vocab_size"]),
        positions=int(config["n_positions"]),
        feed_forward=int(config.get("n_inner") or 4 * hidden),
        activation=activation,
        eps=float(config.get("layer_norm_epsilon", 1e-5)),
    )


def _size(layers: int, hidden: int, heads: int) -> GPT2Config:
    return GPT2Config(layers=layers, hidden=hidden, heads=heads, feed_forward=4 * hidden)


GPT2 = Family(
    name="gpt2",
    presets={
        "gpt2": GPT2Config(),
        "gpt2-last": GPT2Config(last_only=True),
        "gpt2-medium": _size(24, 1024, 16),
        "gpt2-large": _size(36, 1280, 20),
        "gpt2-xl": _size(48, 1600, 25),
    },
    interface=interface,
    define=define,
    huggingface_types=("gpt2",),
    from_huggingface=from_huggingface,
    prefixes=("", "transformer."),
    tied={"wte.weight": "lm_head.weight"},
)
