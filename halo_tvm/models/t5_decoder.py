"""One step of T5's decoder: new tokens, the keys and values of those before, and those of the encoder's states.

Shapes, for every layer i
    input_ids [batch, tokens] int64
    attention_mask [batch, source] int64, of the encoder's tokens; defaults to ones
    cross_key_i, cross_value_i [batch, source, heads, head_dim], as `t5-*-cross` gives them
    key_i, value_i [batch, past, heads, head_dim], of the tokens before; past may be 0
    ->   logits [batch, tokens, vocabulary]
         key_i, value_i [batch, past + tokens, heads, head_dim]
    key_i and value_i are state: who does not pass them has the last call's kept for the next
References
    arXiv:1910.10683; arXiv:2002.05202 (the gated feed-forward of T5 1.1)
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..imported import InputSpec
from . import _t5
from ._builder import ModelBuilder
from ._definition import Family, Interface
from ._t5 import T5Config


def interface(config: T5Config) -> Interface:
    c = config
    heads = (c.heads, c.head_dim)
    layers, kinds = range(c.decoder_layers), ("key", "value")
    cross = [InputSpec(f"cross_{kind}_{i}", ("batch", "source", *heads), "float32") for i in layers for kind in kinds]
    past = [
        InputSpec(f"{kind}_{i}", ("batch", "past", *heads), "float32", default="zeros")
        for i in layers
        for kind in kinds
    ]
    inputs = (
        InputSpec("input_ids", ("batch", "tokens"), "int64", values=(0, c.vocabulary - 1)),
        InputSpec("attention_mask", ("batch", "source"), "int64", values=(0, 1), default="ones"),
        *cross,
        *past,
    )
    ranges = {"batch": (1, 16), "tokens": (1, 64), "source": (1, _t5.LONGEST), "past": (0, _t5.LONGEST - 1)}
    typical = {"batch": 1, "tokens": 1, "source": 128, "past": 32}
    return Interface(inputs, ranges, typical, state=tuple(spec.name for spec in past))


def define(config: T5Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    c = config
    rows = (m.dim("batch"), m.dim("tokens"))
    m.layer = "shared"
    table = _t5.table_of(c, m)
    x = m.op("embedding", m.inputs["input_ids"], table, layout="nk", n=c.vocabulary)
    bias = _t5.position_bias(c, m, "decoder", rows[1], m.dim("past") + rows[1], both_ways=False)
    state = {}
    for i in range(c.decoder_layers):
        layer = f"decoder.block.{i}.layer"
        m.layer = name = f"{layer}.0.SelfAttention"
        normed = m.rms_norm(x, f"{layer}.0.layer_norm", c.hidden, c.eps)
        query, *new = (_t5.project(c, m, normed, f"{name}.{part}", rows) for part in "qkv")
        for kind, value in zip(("key", "value"), new):
            state[f"{kind}_{i}"] = m.emit(relax.op.concat([m.inputs[f"{kind}_{i}"], value], axis=1))
        args = [query, state[f"key_{i}"], state[f"value_{i}"], bias]
        x = _t5.attend(c, m, x, name, args, rows, causal=True, has_bias=True)
        m.layer = name = f"{layer}.1.EncDecAttention"
        normed = m.rms_norm(x, f"{layer}.1.layer_norm", c.hidden, c.eps)
        query = _t5.project(c, m, normed, f"{name}.q", rows)
        args = [query, m.inputs[f"cross_key_{i}"], m.inputs[f"cross_value_{i}"], m.inputs["attention_mask"]]
        x = _t5.attend(c, m, x, name, args, rows, has_key_mask=True)
        x = _t5.feed_forward(c, m, x, f"{layer}.2")
    m.layer = "decoder.final_layer_norm"
    normed = m.rms_norm(x, "decoder.final_layer_norm", c.hidden, c.eps)
    if c.tied:
        normed = m.emit(relax.op.multiply(normed, relax.const(c.hidden**-0.5, "float32")))
    m.layer = "lm_head"
    # A checkpoint without a head of its own ties it, scaled or not.
    own = not c.tied and (m.weights.has("lm_head.weight") or not m.weights.has("shared.weight"))
    head = m.weight("lm_head.weight", (c.vocabulary, c.hidden)) if own else table
    return {"logits": m.op("linear", normed, head, layout="nk", n=c.vocabulary), **state}


T5_DECODER = Family(
    name="t5-decoder",
    presets=_t5.presets("decoder"),
    interface=interface,
    define=define,
    part="decoder",
    huggingface_types=_t5.HUGGINGFACE_TYPES,
    heads=_t5.HEADS,
    from_huggingface=_t5.from_huggingface,
)
