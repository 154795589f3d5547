"""What a Keras model declares of its inputs: names, sizes, dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...artifact import UNBOUNDED
from ...errors import UsageError

Bounds = tuple[tuple[int, int], ...]  # the smallest and largest size of each dimension of one input


@dataclass(frozen=True)
class DeclaredInput:
    """One input; a size that the model leaves open has a name."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class Declared:
    """The inputs in the order of `model.inputs`, and the range of every name in their shapes that is bounded."""

    inputs: tuple[DeclaredInput, ...]
    ranges: dict[str, tuple[int, int]]

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.inputs]


def declared(model: Any, bounds: Mapping[str, Bounds], *, together: bool = True) -> Declared:
    """The inputs of `model`, within `bounds` by their names; a bound of one number fixes a size.

    An open first axis is `batch`, any other `length_<axis>`, in all inputs alike; not `together`: `<input>_<axis>`.
    """
    tensors = list(getattr(model, "inputs", None) or ())
    if not tensors or not model.built:
        raise UsageError(
            f"expected a Keras model that declares its inputs, found {type(model).__name__} {model.name!r} without: "
            "make it of keras.Input, or give its first layer an input shape"
        )

    def name_of(tensor: Any, axis: int) -> str:
        return "batch" if axis == 0 else f"length_{axis}" if together else f"{tensor.name}_{axis}"

    def open_sizes(tensor: Any) -> Iterator[tuple[int, str]]:
        return ((axis, name_of(tensor, axis)) for axis, size in enumerate(tensor.shape) if size is None)

    ranges: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        given = bounds.get(tensor.name, ())
        for axis, name in open_sizes(tensor):
            if axis < len(given):
                low, high = ranges.get(name, (1, UNBOUNDED))
                ranges[name] = max(low, given[axis][0]), min(high, given[axis][1])
    fixed = {name: low for name, (low, high) in ranges.items() if low == high}
    inputs = []
    for tensor in tensors:
        names = dict(open_sizes(tensor))
        shape = tuple(fixed.get(names[a], names[a]) if d is None else int(d) for a, d in enumerate(tensor.shape))
        inputs.append(DeclaredInput(str(tensor.name), shape, str(tensor.dtype)))
    return Declared(tuple(inputs), {name: ends for name, ends in ranges.items() if name not in fixed})


def arranged(model: Any, tensors: list[object]) -> object:
    """`tensors`, in the order of `model.inputs`, in the structure that the model is called with."""
    if type(model).__name__ == "Sequential" or len(tensors) == 1 and not isinstance(model.input, dict):
        return tensors[0]
    import keras

    return keras.tree.pack_sequence_as(model.input, tensors)
