"""A plain multi-layer perceptron: three times linear and ReLU.

Shapes
    x [batch, width] float32   ->   y [batch, width]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from ..imported import InputSpec
from ._definition import Family, Interface
from .builder import ModelBuilder


@dataclass(frozen=True)
class MLPConfig:
    layers: int = 3
    width: int = 1024


def interface(config: MLPConfig) -> Interface:
    return Interface((InputSpec("x", ("batch", config.width), "float32"),), {"batch": (1, 1024)}, {"batch": 256})


def define(config: MLPConfig, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    x = m.inputs["x"]
    for i in range(config.layers):
        m.layer = f"layers.{i}"
        # sqrt(2) keeps the variance through the ReLU.
        x = m.emit(relax.op.nn.relu(m.linear(x, f"layers.{i}", config.width, config.width, gain=2**0.5)))
    return {"y": x}


MLP = Family(name="mlp", presets={"mlp": MLPConfig()}, interface=interface, define=define)
