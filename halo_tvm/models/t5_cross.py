"""What T5's decoder reads of the encoder: keys and values of every layer's cross attention, made once per text.

Shapes
    last_hidden_state [batch, source, hidden] float32   ->   for every decoder layer i
    cross_key_i, cross_value_i [batch, source, heads, head_dim]
References
    arXiv:1910.10683
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..imported import InputSpec
from . import _t5
from ._definition import Family, Interface
from ._t5 import T5Config
from .builder import ModelBuilder


def interface(config: T5Config) -> Interface:
    inputs = (InputSpec("last_hidden_state", ("batch", "source", config.hidden), "float32"),)
    return Interface(inputs, {"batch": (1, 16), "source": (1, _t5.LONGEST)}, {"batch": 1, "source": 128})


def define(c: T5Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    return cross(c, m, m.inputs["last_hidden_state"])


def cross(c: T5Config, m: ModelBuilder, states: relax.Expr) -> dict[str, relax.Var]:
    """Keys and values [batch, source, heads, head_dim] of `states`, by the names of the decoder's inputs."""
    outputs = {}
    for i in range(c.decoder_layers):
        m.layer = f"decoder.block.{i}.layer.1.EncDecAttention"
        for kind, part in (("key", "k"), ("value", "v")):
            outputs[f"cross_{kind}_{i}"] = _t5.project(c, m, states, f"{m.layer}.{part}")
    return outputs


T5_CROSS = Family(
    name="t5-cross",
    presets=_t5.presets("cross"),
    interface=interface,
    define=define,
    part="cross",
    huggingface_types=_t5.HUGGINGFACE_TYPES,
    from_huggingface=_t5.from_huggingface,
)
