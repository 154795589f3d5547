"""T5's encoder: pre-norm with RMS norms and a relative position bias, one for all layers or, of UMT5, of each.

Shapes
    input_ids, attention_mask [batch, sequence] int64   ->   last_hidden_state [batch, sequence, hidden]
    attention_mask defaults to ones
References
    arXiv:1910.10683; arXiv:2002.05202 (the gated feed-forward of T5 1.1)
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..imported import InputSpec
from . import _t5
from ._definition import Family, Interface
from ._t5 import T5Config
from .builder import ModelBuilder, rows_of


def interface(config: T5Config) -> Interface:
    shape = ("batch", "sequence")
    inputs = (
        InputSpec("input_ids", shape, "int64", values=(0, config.vocabulary - 1)),
        InputSpec("attention_mask", shape, "int64", values=(0, 1), default="ones"),
    )
    return Interface(inputs, {"batch": (1, 16), "sequence": (1, _t5.LONGEST)}, {"batch": 1, "sequence": 128})


def define(c: T5Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    return {"last_hidden_state": encode(c, m)}


def encode(c: T5Config, m: ModelBuilder) -> relax.Var:
    """The states [batch, length, hidden] of the inputs `input_ids` and `attention_mask`."""
    ids = m.inputs["input_ids"]
    length = rows_of(ids)[1]
    m.layer = "shared"
    x = m.op("embedding", ids, _t5.table_of(c, m), layout="nk", n=c.vocabulary)
    biases = _t5.position_biases(c, m, "encoder", _t5.positions(m, 0, length, axis=1), length, both_ways=True)
    for i in range(c.layers):
        layer = f"encoder.block.{i}.layer"
        m.layer = name = f"{layer}.0.SelfAttention"
        normed = m.rms_norm(x, f"{layer}.0.layer_norm", c.hidden, c.eps)
        heads = [_t5.project(c, m, normed, f"{name}.{part}") for part in "qkv"]
        args = [*heads, m.inputs["attention_mask"], biases[i]]
        x = _t5.attend(c, m, x, name, args, has_key_mask=True, has_bias=True)
        x = _t5.feed_forward(c, m, x, f"{layer}.1")
    m.layer = "encoder.final_layer_norm"
    return m.rms_norm(x, "encoder.final_layer_norm", c.hidden, c.eps)


T5 = Family(
    name="t5",
    presets=_t5.PRESETS,
    interface=interface,
    define=define,
    part="encoder",
    default_part=True,
    huggingface_types=_t5.HUGGINGFACE_TYPES,
    heads=("EncoderModel",),
    bare=True,
    from_huggingface=_t5.from_huggingface,
)
