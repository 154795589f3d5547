"""Running sums, products, extremes on a GPU: the blocks of `relay_ops.parts.in_order.running`.

Before -> after
    for task: for j: y[0] = x[0];  for k: for j: y[k + 1] = f(y[k], x[k + 1])
        ->   a thread for each (task, j), which walks along the axis with the last result in a register; neighbours have
             neighbouring elements
        ->   where fewer than a warp's elements lie side by side: a block for each (task, j), tile by tile of the axis:
             each thread combines `_ITEMS` neighbours, the block its threads' totals in shared memory, in log2(threads)
             steps from one half of an array to the other with a barrier behind each; the tile's total is carried on
Columns are along blockIdx.x: the other axes of a grid end at 65,535.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from ...errors import Declined
from ...targets import WARP
from ..blocks import loads, substitute
from ..code.lanes import as_int64, ceil_div, constant, index, loop, product, replace_body, seq, simplify
from ..code.threads import bound, registers, shared, unrolled

_SCAN = "halo.scan"  # annotates the blocks of `running`, whose steps are associative
_ITEMS = 4  # neighbours of one thread
_THREADS = 256  # of a block
_SHORT = 16  # an axis with no more elements is one thread's: a block's would have nothing to do


@dataclass(frozen=True)
class _Scan:
    """y[0] = first, y[k + 1] = combine(y[k], next(k)) at each of `tasks` x `width` columns; `start` is 1 or 0."""

    tasks: tirx.For
    start: tirx.For  # as many steps as there are first elements: none of an axis without elements
    first: tirx.BufferStore
    first_inner: tirx.For
    steps: tirx.For
    next: tirx.BufferStore
    next_inner: tirx.For

    @property
    def output(self) -> ir.Var:
        return self.first.buffer

    @property
    def dtype(self) -> str:
        return str(self.output.dtype)

    @property
    def width(self) -> Expr:
        return as_int64(self.first_inner.extent)

    @property
    def length(self) -> Expr:
        return simplify(as_int64(self.steps.extent) + index(1))

    @property
    def columns(self) -> Expr:
        return product([as_int64(self.tasks.extent), self.width])

    def first_at(self, column: Expr) -> Mapping[ir.Var, Expr]:
        return self._at(column, self.start, index(0), self.first_inner)

    def next_at(self, column: Expr, step: Expr) -> Mapping[ir.Var, Expr]:
        return self._at(column, self.steps, step, self.next_inner)

    def _at(self, column: Expr, along: tirx.For, step: Expr, inner: tirx.For) -> Mapping[ir.Var, Expr]:
        task, j = (column, index(0)) if constant(self.width) == 1 else _divided(column, self.width)
        values = ((self.tasks, task), (along, step), (inner, j))
        return {nest.loop_var: value.astype(str(nest.loop_var.ty.dtype)) for nest, value in values}


def scanned(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func` on threads where it is one running result; None for others."""
    scan = _scan_of(func)
    if scan is None:
        return None
    width, length = constant(scan.width), constant(scan.length)
    few = width is not None and width < WARP
    by_blocks = few and (length is None or length > _SHORT)
    return replace_body(func, _block_each(scan) if by_blocks else _thread_each(scan))


def _scan_of(func: tirx.PrimFunc) -> _Scan | None:
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if root is None or not root.annotations.get(_SCAN, False):
        return None
    tasks = root.body
    parts = tasks.body.seq if isinstance(tasks, tirx.For) and isinstance(tasks.body, tirx.SeqStmt) else ()
    nests = [(outer, outer.body, outer.body.body) for outer in parts if _is_nest(outer)]
    if len(parts) != 2 or len(nests) != 2:
        raise Declined(
            "expected the two nests of a running result, its first elements and its steps, found "
            f"{len(nests)} of {len(parts)} statements: mark no other block with {_SCAN}"
        )
    (start, first_inner, first), (steps, next_inner, following) = nests
    return _Scan(tasks, start, first, first_inner, steps, following, next_inner)


def _is_nest(stmt: tirx.Stmt) -> bool:
    """for: for: store."""
    loops = isinstance(stmt, tirx.For) and isinstance(stmt.body, tirx.For)
    return loops and isinstance(stmt.body.body, tirx.BufferStore)


def _divided(flat: Expr, width: Expr) -> tuple[Expr, Expr]:
    return simplify(tirx.floordiv(flat, width)), simplify(tirx.floormod(flat, width))


def _thread_each(scan: _Scan) -> tirx.Stmt:
    """One thread walks along each column."""
    result, here = registers(1, scan.dtype, "result"), [index(0)]

    def element(store: tirx.BufferStore, at: Mapping[ir.Var, Expr]) -> list[tirx.Stmt]:
        value = substitute(store.value, at, {scan.output: result[0]})
        indices = [simplify(substitute(i, at, {})) for i in store.indices]
        return [tirx.BufferStore(result, value, here), tirx.BufferStore(scan.output, result[0], indices)]

    def walk(column: Expr) -> tirx.Stmt:
        start = loop("start", as_int64(scan.start.extent), lambda _: element(scan.first, scan.first_at(column)))
        steps = loop("k", as_int64(scan.steps.extent), lambda k: element(scan.next, scan.next_at(column, k)))
        return seq([start, steps])

    def thread(column: Expr) -> list[tirx.Stmt]:
        size = constant(scan.columns)
        whole = size is not None and size % _THREADS == 0
        walked = walk(column) if whole else tirx.IfThenElse(column < scan.columns, walk(column), None)
        return [tirx.AllocBuffer(result), walked]

    return _launched(ceil_div(scan.columns, _THREADS), _THREADS, lambda b, t: thread(simplify(b * _THREADS + t)))


def _launched(blocks: Expr, threads: int, body: Callable[[Expr, Expr], Sequence[tirx.Stmt]]) -> tirx.Stmt:
    return bound("blockIdx.x", blocks, lambda b: [bound("threadIdx.x", threads, lambda t: body(b, t))])


def _block_each(scan: _Scan) -> tirx.Stmt:
    """One block of threads scans each column."""
    threads, combine = _threads_of(scan.length), _combination(scan)
    tile = threads * _ITEMS
    mine, carry = registers(_ITEMS, scan.dtype, "mine"), registers(1, scan.dtype, "carry")
    left = registers(1, scan.dtype, "left")
    totals = shared(2 * threads, scan.dtype, "totals")

    def item(column: Expr, place: Expr, i: int) -> list[tirx.Stmt]:
        """Beyond the end the last element again: what is made of it, no element before it takes in."""
        inside = simplify(tirx.min(place, scan.length - index(1)))
        before = simplify(tirx.max(inside - index(1), index(0)))
        first = substitute(scan.first.value, scan.first_at(column), {})
        following = substitute(_new_element(scan), scan.next_at(column, before), {})
        made = [tirx.BufferStore(mine, tirx.if_then_else(inside > 0, following, first), [index(i)])]
        if i:
            made.append(tirx.BufferStore(mine, combine(mine[i - 1], mine[i]), [index(i)]))
        return made

    def block(column: Expr, t: Expr) -> list[tirx.Stmt]:
        def one_tile(number: Expr) -> list[tirx.Stmt]:
            begin = simplify(number * index(tile) + t * index(_ITEMS))
            out = item(column, begin, 0)
            carried = tirx.BufferStore(mine, combine(carry[0], mine[0]), [index(0)])
            out.append(tirx.IfThenElse(tirx.all(t < 1, number > 0), carried, None))
            for i in range(1, _ITEMS):
                out += item(column, simplify(begin + index(i)), i)
            out += [tirx.BufferStore(totals, mine[_ITEMS - 1], [t]), _barrier()]
            steps, ends = _steps(totals, threads, t, combine)
            out += steps
            before = simplify(tirx.max(t - index(1), index(0)) + ends)
            out += [tirx.BufferStore(left, totals[before], [index(0)])]
            out += [tirx.BufferStore(carry, totals[simplify(ends + index(threads - 1))], [index(0)]), _barrier()]
            joined = unrolled("i", _ITEMS, lambda i: [tirx.BufferStore(mine, combine(left[0], mine[i]), [i])])
            out.append(tirx.IfThenElse(t > 0, joined, None))
            out += [_stored(scan, column, simplify(begin + index(i)), mine[i]) for i in range(_ITEMS)]
            return out

        allocated = [tirx.AllocBuffer(x) for x in (mine, carry, left, totals)]
        return [*allocated, loop("tile", ceil_div(scan.length, tile), one_tile)]

    return _launched(scan.columns, threads, block)


def _threads_of(length: Expr) -> int:
    known, threads = constant(length), _THREADS
    while known is not None and threads > WARP and threads * _ITEMS // 2 >= known:
        threads //= 2
    return threads


def _steps(
    totals: ir.Var, threads: int, t: Expr, combine: Callable[[Expr, Expr], Expr]
) -> tuple[list[tirx.Stmt], tirx.IntImm]:
    """The totals of threads 0 to t at each t, in the half of `totals` that begins at the index returned."""
    out: list[tirx.Stmt] = []
    half, distance = 0, 1
    while distance < threads:
        here = totals[simplify(t + index(half))]
        lower = totals[simplify(tirx.max(t - index(distance), index(0)) + index(half))]
        half = threads - half
        both = tirx.if_then_else(t >= index(distance), combine(lower, here), here)
        out += [tirx.BufferStore(totals, both, [simplify(t + index(half))]), _barrier()]
        distance *= 2
    return out, index(half)


def _stored(scan: _Scan, column: Expr, place: Expr, value: Expr) -> tirx.Stmt:
    at = scan.next_at(column, simplify(place - index(1)))
    indices = [simplify(substitute(i, at, {})) for i in scan.next.indices]
    return tirx.IfThenElse(place < scan.length, tirx.BufferStore(scan.output, value, indices), None)


def _barrier() -> tirx.Stmt:
    return tirx.Evaluate(T.tvm_storage_sync("shared"))


def _new_element(scan: _Scan) -> Expr:
    """What a step combines with the result before it."""
    found = [load for load in loads(scan.next.value) if not load.source.same_as(scan.output)]
    if not found or any(not tvm_ffi.structural_equal(found[0], other) for other in found):
        raise Declined("expected steps of a running result that take one element each: write it by `running`")
    return found[0] if str(found[0].ty.dtype) == scan.dtype else tirx.Cast(scan.dtype, found[0])


def _combination(scan: _Scan) -> Callable[[Expr, Expr], Expr]:
    """A step as a function of two results: `old` of y[k], `new` of the element it takes."""
    element = _new_element(scan)
    new = tirx.Var("new", scan.dtype)

    def taken(node: Expr) -> Expr:
        return new if tvm_ffi.structural_equal(node, element) else node

    step = tvm_ffi.structural_map(scan.next.value, [(kind, taken) for kind in (tirx.Cast, ir.TensorLoad)], order="post")
    if any(not x.source.same_as(scan.output) for x in loads(step)):
        raise Declined("expected steps that read their element in the type of the result: write it by `running`")
    return lambda old, value: substitute(step, {new: value}, {scan.output: old})
