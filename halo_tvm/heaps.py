"""A binary heap in TIR, and what it is for: the first few elements of a row in order, without sorting the row.

n elements of which k are wanted cost n comparisons and, in an order by chance, k log(n / k) sinkings of log k steps; a
merge sort costs n log n whatever is wanted of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from tvm import ir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

Before = Callable[[ir.Expr, ir.Expr], ir.Expr]
RANKED = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool")
_PLACES = (1 << 32) - 1  # elements of a row: what 32 bits can number
_BLOCK = 16  # elements that are asked together: with more, more are asked again one by one


class Heap:
    """Elements by number in `items[*row, 0:size]`, each in front of the two below it by `before` (two numbers -> bool).

    The methods emit statements into the IR builder that is open.
    """

    def __init__(self, items: T.buffer_proxy, row: Sequence[ir.Expr], before: Before) -> None:
        self._items, self._row, self._before = items, tuple(row), before
        self._at, self._child = (T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local")) for _ in range(2))

    def __getitem__(self, place: ir.Expr | int) -> ir.Expr:
        return self._items[(*self._row, place)]

    def __setitem__(self, place: ir.Expr | int, number: ir.Expr) -> None:
        self._items[(*self._row, place)] = number

    def build(self, size: ir.Expr) -> None:
        """Make a heap of `size` elements in any order."""
        half = tirx.floordiv(size, _int64(2))
        with T.serial(0, half) as i:
            self.sink(half - 1 - i, size)

    def sink(self, start: ir.Expr, size: ir.Expr) -> None:
        """Mend a heap whose element at `start` may belong below."""
        at, child = self._at, self._child
        at[0] = start
        with T.While(at[0] * 2 + 1 < size):
            child[0] = at[0] * 2 + 1
            with T.If(child[0] + 1 < size), T.Then():  # apart: both sides of an "and" are read
                with T.If(self._before(self[child[0] + 1], self[child[0]])), T.Then():
                    child[0] = child[0] + 1
            with T.If(self._before(self[child[0]], self[at[0]])):
                with T.Then():
                    self._swap(at[0], child[0])
                    at[0] = child[0]
                with T.Else():
                    at[0] = size

    def pop(self, size: ir.Expr) -> None:
        """Bring the first of `size` elements behind the others, which stay a heap."""
        self._swap(_int64(0), size - 1)
        self.sink(_int64(0), size - 1)

    def _swap(self, a: ir.Expr, b: ir.Expr) -> None:
        kept = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))
        kept[0] = self[a]
        self[a] = self[b]
        self[b] = kept[0]


def comes_before(dtype: str, *, descending: bool) -> Before:
    """Whether a value of `dtype` comes strictly before another in ascending or descending order; NaN is the largest."""
    number = comparable(dtype)
    is_float = dtype.startswith(("float", "bfloat"))

    def before(a: ir.Expr, b: ir.Expr) -> ir.Expr:
        a, b = (number(b), number(a)) if descending else (number(a), number(b))
        return tirx.Or(a < b, tirx.And(tirx.isnan(b), tirx.Not(tirx.isnan(a)))) if is_float else a < b

    return before


def in_order(a: ir.Expr, b: ir.Expr, is_first: ir.Expr, before: Before) -> ir.Expr:
    """Whether a comes before b, or else equals it and `is_first`.

    Not by "b is not before a": TVM takes the negation of a < b for b <= a, which NaN makes another thing.
    """
    dtype = str(a.ty.dtype)
    number = comparable(dtype)
    equal = number(a) == number(b)
    if dtype.startswith(("float", "bfloat")):
        equal = tirx.Or(equal, tirx.And(tirx.isnan(number(a)), tirx.isnan(number(b))))
    return tirx.Or(before(a, b), tirx.And(equal, is_first))


def comparable(dtype: str) -> Callable[[ir.Expr], ir.Expr]:
    """Values of `dtype` in one that LLVM compares in hardware."""
    wider = {"bfloat16": "float32", "float16": "float32", "bool": "int8"}.get(dtype)
    return (lambda value: value) if wider is None else (lambda value: tirx.Cast(wider, value))


def first_places(x: te.Tensor, k: ir.Expr | int, *, largest: bool) -> te.Tensor:
    """x [rows, n] -> int64 [rows, k]: places of each row's largest or smallest, in order; of equal ones the first.

    Where k is more than n, the last place stands for those that are missing.
    """
    rows, n = x.shape
    if str(x.dtype) in RANKED:
        return _first_ranks(x, k, largest=largest)
    before = comes_before(str(x.dtype), descending=largest)

    def first(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        data, out = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        size = tirx.min(_int64(k), n)

        with IRBuilder() as ib:
            with each_of(rows) as r:

                def later(i: ir.Expr, j: ir.Expr) -> ir.Expr:
                    return in_order(data[r, j], data[r, i], j < i, before)

                heap = Heap(out, [r], later)  # the last of the first ones is on top
                with T.If(size > 0), T.Then():
                    with T.serial(0, size) as i:
                        heap[i] = i
                    heap.build(size)
                    with T.serial(0, n - size) as i:
                        with T.If(before(data[r, i + size], data[r, heap[0]])), T.Then():
                            heap[0] = i + size
                            heap.sink(_int64(0), size)
                    with T.serial(0, size) as i:
                        heap.pop(size - i)
                    with T.serial(0, k - size) as i:
                        heap[size + i] = heap[size - 1]
            return ib.get()

    return te.extern([(rows, k)], [x], first, dtype="int64", name="first_places")


def _first_ranks(x: te.Tensor, k: ir.Expr | int, *, largest: bool) -> te.Tensor:
    """`first_places` by one integer for each element: its rank, and how far it is from the end of its row.

    Most blocks of elements have none that comes before one of the first k so far, which vectors of ranks tell.
    """
    rows, n = x.shape

    def first(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        data, out = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        size = tirx.min(_int64(k), n)
        blocks = tirx.floordiv(n - size, _int64(_BLOCK))

        with IRBuilder() as ib:
            with each_of(rows) as r:

                def rank_at(i: ir.Expr) -> ir.Expr:
                    return rank(data[r, i], descending=largest)

                def whole(i: ir.Expr) -> ir.Expr:
                    return tirx.shift_left(rank_at(i).astype("int64"), _int64(32)) + (_int64(_PLACES) - i)

                heap = Heap(out, [r], lambda a, b: a < b)  # the last of the first ones is on top
                last, some = (T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local")) for _ in range(2))

                def take(i: ir.Expr) -> None:
                    with T.If(rank_at(i) > last[0]), T.Then():
                        heap[0] = whole(i)
                        heap.sink(_int64(0), size)
                        last[0] = tirx.shift_right(heap[0], _int64(32)).astype("int32")

                with T.If(size > 0), T.Then():
                    with T.serial(0, size) as i:
                        heap[i] = whole(i)
                    heap.build(size)
                    last[0] = tirx.shift_right(heap[0], _int64(32)).astype("int32")
                    with T.serial(0, blocks) as block:
                        begin = size + block * _BLOCK
                        some[0] = tirx.const(0, "int32")
                        with T.serial(0, _BLOCK) as i:
                            some[0] = tirx.bitwise_or(some[0], (rank_at(begin + i) > last[0]).astype("int32"))
                        with T.If(some[0] != 0), T.Then(), T.serial(0, _BLOCK) as i:
                            take(begin + i)
                    with T.serial(0, n - size - blocks * _BLOCK) as i:
                        take(size + blocks * _BLOCK + i)
                    with T.serial(0, size) as i:
                        heap.pop(size - i)
                    with T.serial(0, size) as i:
                        heap[i] = _int64(_PLACES) - tirx.bitwise_and(heap[i], _int64(_PLACES))
                    with T.serial(0, k - size) as i:
                        heap[size + i] = heap[size - 1]
            return ib.get()

    return te.extern([(rows, k)], [x], first, dtype="int64", name="first_places")


def each_of(rows: ir.Expr) -> AbstractContextManager[tirx.Var]:
    """The loop over rows, which are tasks where they may be several."""
    each = T.serial if isinstance(rows, tirx.IntImm) and int(rows) == 1 else T.parallel
    loop: AbstractContextManager[tirx.Var] = each(0, rows)
    return loop


def rank(value: ir.Expr, *, descending: bool) -> ir.Expr:
    """An integer that is the larger the earlier `value` comes; NaN is the largest. int64 of 64 bits, int32 of fewer.

    Bits of positive floats are in their order, those of negative ones in the opposite one.
    """
    dtype = str(value.ty.dtype)
    bits = rank_bits(dtype)
    signed = f"int{bits}"
    if dtype.startswith(("float", "bfloat")):
        number = value.astype(f"float{bits}")
        number = tirx.Select(number == 0, tirx.const(0, f"float{bits}"), number)  # of -0 as well
        number = tirx.reinterpret(signed, number)
        largest, infinity = (1 << bits - 1) - 1, {32: 0x7F80_0000, 64: 0x7FF0_0000_0000_0000}[bits]
        magnitude = tirx.bitwise_and(number, tirx.const(largest, signed))
        number = tirx.Select(number < 0, -magnitude, number)
        number = tirx.Select(magnitude > tirx.const(infinity, signed), tirx.const(largest, signed), number)
    elif dtype == f"uint{bits}":
        number = tirx.reinterpret(signed, tirx.bitwise_xor(value, tirx.const(1 << bits - 1, dtype)))
    else:
        number = value.astype(signed)
    return number if descending else tirx.bitwise_not(number)


def rank_bits(dtype: str) -> int:
    """Bits of a `rank` of `dtype`."""
    return 64 if dtype in ("float64", "int64", "uint64") else 32


def _int64(value: ir.Expr | int) -> ir.Expr:
    return tirx.const(value, "int64") if isinstance(value, int) else value
