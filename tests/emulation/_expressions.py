"""The value of an expression in every lane.

A scalar is an array of shape [] (the same in all lanes) or [lanes]; a vector has a second axis: [lanes or 1, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import ir, tirx

from halo_tvm.errors import UnsupportedModel

from ._fault import KernelFault
from ._floats import canonical, larger, smaller
from ._lanes import WARP, Lanes
from ._memory import Pointer, numpy_dtype

_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Mod": np.fmod,
    "Max": larger,
    "Min": smaller,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "LShift": np.left_shift,
    "RShift": np.right_shift,
}
_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    **{
        name: getattr(np, name)
        for name in (
            "exp",
            "exp2",
            "log",
            "log2",
            "log10",
            "log1p",
            "sqrt",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "fabs",
            "floor",
            "ceil",
            "trunc",
            "isnan",
            "isinf",
            "isfinite",
            "hypot",
            "fmod",
            "copysign",
            "nextafter",
        )
    },
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "nearbyint": np.rint,
    "fma": lambda a, b, c: a * b + c,
    "ldexp": np.ldexp,
    "popcount": np.bitwise_count,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "likely": lambda x: x,
    "tvm_thread_invariant": lambda x: x,
}


class Expressions:
    """Values of expressions in `lanes`; `env` holds variables, `buffers` where each buffer lies."""

    def __init__(self, lanes: Lanes, env: dict[object, np.ndarray], buffers: dict[object, Pointer]) -> None:
        self.lanes, self.env, self.buffers = lanes, env, buffers
        self.active: np.ndarray | None = None  # lanes that execute; None: all

    def value(self, expr: ir.Expr) -> np.ndarray:
        """The value of `expr`; in lanes that are not active it may be anything."""
        kind = type(expr).__name__
        if kind in _BINARY:
            return canonical(_BINARY[kind](*self._aligned(expr.a, expr.b)).astype(self.dtype(expr), copy=False))
        visit = getattr(self, f"_{kind.lower()}", None)
        if visit is None:
            raise UnsupportedModel(f"an expression that can be emulated was expected, but found {kind}: {expr}")
        return visit(expr)

    def dtype(self, expr: ir.Expr) -> np.dtype:
        return numpy_dtype(str(expr.ty.dtype))[0]

    def number(self, expr: ir.Expr) -> int:
        """An integer that is the same in all active lanes."""
        value = np.asarray(self.value(expr))
        if value.ndim and self.active is not None:
            value = value[self.active]
        first = int(value.flat[0])
        if (value != first).any():
            raise UnsupportedModel(f"one number for all threads was expected, but {expr} differs between them")
        return first

    def pointer(self, expr: ir.Expr) -> Pointer:
        """Where a handle points to."""
        if isinstance(expr, ir.Call):
            name = expr.op.name.rpartition(".")[2]
            if name == "buffer_data":
                return self.buffers[expr.args[0]]
            if name == "cvta_generic_to_shared":
                return self.pointer(expr.args[0])
            if name == "tvm_access_ptr":
                base = self.pointer(expr.args[1])
                return self._moved(base, self.dtype(expr.args[0]), self.value(expr.args[2]))
            if name == "address_of":
                load = expr.args[0]
                base = self.buffers[load.source]
                (index,) = load.indices
                return self._moved(base, base.dtype, self.value(index))
        for known in (self.env, self.buffers):
            if expr in known and isinstance(known[expr], Pointer):
                return known[expr]
        raise UnsupportedModel(f"a pointer that can be emulated was expected, but found {expr}")

    def load(self, pointer: Pointer, index: np.ndarray | int, n: int = 0) -> np.ndarray:
        """Elements from `index` behind `pointer` on: one, or `n` in a row as a vector."""
        at = np.asarray(pointer.offset + np.asarray(index))
        if n:
            at = (at[:, None] if at.ndim == 1 else at.reshape(1, 1)) + np.arange(n)
        return pointer.memory.load(pointer.dtype, at, self.active, pointer.byte_offset)

    def store(self, pointer: Pointer, index: np.ndarray | int, value: np.ndarray) -> None:
        """`value` into the elements from `index` behind `pointer` on."""
        at = np.asarray(pointer.offset + np.asarray(index))
        if value.ndim == 2 and at.ndim < 2:
            at = (at[:, None] if at.ndim == 1 else at.reshape(1, 1)) + np.arange(value.shape[1])
        pointer.memory.store(pointer.dtype, at, value, self.active, pointer.byte_offset)

    def check_aligned(self, pointer: Pointer, index: np.ndarray | int, size: int, what: str) -> None:
        """A fault unless the element `index` behind `pointer` begins at a multiple of `size` bytes in active lanes.

        Memory itself begins at one: TVM aligns every array of a kernel to 64 bytes, and CUDA its allocations to 256.
        """
        at = (np.asarray(pointer.offset, np.int64) + index) * pointer.dtype.itemsize + pointer.byte_offset
        wrong = at % size != 0
        if self.active is not None:
            wrong, at = wrong & self.active, self.full(at)
        if wrong.any():
            raise KernelFault(
                f"{what} begins at byte {at[wrong].flat[0]} of {pointer.memory.name}, and must at a multiple of {size}"
            )

    def element(self, buffer: object, indices: list[ir.Expr]) -> tuple[Pointer, np.ndarray, int]:
        """Where an access of a flat buffer begins, and how many elements a vector type has (0: a scalar)."""
        (index,) = indices
        pointer, lanes = self.buffers[buffer], numpy_dtype(str(buffer.dtype))[1]
        at = self.value(index)
        return pointer, at * lanes if lanes > 1 else at, lanes if lanes > 1 else 0

    def masked(self, condition: np.ndarray) -> np.ndarray:
        """The active lanes in which `condition` [lanes] holds."""
        return condition if self.active is None else condition & self.active

    def full(self, value: np.ndarray) -> np.ndarray:
        """A scalar in every lane by itself."""
        return np.broadcast_to(value, (self.lanes.count,))

    def check_vector(self, pointer: Pointer, index: np.ndarray, lanes: int, what: str) -> None:
        """A fault when the type of `lanes` elements in CUDA cannot begin there: it is aligned to at most 16 bytes."""
        size = lanes * pointer.dtype.itemsize
        self.check_aligned(pointer, index, min(16, size & -size), f"{what} of {size} bytes")

    def _moved(self, base: Pointer, dtype: np.dtype, offset: np.ndarray) -> Pointer:
        assert base.dtype.itemsize == dtype.itemsize or not np.any(base.offset), "a pointer into other elements"
        return Pointer(base.memory, dtype, base.offset + offset, base.byte_offset)

    def _aligned(self, *exprs: ir.Expr) -> list[np.ndarray]:
        values = [np.asarray(self.value(e)) for e in exprs]
        if any(v.ndim == 2 for v in values):
            values = [v[:, None] if v.ndim == 1 else v for v in values]
        return values

    def _intimm(self, expr: tirx.IntImm) -> np.ndarray:
        dtype = self.dtype(expr)
        value = int(expr.value)
        if dtype.kind == "u":
            value %= 1 << (8 * dtype.itemsize)
        return np.asarray(value, dtype)

    def _floatimm(self, expr: tirx.FloatImm) -> np.ndarray:
        return np.asarray(float(expr.value), self.dtype(expr))

    def _var(self, expr: tirx.Var) -> np.ndarray:
        if expr not in self.env:
            raise UnsupportedModel(f"a variable with a value was expected, but found {expr.name}")
        return self.env[expr]

    def _cast(self, expr: tirx.Cast) -> np.ndarray:
        return canonical(np.asarray(self.value(expr.value)).astype(self.dtype(expr)))

    def _div(self, expr: tirx.Div) -> np.ndarray:
        a, b = self._aligned(expr.a, expr.b)
        dtype = self.dtype(expr)
        if dtype.kind in "iu":
            # Towards zero as in C, and in integers: floats hold 53 bits.
            return np.floor_divide(a - np.fmod(a, b), b).astype(dtype, copy=False)
        return canonical((a / b).astype(dtype, copy=False))

    def _not(self, expr: tirx.Not) -> np.ndarray:
        return np.logical_not(self.value(expr.a))

    def _bitwisenot(self, expr: tirx.BitwiseNot) -> np.ndarray:
        return np.invert(self.value(expr.a))

    def _select(self, expr: tirx.Select) -> np.ndarray:
        return self._chosen(expr.condition, expr.true_value, expr.false_value)

    def _let(self, expr: tirx.Let) -> np.ndarray:
        self.env[expr.var] = self.value(expr.value)
        return self.value(expr.body)

    def _ramp(self, expr: tirx.Ramp) -> np.ndarray:
        base, stride = (np.asarray(self.value(e)) for e in (expr.base, expr.stride))
        base, stride = (v[:, None] if v.ndim == 1 else v.reshape(1, 1) for v in (base, stride))
        return base + stride * np.arange(int(expr.lanes), dtype=base.dtype)

    def _broadcast(self, expr: tirx.Broadcast) -> np.ndarray:
        value = np.asarray(self.value(expr.value))
        value = value[:, None] if value.ndim == 1 else value.reshape(1, 1)
        return np.broadcast_to(value, (value.shape[0], int(expr.lanes)))

    def _shuffle(self, expr: tirx.Shuffle) -> np.ndarray:
        vectors = [np.asarray(self.value(v)) for v in expr.vectors]
        vectors = [v if v.ndim == 2 else v.reshape(-1, 1) for v in vectors]
        rows = max(v.shape[0] for v in vectors)
        joined = np.concatenate([np.broadcast_to(v, (rows, v.shape[1])) for v in vectors], 1)
        picked = joined[:, [self.number(i) for i in expr.indices]]
        return picked if len(expr.indices) > 1 else picked[:, 0]

    def _tensorload(self, expr: ir.Expr) -> np.ndarray:
        pointer, at, n = self.element(expr.source, expr.indices)
        lanes = n or vector_lanes(expr.indices)
        if lanes:
            # Of a vector that begins anywhere else TVM loads each element by itself, which needs no alignment.
            begins = first_lane(at)
            self.check_vector(pointer, begins if n else begins - begins % lanes, lanes, "a vector load")
        return self.load(pointer, at, n)

    def _call(self, expr: ir.Call) -> np.ndarray:
        name = expr.op.name.rpartition(".")[2] if isinstance(expr.op, ir.Op) else str(expr.op)
        if name == "if_then_else":
            return self._chosen(*expr.args)
        if name in _FUNCTIONS:
            values = self._aligned(*expr.args)
            dtype = self.dtype(expr)
            wide = [v.astype(np.float32) if v.dtype.kind == "V" or v.dtype == np.float16 else v for v in values]
            return canonical(np.asarray(_FUNCTIONS[name](*wide)).astype(dtype, copy=False))
        if name == "reinterpret":
            value, dtype = np.asarray(self.value(expr.args[0])), self.dtype(expr)
            seen = np.ascontiguousarray(value).view(dtype)
            return seen.reshape(value.shape) if seen.size == value.size else seen
        if name.startswith("tvm_warp_shuffle"):
            mask, *given = (np.asarray(self.value(a)) for a in expr.args[:4])
            self.lanes.check_mask(mask, self.active, name)
            return self._shuffled(name, *given)
        if name == "tvm_warp_activemask":
            return self.lanes.active_mask(self.active)
        raise UnsupportedModel(f"a call that can be emulated was expected, but found {expr.op}: {expr}")

    def _chosen(self, condition: ir.Expr, yes: ir.Expr, no: ir.Expr) -> np.ndarray:
        """One of two values; each is computed in the lanes that take it only."""
        holds = np.asarray(self.value(condition))
        if not holds.ndim:
            return self.value(yes if holds else no)
        if holds.ndim == 2:
            return np.where(holds, *self._aligned(yes, no))
        before, values = self.active, []
        for lanes, expr in ((holds, yes), (~holds, no)):
            self.active = lanes if before is None else before & lanes
            values.append(np.asarray(self.value(expr)))
        self.active = before
        if any(v.ndim == 2 for v in values):
            holds, values = holds[:, None], [v[:, None] if v.ndim == 1 else v for v in values]
        return np.where(holds, *values)

    def _shuffled(self, name: str, value: np.ndarray, by: np.ndarray, width: np.ndarray) -> np.ndarray:
        """The value of another lane of the warp; of a lane that is not there or not active, all bits set."""
        lane, size = self.lanes.thread % WARP, int(np.asarray(width).flat[0])
        start = lane // size * size
        other = {
            "tvm_warp_shuffle": start + by % size,
            "tvm_warp_shuffle_up": np.where(lane - by >= start, lane - by, lane),
            "tvm_warp_shuffle_down": np.where(lane + by < start + size, lane + by, lane),
            "tvm_warp_shuffle_xor": lane ^ by,
        }[name]
        source = np.arange(self.lanes.count) + other - lane
        there = self.lanes.thread + other - lane < self.lanes.threads
        source = np.where(there, source, 0)
        if self.active is not None:
            there = there & self.active[source]
        value = self.full(value)
        nothing = np.full(1, 0xFF, np.uint8).repeat(value.dtype.itemsize).view(value.dtype)[0]
        return np.where(there, value[source], nothing)


def vector_lanes(indices: list[ir.Expr]) -> int:
    """Elements of a flat access that is one vector in CUDA: neighbours; 0 for any other."""
    (index,) = indices
    is_run = isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1
    return int(index.lanes) if is_run else 0


def first_lane(index: np.ndarray) -> np.ndarray:
    """Where a vector begins in every thread, of its elements' places [lanes or 1, n]."""
    if index.ndim < 2:
        return index
    return index[:, 0] if len(index) > 1 else index[0, 0]
