"""What one file in this package defines: a family of models, its presets and how a config.json names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvm import relax

from ..imported import ImportedModel, InputSpec
from ._builder import ModelBuilder, Weights

C = TypeVar("C")
FAMILIES: dict[str, Family] = {}


@dataclass(frozen=True)
class Interface:
    """Inputs and symbolic dimensions of a model of some configuration."""

    inputs: tuple[InputSpec, ...]
    ranges: dict[str, tuple[int, int]]
    typical: dict[str, int]


@dataclass(frozen=True)
class Family(Generic[C]):
    """One architecture. `define` writes the graph, `presets` are the names `--model` knows."""

    name: str
    presets: Mapping[str, C]
    interface: Callable[[C], Interface]
    define: Callable[[C, ModelBuilder], Mapping[str, relax.Expr]]
    huggingface_types: tuple[str, ...] = ()  # `model_type` values of config.json
    from_huggingface: Callable[[Mapping[str, object]], C] | None = None
    prefixes: tuple[str, ...] = ("",)  # what tensor names may start with in a checkpoint

    def __post_init__(self) -> None:
        assert self.name not in FAMILIES, f"model family {self.name} is defined twice"
        FAMILIES[self.name] = self

    def build(self, name: str, config: C, weights: Weights, source: dict[str, object]) -> ImportedModel:
        """The model of `config` with `weights` as an `ImportedModel`."""
        interface = self.interface(config)
        builder = ModelBuilder(weights)

        def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
            for spec in interface.inputs:
                m.input(spec.name, spec.shape, spec.dtype)
            return self.define(config, m)

        mod, outputs = builder.module(body)
        return ImportedModel(
            name=name,
            mod=mod,
            params=builder.params,
            inputs=interface.inputs,
            outputs=outputs,
            ranges=interface.ranges,
            typical=interface.typical,
            source={**source, "family": self.name},
            report={"importer": "definition", "family": self.name, "parameters": len(builder.params.sources)},
        )
