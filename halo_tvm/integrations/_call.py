"""What the calls of an artifact from a framework share: the order of inputs, results, their shapes, no derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..artifact import TensorSpec, size_at
from ..errors import UnknownName, UsageError
from ..runtime.tensors import is_aligned


def in_order(specs: Sequence[TensorSpec], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Inputs by position, then by name, in the order of `specs`. Raises `UsageError`, `UnknownName`."""
    names = [spec.name for spec in specs]
    unknown = next((name for name in kwargs if name not in names), None)
    if unknown is not None:
        raise UnknownName("input", unknown, names)
    given = dict(zip(names, args)) | dict(kwargs)
    if len(given) != len(names) or len(args) + len(kwargs) != len(names):
        raise UsageError(
            f"expected the inputs {', '.join(names)}, found {len(args)} by position and {len(kwargs)} by name: "
            "give each of them once"
        )
    return [given[name] for name in names]


def run_of(program: Callable[..., Any]) -> Callable[..., tuple[np.ndarray[Any, Any], ...]]:
    """`program` with a tuple of results, also where there is one."""

    def run(*arrays: Any) -> tuple[np.ndarray[Any, Any], ...]:
        results = program(*arrays)
        return results if isinstance(results, tuple) else (results,)

    return run


def named(outputs: Sequence[TensorSpec], results: Sequence[Any]) -> Any:
    """One result, or several by name."""
    return results[0] if len(outputs) == 1 else {s.name: r for s, r in zip(outputs, results, strict=True)}


def result_shapes(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], shapes: Sequence[Sequence[int | None]]
) -> list[tuple[int | None, ...]]:
    """The shapes of the outputs for inputs of `shapes`; None for a size that does not follow from a known one."""
    sizes: dict[str, int] = {}
    for spec, shape in zip(inputs, shapes, strict=True):
        if len(shape) != len(spec.shape):
            raise UsageError(
                f"expected {len(spec.shape)} dimensions for input {spec.name}, found the shape {tuple(shape)}: "
                "give one size per dimension"
            )
        for dim, size in zip(spec.shape, shape, strict=True):
            if isinstance(dim, str) and size is not None:
                sizes[dim] = int(size)
    return [tuple(size_at(dim, sizes) for dim in spec.shape) for spec in outputs]


def can_be_shared(array: np.ndarray[Any, Any]) -> bool:
    """Whether a framework may take `array` by DLPack: NumPy exports no memory that is read only, and frameworks on XLA
    need a multiple of 64 bytes (TensorFlow ends the process when it meets another)."""
    flags = array.flags
    return array.dtype.kind in "fiu" and is_aligned(array) and flags.c_contiguous and flags.writeable


def no_derivative() -> UsageError:
    """The error of a framework that asks for a gradient."""
    return UsageError(
        "expected a call without gradients, found one that differentiates an artifact, which has no derivative: "
        "stop the gradient before it, or train the model that it was made of"
    )


def foreign_device(found: str, how: str) -> UsageError:
    """The error of a tensor that lies on another device than the CPU; `how` moves it."""
    return UsageError(f"expected tensors on the CPU, found one on {found}: move it with {how}")
