"""Example values for the inputs of a TorchScript file: what `--inputs` and `--shape` say, in the order of the graph.

A TorchScript file declares neither shapes nor dtypes. Values come from an archive, or are made up for given shapes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ...errors import UnsupportedModel, UsageError
from ._source import Source, last_line

_COMBINATIONS = 16
_UNUSUAL = 5


@dataclass(frozen=True)
class Wanted:
    """What the user says about one input. Ranges are None where only an example tells the size."""

    name: str
    dtype: str | None
    ranges: tuple[tuple[int, int] | None, ...] | None
    value: np.ndarray | int | float | None = None


@dataclass(frozen=True)
class Example:
    """One argument of the graph: a tensor with what may vary of its shape, or a number that is fixed."""

    name: str
    value: torch.Tensor | int | float | bool | None
    ranges: tuple[tuple[int, int] | None, ...] = ()

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)

    @property
    def identifier(self) -> str:
        """The name as Python and torch.export accept it."""
        text = re.sub(r"\W", "_", self.name)
        return text if text.isidentifier() else f"input_{text}"


def examples_of(source: Source, wanted: Sequence[Wanted]) -> list[Example]:
    """An example for every argument of the model; `UsageError` says what to give where it cannot be known."""
    arguments = list(source.script.forward.schema.arguments)[1:]
    names = [argument.name for argument in arguments]
    by_name = {w.name: w for w in wanted}
    if len(by_name) == len(wanted) and set(by_name) <= set(names):
        given: list[Wanted | None] = [by_name.get(name) for name in names]
    else:
        given = [*wanted, *[None] * (len(names) - len(wanted))]
    if len(wanted) > len(names):
        raise UsageError(
            f"expected {len(names)} inputs ({', '.join(names)}), found {len(wanted)}: give one per argument"
        )
    missing = [a.name for a, w in zip(arguments, given) if w is None and not a.has_default_value()]
    if missing:
        raise UsageError(
            f"expected the shapes of all inputs of a TorchScript file, which does not declare them, found none for "
            f"{', '.join(missing)}: give --shape '{missing[0]}=1x16' (or {missing[0]}:int64=1x16), or --inputs FILE.npz"
        )
    made = [_choices(a, w) for a, w in zip(arguments, given)]
    return _first_that_runs(source, made)


def _choices(argument: object, wanted: Wanted | None) -> list[Example]:
    """Examples to try for an argument; several when nobody says its dtype."""
    if wanted is None:
        return [Example(argument.name, argument.default_value)]
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if kind in ("int", "float", "bool"):
        if wanted.value is None:
            raise UsageError(
                f"expected the value of {wanted.name}, a number that the model is compiled for, found its shape only: "
                f"give --shape '{wanted.name}=scalar(VALUE)' or --inputs FILE.npz"
            )
        number = np.asarray(wanted.value)
        if number.size != 1:
            raise UsageError(f"expected one number for {wanted.name}, found {number.size}: give a scalar")
        return [Example(wanted.name, {"int": int, "float": float, "bool": bool}[kind](number.reshape(()).item()))]
    if kind != "Tensor":
        raise UnsupportedModel(
            f"expected arguments that are tensors or numbers, found {argument.name} of type {kind}: "
            "trace or script a wrapper that takes tensors"
        )
    if wanted.ranges is None:
        raise UsageError(f"expected a shape for {wanted.name}, found none: give --shape or --inputs")
    if wanted.value is not None:
        value = np.asarray(wanted.value, dtype=wanted.dtype)
        if value.ndim == len(wanted.ranges):
            return [Example(wanted.name, torch.from_numpy(np.array(value)), wanted.ranges)]
    dtypes = [wanted.dtype] if wanted.dtype else ["float32", "int64"]
    return [Example(wanted.name, _made_up(wanted, dtype), wanted.ranges) for dtype in dtypes]


def _made_up(wanted: Wanted, dtype: str) -> torch.Tensor:
    shape = [_typical(r) for r in wanted.ranges]
    generator = np.random.default_rng(0)
    kind = np.dtype(dtype).kind
    if kind == "f":
        return torch.from_numpy(generator.standard_normal(shape).astype(dtype))
    return torch.from_numpy(np.asarray(generator.integers(0, 2, shape)).astype(dtype))


def _typical(limits: tuple[int, int]) -> int:
    low, high = limits
    return low if low == high else min(high, max(low, 12))


def _first_that_runs(source: Source, made: list[list[Example]]) -> list[Example]:
    reasons: list[str] = []
    for chosen in itertools.islice(itertools.product(*made), _COMBINATIONS):
        try:
            source.run([e.value for e in chosen])
            return list(chosen)
        except (RuntimeError, TypeError, ValueError, IndexError) as reason:
            reasons.append(last_line(reason))
    shown = ", ".join(f"{e.name}: {list(e.value.shape)}" for options in made for e in options[:1] if e.is_tensor)
    raise UnsupportedModel(
        f"expected inputs that the model accepts, found that it refuses {shown} ({reasons[0][:300]}): "
        "correct --shape (with dtypes, as in ids:int64=1x12) or --inputs"
    )


def widened(examples: Sequence[Example], varying: frozenset[tuple[str, int]]) -> list[Example]:
    """Examples in which sizes of 1 that vary, as (input, axis), are others: torch.export would fix a 1.

    The size is unusual, since torch takes equal sizes for related ones.
    """
    out = []
    for example in examples:
        if example.is_tensor:
            shape = list(example.value.shape)
            times = [_UNUSUAL if n == 1 and (example.name, axis) in varying else 1 for axis, n in enumerate(shape)]
            example = replace(example, value=example.value.repeat(times) if shape else example.value)
        out.append(example)
    return out


def wanted_from(options: Mapping[str, object]) -> list[Wanted]:
    """Options of the restricted worker, plain values, as `Wanted`; arrays lie in the safetensors file they name."""
    from .._handover import map_arrays

    arrays = map_arrays(Path(str(options["inputs"]))) if options.get("inputs") else {}
    found = {name: Wanted(name, str(a.dtype), tuple(None for _ in a.shape), a) for name, a in arrays.items()}
    for plain in options["shapes"]:
        name = str(plain["name"])
        ranges = None if plain["ranges"] is None else tuple((int(a), int(b)) for a, b in plain["ranges"])
        before = found.get(name)
        value = plain["value"] if plain["value"] is not None else before.value if before else None
        if before is not None and ranges is not None and value is before.value and not _fits(before.value, ranges):
            value = None
        found[name] = Wanted(name, plain["dtype"] or (before.dtype if before else None), ranges, value)
    return list(found.values())


def _fits(value: object, ranges: tuple[tuple[int, int], ...]) -> bool:
    shape = np.shape(value)
    return len(shape) == len(ranges) and all(low <= n <= high for n, (low, high) in zip(shape, ranges))
