"""A walked graph with its inputs by name, its state, and what torch.export makes of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ...errors import UnsupportedModel
from ..torch_export import distinct, name_of
from ._values import Number, check_whole
from ._walk import Walker


@dataclass(frozen=True)
class State:
    """What a graph remembers: tensors by attribute path as a call in the steady state finds them, and plain values."""

    tensors: dict[str, torch.Tensor]
    plain: dict[str, object]


NO_STATE = State({}, {})


class Program(torch.nn.Module):
    """forward(inputs, state) -> outputs, then the state. `constants` are arguments that are no tensors.

    Arguments have the names of `arguments`, which are identifiers; those of the state follow.
    """

    def __init__(
        self, walker: Walker, arguments: tuple[str, ...], constants: Mapping[str, object], state: State
    ) -> None:
        super().__init__()
        self.walker = walker
        self.arguments, self.constants, self.state = arguments, dict(constants), state
        self.state_inputs = {state_name(path): path for path in state.tensors}
        self.inputs = (*(a for a in arguments if a not in constants), *self.state_inputs)

        def forward(*args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.run({**dict(zip(self.inputs, args)), **kwargs})

        # torch.export names the inputs of the program, and of its dynamic shapes, as the signature does
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in self.inputs])
        self.forward = forward

    def run(self, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Outputs and state for inputs and state by name."""
        result, state = self._run(tensors)
        return (*flat(result), *state)

    def output_names(self, tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Names of the outputs of `run`, without state: keys of dictionaries, else `output`, or with its number."""
        with torch.no_grad():
            result, _ = self._run(tensors)
        paths = list(_paths(result))
        plain = ["output" if len(paths) == 1 else f"output_{i}" for i in range(len(paths))]
        names = [name_of(path) if keyed else plain[i] for i, (path, keyed) in enumerate(paths)]
        return tuple(distinct(dict(enumerate(names))).values())

    def _run(self, tensors: Mapping[str, torch.Tensor]) -> tuple[object, list[torch.Tensor]]:
        arguments = tuple(tensors.get(name, self.constants.get(name)) for name in self.arguments)
        kept = {path: tensors[name] for name, path in self.state_inputs.items()}
        plain = self.state.plain
        if plain:
            # Numbers that follow from sizes are found by a run of their own: so a symbolic size stays one.
            _, before = self.walker.run(arguments, {})
            plain = {path: before.get(path, value) for path, value in plain.items()}
        result, after = self.walker.run(arguments, {**plain, **kept})
        return result, [after[path] for path in kept]


def state_name(path: str) -> str:
    """The name of an attribute as an input and an output."""
    return "state_" + "".join(c if c.isalnum() else "_" for c in path).strip("_")


def flat(value: object) -> list[torch.Tensor]:
    """Tensors of a result, in order, through tuples, lists and dictionaries; None and texts are left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Number):
        return [value.as_tensor()]
    if isinstance(value, dict):
        return [t for v in value.values() for t in flat(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in flat(v)]
    if isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
        check_whole(value)
        return [Number(value).as_tensor()]
    if value is None or isinstance(value, str):
        return []
    raise UnsupportedModel(
        f"expected results that are tensors or numbers, found a {type(value).__name__}: return a tensor in its place"
    )


def _paths(value: object, path: tuple[str, ...] = (), keyed: bool = False) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Where each of the tensors of `flat` lies, and whether a key of a dictionary leads there."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, str(key)), True)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _paths(item, (*path, str(index)), keyed)
    elif value is not None and not isinstance(value, str):
        yield path, keyed


def steady_state(walker: Walker, arguments: tuple[object, ...]) -> State:
    """The state that calls in a row reach and keep, with tensors that a first call can start from.

    `UnsupportedModel` when no such tensors give what the file's own first call gives.
    """
    if not walker.state_paths:
        return NO_STATE
    with torch.no_grad():
        first, once = walker.run(arguments, {})
        _, twice = walker.run(arguments, once)
        _, thrice = walker.run(arguments, twice)
        if _shapes(twice) != _shapes(thrice):
            raise UnsupportedModel(
                f"expected a state that keeps its size, found attributes that change with every call "
                f"({', '.join(sorted(_changing(twice, thrice)))}): export the model as ONNX"
            )
        starts = {path: _start(walker, path, value) for path, value in twice.items() if isinstance(value, torch.Tensor)}
        plain = {path: value for path, value in twice.items() if not isinstance(value, torch.Tensor)}
        again, _ = walker.run(arguments, {**plain, **starts})
    if not all(torch.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in zip(flat(first), flat(again), strict=True)):
        raise UnsupportedModel(
            f"expected a state that starts at zero, found another first call in {', '.join(sorted(starts))}: "
            "export the model with its state as inputs and outputs"
        )
    return State(starts, plain)


def _start(walker: Walker, path: str, steady: torch.Tensor) -> torch.Tensor:
    kept = walker.attribute(path)
    same = isinstance(kept, torch.Tensor) and kept.shape == steady.shape and kept.dtype == steady.dtype
    return kept.clone() if same else torch.zeros_like(steady)


def _shapes(state: Mapping[str, object]) -> dict[str, object]:
    return {p: (tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for p, v in state.items()}


def _changing(a: Mapping[str, object], b: Mapping[str, object]) -> set[str]:
    first, second = _shapes(a), _shapes(b)
    return {path for path in second if first.get(path) != second[path]}
