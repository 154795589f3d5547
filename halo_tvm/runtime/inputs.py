"""Run-time inputs: checked against the manifest, converted to contiguous, aligned arrays, or generated.

A kernel trusts its arguments (a token id beyond the vocabulary reads foreign memory), so nothing
reaches it unchecked. Only casts that lose nothing (NumPy's "safe") are made silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from ..artifact import (
    RANDOM_STATE,
    FunctionSpec,
    Manifest,
    Room,
    TensorSpec,
    broken,
    last_position,
    names_in,
    size_at,
    sizes_at,
    sizes_that_hold,
)
from ..errors import InputError, UnknownName
from .tensors import aligned_empty, as_complex, is_aligned, numpy_dtype, to_array, unlocked

_SIZE_WITHOUT_RANGE = (1, (1 << 31) - 1)
_GENERATED_SIZE = 128
_FEW = 64


def bind_inputs(spec: FunctionSpec, args: Sequence[object], kwargs: Mapping[str, object]) -> list[np.ndarray]:
    """Contiguous, aligned arrays in the order of `spec.inputs`; omitted ones with a `default` are filled in.

    What kernels write in place is copied: a caller's array never changes.

    Raises
    ------
    InputError, UnknownName
        one sentence: the input, what it must be, what was passed, what to do
    """
    given = _by_name(spec, args, kwargs)
    arrays: dict[str, np.ndarray] = {}
    sizes: dict[str, tuple[int, str]] = {}  # dimension -> size, and the input it was first seen in
    for tensor in spec.inputs:
        if tensor.name in given:
            array = _converted(tensor, given[tensor.name])
            _check_shape(spec, tensor, array.shape, sizes)
            array = _as_kernels_need(array, spec.alignment, own=tensor.name in spec.written)
            check_values(tensor, array)
            arrays[tensor.name] = array
    known = {name: size for name, (size, _) in sizes.items()}
    for tensor in spec.inputs:
        if tensor.name not in arrays:
            arrays[tensor.name] = _filled(spec, tensor, known)
            if spec.conditions:
                _check_shape(spec, tensor, arrays[tensor.name].shape, sizes)
        if tensor.room is not None:
            _check_room(tensor, tensor.room, arrays[tensor.name], known)
    _check_conditions(spec, sizes)
    return [arrays[tensor.name] for tensor in spec.inputs]


def check_types(spec: FunctionSpec, types: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> None:
    """Refuse arrays that a framework has yet to compute, by their dtypes and shapes, as `bind_inputs` would."""
    sizes: dict[str, tuple[int, str]] = {}
    for tensor, (dtype, shape) in zip(spec.inputs, types, strict=True):
        _check_type(tensor, dtype, shape)
        _check_shape(spec, tensor, shape, sizes)
    _check_conditions(spec, sizes)


def typical_sizes(manifest: Manifest, function: str = "main") -> dict[str, int]:
    """The sizes a model is usually run at, by dimension, as its manifest gives them, where its ranges allow them."""
    found = manifest.source.get("typical")
    ranges = manifest.functions[function].ranges
    return {
        name: size
        for name, size in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(size, int) and name in ranges and ranges[name][0] <= size <= ranges[name][1]
    }


def generate_inputs(
    spec: FunctionSpec, *, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Seeded random inputs: normal floats, integers spread over their `values`, defaults as declared.

    A dimension not in `sizes` takes the lower bound of its range where it leads a shape (a batch),
    and 128, or the nearest size its range allows, elsewhere (a sequence). Random numbers are drawn by the same seed.
    """
    names = [name for t in spec.inputs for d in t.shape for name in names_in(d)]
    chosen = dict(sizes or {})
    for name in chosen:
        if name not in names:
            raise UnknownName("dimension", name, set(names))
    leading = {t.shape[0] for t in spec.inputs if t.shape}
    for name in names:
        low, high = spec.ranges.get(name, _SIZE_WITHOUT_RANGE)
        chosen.setdefault(name, low if name in leading else min(max(low, _GENERATED_SIZE), high))
    random = np.random.default_rng(seed)
    if spec.conditions:
        bounds = {name: (size, size) for name, size in (sizes or {}).items()}  # what was asked for stays
        chosen = sizes_that_hold(spec.conditions, {**spec.ranges, **bounds}, chosen)
    arrays = {t.name: _random(t, sizes_at(t.shape, chosen), chosen, random) for t in spec.inputs}
    if RANDOM_STATE in arrays:
        arrays[RANDOM_STATE] = np.array([seed, 0], np.int64)
    return arrays


def _random(
    tensor: TensorSpec, shape: tuple[int, ...], sizes: Mapping[str, int], random: np.random.Generator
) -> np.ndarray:
    dtype = numpy_dtype(tensor.dtype)
    if tensor.default is not None:
        return (np.ones if tensor.default == "ones" else np.zeros)(shape, dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = tensor.values or (0, 1)
        if tensor.room is not None:
            high = max(low, min(high, last_position(tensor.room, sizes)))
        return random.integers(low, high, shape, dtype=np.int64, endpoint=True).astype(dtype)
    if dtype.kind == "c":
        return as_complex(random.standard_normal((*shape, 2), dtype=np.float32)).astype(dtype)
    return random.standard_normal(shape, dtype=np.float32).astype(dtype)


def _by_name(spec: FunctionSpec, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    names = [t.name for t in spec.inputs]
    if len(args) > len(names):
        raise InputError(
            f"expected at most {len(names)} inputs ({', '.join(names)}), found {len(args)}; leave the rest out"
        )
    given: dict[str, object] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise UnknownInput(name, names)
        if name in given:
            raise InputError(f"input {name!r}: expected once, found by position and by name; pass it one way")
        given[name] = value
    return given


class UnknownInput(UnknownName, InputError):
    """An input name the function does not have."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        UnknownName.__init__(self, "input", name, known)


def _converted(tensor: TensorSpec, value: object) -> np.ndarray:
    dtype = numpy_dtype(tensor.dtype)
    array = value if isinstance(value, np.ndarray) else _foreign(tensor, value, dtype)
    _check_type(tensor, array.dtype, array.shape)
    if array.dtype != dtype:
        array = array.astype(dtype)
    return array


def _check_type(tensor: TensorSpec, dtype: np.dtype, shape: Sequence[int]) -> None:
    if dtype != numpy_dtype(tensor.dtype) and not np.can_cast(dtype, numpy_dtype(tensor.dtype), "safe"):
        raise InputError(
            f"input {tensor.name!r}: expected {tensor.dtype}, found {dtype}, "
            f"which does not convert without loss; pass .astype({tensor.dtype!r})"
        )
    if len(shape) != len(tensor.shape):
        raise InputError(
            f"input {tensor.name!r}: expected rank {len(tensor.shape)} ({_shape_text(tensor.shape)}), "
            f"found rank {len(shape)} ({_shape_text(shape)}); reshape it"
        )


def _foreign(tensor: TensorSpec, value: object, dtype: np.dtype) -> np.ndarray:
    """An array over a DLPack tensor's memory, or of what NumPy takes."""
    if not hasattr(value, "__dlpack__"):
        try:
            return _of_numbers(value, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"input {tensor.name!r}: expected an array of {tensor.dtype}, "
                f"found {type(value).__name__} ({error}); pass a NumPy array or anything with __dlpack__"
            ) from error
    try:
        return (
            to_array(tvm_ffi.from_dlpack(value))
            if "bfloat16" in str(getattr(value, "dtype", ""))
            else np.from_dlpack(value)
        )
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        raise InputError(
            f"input {tensor.name!r}: expected a tensor in CPU memory, "
            f"found {type(value).__name__} "
            f"that DLPack cannot hand over ({str(error).splitlines()[0]}); pass .detach().cpu()"
        ) from error


def _of_numbers(value: object, dtype: np.dtype) -> np.ndarray:
    """`value` as an array: Python's numbers, which have no dtype, as `dtype`, anything else of the dtype it has.

    Raises TypeError for what is no number, and OverflowError for Python's numbers that `dtype` does not hold.
    """
    natural = np.asarray(value)
    if natural.dtype.kind in "OUSMm":
        raise TypeError(f"values of type {natural.dtype}")
    if not _is_plain_python(value):
        return natural
    if not np.can_cast(natural.dtype, dtype, "same_kind"):
        raise TypeError(f"values of type {natural.dtype}")
    with np.errstate(over="ignore"):
        array = np.asarray(value, dtype=dtype)
    if dtype.kind not in "biu" and not np.array_equal(np.isinf(array), np.isinf(natural)):
        raise OverflowError(f"a number too large for {dtype}")
    return array


def _is_plain_python(value: object) -> bool:
    """Whether `value` is a number of Python's own, or lists of such; NumPy's float64 is a float, and has a dtype."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain_python, value))
    return type(value) in (bool, int, float, complex, range)


def _check_shape(
    spec: FunctionSpec, tensor: TensorSpec, shape: tuple[int, ...], sizes: dict[str, tuple[int, str]]
) -> None:
    for axis, (expected, found) in enumerate(zip(tensor.shape, shape, strict=True)):
        if isinstance(expected, int):
            if found != expected:
                raise InputError(
                    f"input {tensor.name!r}: expected size {expected} in axis {axis} ({_shape_text(tensor.shape)}), "
                    f"found {found} ({_shape_text(shape)}); pass the shape the model was compiled for"
                )
            continue
        size, origin = sizes.setdefault(expected, (found, tensor.name))
        if size != found:
            raise InputError(
                f"dimension {expected!r}: expected {size} in {tensor.name!r} as in {origin!r}, found {found}; "
                "pass inputs of equal size there"
            )
        low, high = spec.ranges.get(expected, _SIZE_WITHOUT_RANGE)
        if not low <= found <= high:
            raise InputError(
                f"input {tensor.name!r}: expected {low} to {high} for dimension {expected!r}, found {found}; "
                "pass a size in that range or compile with a wider one"
            )


def _check_conditions(spec: FunctionSpec, sizes: Mapping[str, tuple[int, str]]) -> None:
    if not spec.conditions:
        return
    known = {name: size for name, (size, _) in sizes.items()}
    failed = broken(spec.conditions, known)
    if failed is not None:
        raise InputError(
            f"sizes: expected {failed.text[:200]}, as the model was exported for, found "
            f"{', '.join(f'{name} {size}' for name, size in sorted(known.items()))}; pass such sizes, or export the "
            "model with examples of these"
        )


def check_values(tensor: TensorSpec, array: np.ndarray) -> None:
    """Refuse integers outside of what `tensor` allows."""
    if tensor.values is None or array.size == 0:
        return
    low, high = tensor.values
    if array.size <= _FEW:  # two reductions of NumPy take longer than Python needs for so many
        few = array.ravel().tolist()
        least, most = min(few), max(few)
    else:
        least, most = int(array.min()), int(array.max())
    if least < low or most > high:
        raise InputError(
            f"input {tensor.name!r}: expected values from {low} to {high}, found {least if least < low else most}; "
            "check what produced them (a tokenizer of another model?)"
        )


def _check_room(tensor: TensorSpec, room: Room, array: np.ndarray, sizes: Mapping[str, int]) -> None:
    """Refuse positions behind which rows would fall outside of the caches: kernels leave such rows out."""
    most = int(array.max()) if array.size else 0
    if most > last_position(room, sizes):
        rows, dimension = room
        raise InputError(
            f"input {tensor.name!r}: expected positions from which {rows if isinstance(rows, int) else sizes[rows]} "
            f"fit into {dimension!r} {sizes[dimension]}, found {most}; pass inputs with more room there"
        )


def _filled(spec: FunctionSpec, tensor: TensorSpec, sizes: Mapping[str, int]) -> np.ndarray:
    if tensor.name in spec.state:  # a first call has nothing to continue: the least there may be
        least = {d: spec.ranges[d][0] for d in tensor.shape if isinstance(d, str) and d in spec.ranges}
        sizes = {**least, **sizes}
    open_dimensions = [d for d in tensor.shape if size_at(d, sizes) is None]
    if tensor.default is None or open_dimensions:
        needed = ", ".join(t.name for t in spec.inputs if t.default is None)
        raise InputError(
            f"input {tensor.name!r}: expected {tensor.dtype} {_shape_text(tensor.shape)}, found nothing; pass {needed}"
        )
    shape = sizes_at(tensor.shape, sizes)
    array = aligned_empty(shape, numpy_dtype(tensor.dtype))
    array.fill(1 if tensor.default == "ones" else 0)
    return array


def _as_kernels_need(array: np.ndarray, alignment: int, *, own: bool) -> np.ndarray:
    """`array`'s memory where kernels can read it, else a copy: dense, at a multiple of `alignment`.

    Always a copy, the run's `own`, of what kernels write.
    """
    if array.flags.c_contiguous and is_aligned(array, alignment) and not own:
        return unlocked(array)
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _shape_text(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
