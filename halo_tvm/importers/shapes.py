"""`--shape input_ids=1..8x1..512`: fix or bound the dimensions of a model's inputs."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..array_files import Unreadable, read_npz
from ..artifact import range_of, sizes_that_hold
from ..artifact.formula import bound
from ..dimensions import text_of
from ..errors import UnknownName, UsageError
from ..imported import ImportedModel
from ._fixed_sizes import with_fixed_sizes

_DIMENSION = re.compile(r"(\d+)(?:\.\.(\d+))?")
_SCALAR = re.compile(r"scalar(?:\((-?[\d.]+(?:e[+-]?\d+)?)\))?")
_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True)
class InputShape:
    """What a `--shape` text says of one input: a range per dimension, perhaps its dtype, the value of a number."""

    name: str
    ranges: tuple[tuple[int, int], ...]
    dtype: str | None = None
    value: int | float | None = None


def parse_input(text: str) -> InputShape:
    """`ids:int64=1..8x128`, `x=1x512`, `flag=scalar`, `rate=scalar(16000)`; the dtype may be left out."""
    head, _, dims = text.partition("=")
    name, _, dtype = head.rpartition(":") if head.rpartition(":")[2] in _DTYPES else (head, "", "")
    scalar = _SCALAR.fullmatch(dims)
    if name and scalar:
        number = scalar[1]
        value = None if number is None else float(number) if any(c in number for c in ".e") else int(number)
        return InputShape(name, (), dtype or None, value)
    matches = [_DIMENSION.fullmatch(d) for d in dims.split("x")]
    if not name or not all(matches):
        raise UsageError(
            f"expected a shape like input_ids=1..8x1..512, found {text!r}: write one number or range per dimension, "
            "or scalar"
        )
    ranges = tuple((int(m[1]), int(m[2] or m[1])) for m in matches)
    if any(low < 1 or low > high for low, high in ranges):
        raise UsageError(
            f"expected dimensions of at least 1 with the smaller bound first, found {text!r}: correct the range"
        )
    return InputShape(name, ranges, dtype or None)


def parse_shape(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """`name=1..8x128` -> ("name", ((1, 8), (128, 128)))."""
    parsed = parse_input(text)
    return parsed.name, parsed.ranges


def usual_size(axis: int, low: int, high: int) -> int:
    """What an open dimension counts as where nothing else is known: 1 for a batch, which is axis 0, else 128."""
    return min(max(1 if axis == 0 else 128, low), high)


def load_examples(file: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, in order; pickled objects are refused."""
    try:
        arrays = read_npz(file)
    except FileNotFoundError:
        raise UsageError(f"expected an .npz file of example inputs, found no file {file!r}: correct --inputs") from None
    except Unreadable as reason:
        raise UsageError(f"expected an .npz file of arrays, found {reason} in {file!r}: correct --inputs") from reason
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise UsageError(
                f"expected arrays of numbers, found {array.dtype} {name[:80]!r} in {file!r}: correct --inputs"
            )
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}  # a number keeps its rank, 0


def apply_shapes(model: ImportedModel, shapes: tuple[str, ...]) -> ImportedModel:
    """`model` with the dimensions named by `shapes` fixed (one number) or given new ranges."""
    ranges, fixed, computed = dict(model.ranges), {}, []
    specs = {spec.name: spec for spec in model.inputs}
    for text in shapes:
        name, dims = parse_shape(text)
        if name not in specs:
            raise UnknownName("input", name, specs)
        spec = specs[name]
        if len(dims) != len(spec.shape):
            raise UsageError(
                f"expected {len(spec.shape)} dimensions for input {name}, found {len(dims)} in {text!r}: "
                "give one per dimension"
            )
        for dim, (low, high) in zip(spec.shape, dims):
            if isinstance(dim, str) and dim not in ranges:
                computed.append((name, dim, (low, high)))
            else:
                _restrict(name, dim, low, high, ranges, fixed)
    for name, dim, bounds in computed:
        check_computed(name, dim, bounds, range_of(dim, ranges))
    if fixed:
        model = _bind(model, fixed)
    kept = {d: r for d, r in ranges.items() if d not in fixed}
    typical = {d: min(max(model.typical.get(d, high), low), high) for d, (low, high) in kept.items()}
    conditions = tuple(dataclasses.replace(c, formula=bound(c.formula, fixed)) for c in model.conditions)
    typical = sizes_that_hold(conditions, kept, typical)
    return dataclasses.replace(model, ranges=kept, typical=typical, conditions=conditions)


def check_computed(name: str, dim: str, bounds: tuple[int, int], found: tuple[int, int] | None) -> None:
    """`UsageError` where `bounds` would restrict `dim` of an input, which is computed of others and lies in `found`."""
    if found is None or bounds[0] > max(1, found[0]) or bounds[1] < found[1]:
        lies = f" and lies in {found[0]}..{found[1]}" if found else ""
        raise UsageError(
            f"dimension {dim} of input {name} follows from others{lies}, found {bounds[0]}..{bounds[1]}: "
            "give ranges to those"
        )


def _restrict(
    name: str, dim: int | str, low: int, high: int, ranges: dict[str, tuple[int, int]], fixed: dict[str, int]
) -> None:
    if isinstance(dim, int):
        if (low, high) != (dim, dim):
            raise UsageError(
                f"input {name} has a fixed dimension of {dim}, found {low}..{high}: "
                "only symbolic dimensions have ranges"
            )
        return
    limit = ranges[dim]
    if not (limit[0] <= low and high <= limit[1]):
        raise UsageError(
            f"dimension {dim} of input {name} may lie in {limit[0]}..{limit[1]}, found {low}..{high}: "
            "choose a range inside it"
        )
    ranges[dim] = (low, high)
    if low == high:
        fixed[dim] = low


def _bind(model: ImportedModel, fixed: dict[str, int]) -> ImportedModel:
    mod = with_fixed_sizes(relax.transform.BindSymbolicVars(dict(fixed), "main")(model.mod))
    types = (var.ty.shape.values for var in mod["main"].params)
    inputs = [  # complex ones have an axis more in `main`
        dataclasses.replace(spec, shape=tuple(map(text_of, dims[: len(spec.shape)])))
        for spec, dims in zip(model.inputs, types)
    ]
    return dataclasses.replace(model, mod=mod, inputs=tuple(inputs))
