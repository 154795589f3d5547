"""What one file in this package defines: a family of models, its presets and how a config.json names it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Generic, NoReturn, TypeVar

from tvm import relax

from ..errors import UnsupportedModel
from ..imported import ImportedModel, InputSpec
from ..params import ParamTable
from .builder import ModelBuilder, Weights

C = TypeVar("C")
FAMILIES: dict[str, Family] = {}
# Far beyond any published model; a config with more would exhaust the memory before its weights are compared with it.
_LARGEST = 1 << 24
_LEAST_OF = {"position_offset": 0}
_LARGEST_OF = {"layers": 1024, "heads": 4096, "head_dim": 4096}


@dataclass(frozen=True)
class Interface:
    """Inputs and symbolic dimensions of a model of some configuration."""

    inputs: tuple[InputSpec, ...]
    ranges: dict[str, tuple[int, int]]
    typical: dict[str, int]
    state: tuple[str, ...] = ()  # inputs that a call gives as outputs of the same names, for the next one


@dataclass(frozen=True)
class Entry(Generic[C]):
    """A further function of a model, over the same weights as `main`."""

    interface: Callable[[C, str], Interface]  # of a configuration and the element type of its caches
    define: Callable[[C, ModelBuilder], Mapping[str, relax.Expr]]


@dataclass(frozen=True)
class Family(Generic[C]):
    """One architecture. `define` writes the graph, `presets` are the names `--model` knows."""

    name: str
    presets: Mapping[str, C]
    interface: Callable[[C], Interface]
    define: Callable[[C, ModelBuilder], Mapping[str, relax.Expr]]
    entries: Callable[[C], Mapping[str, Entry[C]]] | None = None  # functions beside main, by name
    with_past: Callable[[bool], Entry[C]] | None = None  # main behind caches that it returns, for other engines
    huggingface_types: tuple[str, ...] = ()  # `model_type` values of config.json
    heads: tuple[str, ...] = ()  # ends of the class names among `architectures` whose outputs the definition gives
    bare: bool = False  # the definition is the model without a head
    part: str = ""  # of a model that is several artifacts: `--model DIRECTORY:decoder`
    default_part: bool = False  # what the directory alone means where the checkpoint has this part and no more
    from_huggingface: Callable[[Mapping[str, object]], C] | None = None
    even: tuple[str, ...] = ()  # sizes of a configuration that two must divide
    prefixes: tuple[str, ...] = ("",)  # what tensor names may start with in a checkpoint
    # Where a checkpoint of tied embeddings keeps the one tensor under the head's name: the table's -> that name.
    tied: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False  # a tensor that the definition does not read means that it is another model
    beside: Callable[[Mapping[str, object]], tuple[str, ...]] | None = None  # starts of names of tensors beside it

    def __post_init__(self) -> None:
        assert self.name not in FAMILIES, f"model family {self.name} is defined twice"
        FAMILIES[self.name] = self

    def build(self, name: str, config: C, weights: Weights, source: dict[str, object]) -> ImportedModel:
        """The model of `config` with `weights` as an `ImportedModel`; `UnsupportedModel` for impossible sizes."""
        check(config, self.even)
        params = ParamTable()

        def function(
            interface: Interface, define: Callable[[C, ModelBuilder], Mapping[str, relax.Expr]]
        ) -> ImportedModel:
            builder = ModelBuilder(weights, params)

            def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
                for spec in interface.inputs:
                    m.input(spec.name, spec.shape, spec.dtype)
                return define(config, m)

            mod, outputs = builder.module(body)
            return ImportedModel(
                name=name,
                mod=mod,
                params=params,
                inputs=interface.inputs,
                outputs=outputs,
                ranges=interface.ranges,
                typical=interface.typical,
                source={
                    **source,
                    "family": self.name,
                    **({"state": list(interface.state)} if interface.state else {}),
                },
                report={"importer": "definition", "family": self.name, "parameters": len(params.sources)},
            )

        def later(entry: Entry[C]) -> Callable[[str], ImportedModel]:
            return lambda caches: function(entry.interface(config, caches), entry.define)

        main = function(self.interface(config), self.define)
        entries = self.entries(config) if self.entries else {}
        made = {key: later(entry) for key, entry in entries.items()}
        past = self.with_past
        return replace(main, entries=made, with_past=past and (lambda last: later(past(last))("float32")))


def check(config: object, even: Sequence[str]) -> None:
    """`UnsupportedModel` unless the sizes of a configuration, a dataclass, are possible and fit each other.

    Those named in `even` are even numbers.
    """
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for name, value in values.items():
        if type(value) is int:
            checked_size(name, value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not (math.isfinite(number) and number > 0):
                _refuse(f"{name} as a finite number above 0", number)
    for whole, part in (("hidden", "heads"), ("heads", "kv_heads"), *((name, None) for name in even)):
        divisor = values.get(part, 1) if part else 2
        if whole == "hidden" and values.get("head_dim"):
            continue  # heads of a size of their own are projected from any width
        if divisor and values.get(whole) and values[whole] % divisor:
            _refuse(f"{whole} as a multiple of {part or divisor}", f"{values[whole]} and {divisor}")


def checked_size(name: str, size: int) -> int:
    """`size`, before anything is divided by it or made for each; `UnsupportedModel` for one that no model has."""
    least, most = _LEAST_OF.get(name, 1), _LARGEST_OF.get(name, _LARGEST)
    if not least <= size <= most:
        _refuse(f"{name} from {least} to {most}", size)
    return size


def _refuse(expected: str, found: object) -> NoReturn:
    raise UnsupportedModel(f"expected {expected} in the model's config, found {found}: correct or re-export it")
