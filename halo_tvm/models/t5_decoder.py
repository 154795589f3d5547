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

from collections.abc import Callable, Mapping

import tvm
from tvm import relax

from ..imported import InputSpec
from . import _t5
from ._definition import Family, Interface
from ._t5 import T5Config
from .builder import ModelBuilder, rows_of


def interface(config: T5Config) -> Interface:
    c = config
    row = ("batch", "past", c.heads, c.head_dim)
    past = [
        InputSpec(f"{kind}_{i}", row, "float32", default="zeros")
        for i in range(c.decoder_layers)
        for kind in ("key", "value")
    ]
    inputs = (
        InputSpec("input_ids", ("batch", "tokens"), "int64", values=(0, c.vocabulary - 1)),
        InputSpec("attention_mask", ("batch", "source"), "int64", values=(0, 1), default="ones"),
        *cross_inputs(c, "batch"),
        *past,
    )
    ranges = {"batch": (1, 16), "tokens": (1, 64), "source": (1, _t5.LONGEST), "past": (0, _t5.LONGEST - 1)}
    typical = {"batch": 1, "tokens": 1, "source": 128, "past": 32}
    return Interface(inputs, ranges, typical, state=tuple(spec.name for spec in past))


def cross_inputs(c: T5Config, batch: int | str) -> list[InputSpec]:
    """What `cross` gives, as inputs."""
    row = (batch, "source", c.heads, c.head_dim)
    return [
        InputSpec(f"cross_{kind}_{i}", row, "float32") for i in range(c.decoder_layers) for kind in ("key", "value")
    ]


def define(c: T5Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    tokens = rows_of(m.inputs["input_ids"])[1]
    keys = m.dim("past") + tokens
    state: dict[str, relax.Expr] = {}

    def attended(x: relax.Var, normed: relax.Var, i: int, name: str, bias: relax.Var) -> relax.Var:
        query, *new = (_t5.project(c, m, normed, f"{name}.{part}") for part in "qkv")
        for kind, value in zip(("key", "value"), new):
            state[f"{kind}_{i}"] = m.emit(relax.op.concat([m.inputs[f"{kind}_{i}"], value], axis=1))
        args = [query, state[f"key_{i}"], state[f"value_{i}"], bias]
        return _t5.attend(c, m, x, name, args, causal=True, has_bias=True)

    positions = _t5.positions(m, keys - tokens, keys, axis=1)
    logits = decode(c, m, m.inputs["input_ids"], positions, keys, attended, m.inputs, m.inputs["attention_mask"])
    return {"logits": logits, **state}


# x, its norm, the layer's number and name, and the bias of positions -> x plus what the layer attends to in the answer.
Attended = Callable[[relax.Var, relax.Var, int, str, relax.Var], relax.Var]


def decode(
    c: T5Config,
    m: ModelBuilder,
    ids: relax.Var,
    positions: relax.Expr,
    keys: tvm.ir.Expr,
    attended: Attended,
    cross: Mapping[str, relax.Expr],
    mask: relax.Expr | None,
) -> relax.Var:
    """Logits [batch, tokens, vocabulary] of `ids` at `positions` [tokens, 1] among so many `keys` of the answer.

    `attended` is how a layer reads the answer before them; of the text it reads `cross`, hidden where `mask` is 0.
    """
    m.layer = "shared"
    table = _t5.table_of(c, m)
    x = m.op("embedding", ids, table, layout="nk", n=c.vocabulary)
    biases = _t5.position_biases(c, m, "decoder", positions, keys, both_ways=False)
    for i in range(c.decoder_layers):
        layer = f"decoder.block.{i}.layer"
        m.layer = name = f"{layer}.0.SelfAttention"
        x = attended(x, m.rms_norm(x, f"{layer}.0.layer_norm", c.hidden, c.eps), i, name, biases[i])
        m.layer = name = f"{layer}.1.EncDecAttention"
        normed = m.rms_norm(x, f"{layer}.1.layer_norm", c.hidden, c.eps)
        args = [_t5.project(c, m, normed, f"{name}.q"), cross[f"cross_key_{i}"], cross[f"cross_value_{i}"]]
        x = _t5.attend(c, m, x, name, [*args, *([] if mask is None else [mask])], has_key_mask=mask is not None)
        x = _t5.feed_forward(c, m, x, f"{layer}.2")
    m.layer = "decoder.final_layer_norm"
    normed = m.rms_norm(x, "decoder.final_layer_norm", c.hidden, c.eps)
    if c.tied:
        normed = m.emit(relax.op.multiply(normed, relax.const(c.hidden**-0.5, "float32")))
    m.layer = "lm_head"
    # A checkpoint without a head of its own ties it, scaled or not.
    own = not c.tied and (m.weights.has("lm_head.weight") or not m.weights.has("shared.weight"))
    head = m.weight("lm_head.weight", (c.vocabulary, c.hidden)) if own else table
    return m.op("linear", normed, head, layout="nk", n=c.vocabulary)


T5_DECODER = Family(
    name="t5-decoder",
    presets=_t5.presets("decoder"),
    interface=interface,
    define=define,
    part="decoder",
    huggingface_types=_t5.HUGGINGFACE_TYPES,
    from_huggingface=_t5.from_huggingface,
)
