"""Seeded arguments for timing and checking a function, in the worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tvm
from tvm import tirx

from ...differences import differences, largest_finite
from ...runtime.tensors import numpy_dtype
from ...tir_schedules.blocks import blocks
from ..sizes import Env, shape_of, symbols

_COLD_LIMIT = 256 << 20  # bytes spent on copies of weights


class Weights:
    """Weight arguments in several copies that together overflow the caches; calls take them in turn.

    In a model every weight comes from memory, because all the others were read since its last use.
    One instance serves all sizes of a task, and says on which device they lie.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        positions: Sequence[int],
        seed: int,
        l3_bytes: int,
        device: tvm.runtime.Device | None = None,
        most: int | None = None,
    ) -> None:
        """At most `most` copies."""
        self.device = device or tvm.cpu()
        first = {i: _value(func.params[i], {}, False, np.random.default_rng((seed, i)), self.device) for i in positions}
        size = sum(map(_bytes, first.values()))
        copies = min(-(-2 * l3_bytes // size), max(1, _COLD_LIMIT // size)) if size and l3_bytes else 1
        copies = min(copies, most or copies)
        self.sets = [first, *({i: _copy(value, self.device) for i, value in first.items()} for _ in range(copies - 1))]
        self.bytes = size * copies


class Arguments:
    """The arguments of one function at one size, with one set for each copy of its weights."""

    def __init__(
        self, func: tirx.PrimFunc, dims: Sequence[int], outputs: Sequence[int], weights: Weights, seed: int
    ) -> None:
        env: Env = dict(zip(symbols(func), dims))
        self._outputs = tuple(outputs)
        known = weights.sets[0]
        others = {
            i: _value(param, env, i in outputs, np.random.default_rng((seed, i)), weights.device)
            for i, param in enumerate(func.params)
            if i not in known
        }
        others |= _full_caches(func, env, weights.device) | _all_experts(func, env, seed, weights.device)
        self.bytes = sum(_bytes(v) for v in others.values() if isinstance(v, tvm.runtime.Tensor))
        self._sets = [[{**others, **copy}[i] for i in range(len(func.params))] for copy in weights.sets]
        self._at = 0

    def one(self) -> list[object]:
        """The next set of arguments."""
        self._at = (self._at + 1) % len(self._sets)
        return self._sets[self._at]

    @property
    def first(self) -> list[object]:
        """The set whose outputs `spoil` and `results` speak of."""
        return self._sets[0]

    def turns(self, number: int) -> Iterator[list[object]]:
        return (self.one() for _ in range(number))

    @property
    def is_cold(self) -> bool:
        return len(self._sets) > 1

    def spoil(self) -> None:
        """Fill the outputs with values no kernel leaves behind, so that what is not written shows."""
        for i in self._outputs:
            tensor = self._sets[0][i]
            host = tensor.numpy()
            host[...] = np.nan if _is_float(host.dtype) else 85
            tensor.copyfrom(host)

    def results(self) -> list[np.ndarray]:
        return [self._sets[0][i].numpy() for i in self._outputs]


def operand_tolerance(func: tirx.PrimFunc) -> float:
    """How far results of two schedules of `func` may be apart because one of them rounds what it multiplies.

    A product with a weight of 16 bits may round the other operand as far, attention as far as its call permits, one
    with integers in groups rounds it to eight bits; the unscheduled function does none of it. Relative to the largest
    magnitude.
    """
    call = func.attrs.get("halo.call") if func.attrs else None
    of_experts = call is not None and call["op"] == "experts" and "bits" in call
    if of_experts or any(block.op == "linear_groups" for block in blocks(func)):
        return _BYTES_TOLERANCE
    operands = {str(param.ty.dtype) for param in func.params if isinstance(param.ty, tirx.BufferType)}
    if call is not None and "products" in call:
        operands.add(str(call["products"]))
    return max(_OPERAND_TOLERANCE.get(operand, 0.0) for operand in operands)


def disagreement(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], operands: float = 0.0) -> str:
    """Empty when all arrays agree within the tolerance of their dtype, or within that of operands, else a sentence."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if not _is_float(a.dtype):
            wrong = int((a != b).sum())
            if wrong:
                return f"output {i}: {wrong} of {a.size} integers differ"
            continue
        scale, worst = largest_finite(b), float(differences(a, b).max(initial=0.0))
        if worst > max(_TOLERANCE.get(a.dtype.name, 2e-4), operands) * max(scale, 1e-6):
            return f"output {i}: largest error {worst:.3g} at magnitude {scale:.3g}"
    return ""


# Relative to the largest magnitude: sums are reordered, and their rounding grows with their length.
_TOLERANCE = {"float64": 1e-10, "float32": 2e-4, "float16": 2e-2, "bfloat16": 5e-2}
_BYTES_TOLERANCE = 4e-2  # half a step of 127 in each factor, and two such products where a gate multiplies
_OPERAND_TOLERANCE = {"float16": 2e-3, "tf32": 2e-3, "bfloat16": 2e-2}


def _value(
    param: tvm.ir.Var, env: Env, is_output: bool, rng: np.random.Generator, device: tvm.runtime.Device
) -> object:
    if not isinstance(param.ty, tirx.BufferType):
        return env[param]
    shape, dtype = shape_of(param, env), str(param.ty.dtype)
    if is_output:
        return tvm.runtime.tensor(np.zeros(shape, numpy_dtype(dtype)), device)
    if dtype in ("int8", "uint8"):  # quantised numbers, all but the least one, which no weight has
        least = np.iinfo(dtype).min + 1
        return tvm.runtime.tensor(rng.integers(least, np.iinfo(dtype).max + 1, shape).astype(dtype), device)
    if dtype.startswith(("int", "uint")) or dtype == "bool":
        # 0 and 1 are in the range of every index and token table.
        return tvm.runtime.tensor(rng.integers(0, 2, shape).astype(numpy_dtype(dtype)), device)
    return tvm.runtime.tensor(rng.standard_normal(shape, dtype="float32").astype(numpy_dtype(dtype)), device)


def _full_caches(func: tirx.PrimFunc, env: Env, device: tvm.runtime.Device) -> dict[int, object]:
    """The lengths of an attention over caches, each as long as there is room: 0 or 1 keys would take no time."""
    call = func.attrs.get("halo.call") if func.attrs else None
    if call is None or call["op"] != "attention" or not call.get("has_lengths", False):
        return {}
    buffers = [i for i, param in enumerate(func.params) if isinstance(param.ty, tirx.BufferType)]
    (b,), t = shape_of(func.params[buffers[-2]], env), shape_of(func.params[buffers[1]], env)[1]
    return {buffers[-2]: tvm.runtime.tensor(np.full(b, t, "int32"), device)}


def _all_experts(func: tirx.PrimFunc, env: Env, seed: int, device: tvm.runtime.Device) -> dict[int, object]:
    """Of a mixture, the experts of every row: as far apart as a router sends them, not the first two alone."""
    call = func.attrs.get("halo.call") if func.attrs else None
    if call is None or call["op"] != "experts":
        return {}
    ids = [i for i, param in enumerate(func.params) if isinstance(param.ty, tirx.BufferType)][1]
    rows, top = shape_of(func.params[ids], env)
    experts = int(getattr(call["experts"], "value", call["experts"]))
    chosen = np.argsort(np.random.default_rng((seed, ids)).random((rows, experts)), axis=-1)[:, :top]
    return {ids: tvm.runtime.tensor(chosen.astype("int32"), device)}


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _copy(value: object, device: tvm.runtime.Device) -> object:
    return value.copyto(tvm.runtime.empty(value.shape, value.dtype, device))


def _bytes(value: object) -> int:
    return int(np.prod(value.shape, dtype=np.int64)) * numpy_dtype(str(value.dtype)).itemsize
