"""What every importer and every built-in definition produces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from .artifact import RANDOM_STATE, Condition
from .errors import UnsupportedModel
from .params import ParamTable, Shared

Engine = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]  # inputs -> outputs by name


@dataclass(frozen=True)
class InputSpec:
    """One run-time input. A string in `shape` names a symbolic dimension."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    values: tuple[int, int] | None = (
        None  # allowed integers, inclusive (a token id past the vocabulary reads foreign memory)
    )
    default: str | None = None  # "ones" or "zeros": may be left out at run time
    # Of positions in caches: how many rows (a number or a dimension) go to each, and the dimension that has room for
    # them; a value below 0 is no position.
    room: tuple[int | str, str] | None = None


@dataclass(frozen=True)
class Operand:
    """An input of a node: an argument of the call that stands for it; sizes are a tensor of `dtype` and `rank`."""

    place: int
    dtype: str
    rank: int


@dataclass(frozen=True)
class KernelOrigin:
    """The ONNX node that a call stands for, so that it can be written again."""

    node: bytes  # a NodeProto: operator, domain, attributes
    opset: int  # in which that has its meaning
    operands: tuple[Operand | None, ...]  # its inputs, None where one is left out
    outputs: tuple[bool, ...]  # which of its outputs the call makes
    captured: tuple[tuple[str, Operand], ...] = ()  # what graphs inside it read around them, by name
    domains: tuple[tuple[str, int], ...] = ()  # of it and of graphs inside it, other than ONNX itself, with versions


@dataclass(frozen=True)
class Spelled:
    """What an exporter writes by itself; a node of ONNX that is made of anything else stays a node."""

    writes: Callable[[relax.Call], bool]
    opset_for: Callable[[int], int]  # the opset of a file -> that which is written


@dataclass(frozen=True)
class ImportedModel:
    """A model before any phase: `main` takes the inputs, then the weights of `params` in order."""

    name: str
    mod: tvm.IRModule
    params: ParamTable
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]  # symbolic dimension -> smallest and largest value, inclusive
    typical: dict[str, int]  # symbolic dimension -> the size benchmarks and cost estimates use
    source: dict[str, object]  # what it came from, for the manifest and for peers
    report: dict[str, object]  # the ImportReport: operators by name, parameters, notes
    # The source engine, inputs -> outputs by name; None: NumPy evaluates `mod` (see `interpreter`). It draws random
    # numbers of its own and knows nothing of `random_state`: see `source_outputs`.
    engine: Engine | None = None
    # Where the model rounds on the way: the same with sums and roundings in other places. How far the two are apart is
    # no fault of what is compared with the first.
    other_engine: Engine | None = None
    # Integers that the graph compares an input with, by input: what seeded inputs are drawn from.
    samples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Error to accept, as a share of an output's largest element; None: that of its dtype. Models that round to
    # integers on the way are not continuous: a sum in another order may round to the next integer. Those that round to
    # 16 bits have as many digits.
    accepted_error: float | None = None
    language: Mapping[str, object] | None = None  # of a language model: what the manifest says about its texts
    files: Mapping[str, Path | bytes] = field(default_factory=dict)  # what goes into the artifact as it is, by name
    # Further functions over the same `params`, by name, defined when they are called for: of the element type that
    # caches get, the model whose `main` is that function.
    entries: Mapping[str, Callable[[str], ImportedModel]] = field(default_factory=dict)
    # A language model for other engines, defined when it is called for: keys and values come in and go out. True: with
    # logits of the last token alone.
    with_past: Callable[[bool], ImportedModel] | None = None
    shared: Shared = Shared()  # with the functions that are built beside this one
    # Of a model that is imported for export alone: the nodes that it keeps, by the name of the function called.
    kept: Mapping[str, KernelOrigin] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()  # outputs that are made of random numbers
    # Outputs that are complex numbers: `main` gives them as pairs along a last axis, and takes inputs of complex64 and
    # complex128 so, whose `InputSpec` has the shape without it.
    complex_outputs: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()  # of the sizes of a run, beside their ranges
    # Of outputs: what their integers stand for; of floats, their columns.
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def source_outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the source engine computes; the state of random numbers, which is ours, is one call further."""
        assert self.engine is not None, "a model without an engine is evaluated by NumPy"
        return _run(self.engine, inputs)

    def other_outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """What `other_engine` computes; None without one, and where it takes no such inputs."""
        if self.other_engine is None:
            return None
        try:
            return _run(self.other_engine, inputs)
        except UnsupportedModel:
            return None


def _run(engine: Engine, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    given = dict(inputs)
    state = given.pop(RANDOM_STATE, None)
    further = {} if state is None else {RANDOM_STATE: state + np.array([0, 1])}
    return {**engine(given), **further}
