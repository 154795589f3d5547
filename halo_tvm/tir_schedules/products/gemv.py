"""Linear layers of one to eight rows, as in decoding: x [m, k] @ weight [n, k], and the stages fused behind it.

Before (blocks):   for i, j, k: acc;   for i, j: stage 1;   for i, j: stage 2 ...
After:
    block of threads = `warps` warps, which share groups of `columns` columns, `split` warps one group:
        each lane: for its pieces of 16 bytes of k: columns * m sums += x * weight, in float32
        sums of lanes by shuffles, of the warps of a group through shared memory
        for each column, one lane per row: all stages
Every byte of the weight is read once, by all lanes in order; that is what takes the time, so more bytes must be on
their way, not more products: hence `split` where there are few columns.

Serves
    weight [n, k] of float32, float16 or bfloat16; x of the same type or of float32; m static, 1 to 8; any n; any k;
    any number of element-wise stages over [m, n]
Declines
    a CPU; symbolic rows, or more than 8; a weight of [k, n], or packed; no linear block; another type; a stage that
    is not element-wise over the same rows and columns
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...dimensions import itemsize_of
from ...errors import Declined
from ...targets import WARP
from ..blocks import written_out
from ..code.nests import root_block
from ..code.threads import LAUNCH_US, VECTOR_BYTES, across_threads, for_each_piece
from ..rule import Numbers, Rule, gpu_of
from ..stages import emit_stages
from ._product import Product, match_product

if TYPE_CHECKING:
    from ...targets import Target
    from ...targets.gpu_levels import GpuLevel

MOST_ROWS = 8
_TYPES = ("float32", "float16", "bfloat16")
_COLUMNS, _WARPS, _SPLITS = (1, 2, 4, 8), (2, 4, 8), (1, 2, 4, 8)
_MOST_SUMS = 32
_LATENCY_NS = 900  # of a piece of the weight, from memory
_OWN_REGISTERS = 40


@dataclass(frozen=True)
class Decision:
    """How the columns and k are shared."""

    columns: int  # of a group: as many weights meet each piece of x
    warps: int  # of a block
    split: int  # warps that share the k of one group


class GEMV(Rule[Decision]):
    """Dot products by warps."""

    name = "gemv"
    Decision = Decision
    domains = {
        "columns": Numbers(1, 16),
        "warps": Numbers(1, 32),
        "split": Numbers(1, 32),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        return self.space(func, target)[0]

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Every way to share them, the fastest by the estimate first."""
        return _ranked(*_served(func, target))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        product, gpu = _served(func, target)
        return _estimate(product, decision, gpu)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        product, _ = _served(func, target)
        refused = _refusal(product, decision)
        if refused:
            raise Declined(refused)
        with root_block() as builder:
            launch(product, decision)
        return written_out(func, builder.get())


def _served(func: tirx.PrimFunc, target: Target) -> tuple[Product, GpuLevel]:
    gpu, product = gpu_of(target), match_product(func)
    if product.rows is None or not 1 <= product.rows <= MOST_ROWS:
        rows = product.m if product.rows is None else product.rows
        raise Declined(f"{rows} rows: 1 to {MOST_ROWS}, known in advance, are served")
    if not product.by_column:
        raise Declined("the weight is [k, n]: only [n, k], whose rows a warp reads in order, is served")
    if product.weight_dtype not in _TYPES or product.x_dtype not in (product.weight_dtype, "float32"):
        raise Declined(
            f"x is {product.x_dtype}, the weight {product.weight_dtype}: the same of {', '.join(_TYPES)}, "
            "or x of float32, are served"
        )
    return product, gpu


def _ranked(product: Product, gpu: GpuLevel) -> tuple[Decision, ...]:
    values = itertools.product(_COLUMNS, _WARPS, _SPLITS)
    served = [d for d in (Decision(*fields) for fields in values) if not _refusal(product, d)]
    return tuple(sorted(served, key=lambda d: _estimate(product, d, gpu)))


def one_row_of(product: Product, gpu: GpuLevel) -> Callable[[], None]:
    """What emits the default kernel for the first row of `product`, whose weight is [n, k]."""
    row = replace(product, m=tirx.IntImm("int64", 1))
    return lambda: launch(row, _ranked(row, gpu)[0])


def _refusal(product: Product, d: Decision) -> str:
    """Why a decision cannot be; empty when it can."""
    assert product.rows is not None
    if d.warps % d.split:
        return f"{d.split} warps of each group do not divide {d.warps}"
    if d.columns * product.rows > _MOST_SUMS and d.columns > 1:
        return f"{d.columns} columns of {product.rows} rows are more than {_MOST_SUMS} sums"
    if d.columns >= 2 * product.n:
        return f"{d.columns} columns of {product.n}"
    return ""


def _width(product: Product) -> int:
    """Elements of the weight that a lane reads at once: 16 bytes, where rows keep them aligned."""
    return math.gcd(product.k, VECTOR_BYTES // itemsize_of(product.weight_dtype))


def _estimate(product: Product, d: Decision, gpu: GpuLevel) -> float:
    """Microseconds: memory, unless too few bytes are on their way (Little's law) or x is read too often."""
    assert product.rows is not None
    weight = product.n * product.k * itemsize_of(product.weight_dtype)
    groups = -(-product.n // d.columns)
    blocks = -(-groups * d.split // d.warps)
    registers = _OWN_REGISTERS + d.columns * product.rows + 4 * d.columns + 8 * product.rows
    at_once = gpu.blocks_at_once(d.warps * WARP, registers)
    in_flight = min(blocks, at_once) * d.warps * WARP * d.columns * _width(product) * itemsize_of(product.weight_dtype)
    gbps = min(gpu.memory_gbps, in_flight / _LATENCY_NS)
    # x comes from the first-level cache, 128 bytes a cycle; each group reads it once.
    x_bytes = groups * product.rows * product.k * itemsize_of(product.x_dtype)
    cached = x_bytes / min(blocks, gpu.multiprocessors) / 128 / gpu.clock_ghz
    steps = -(-product.k // (WARP * _width(product) * d.split))
    idle = steps * WARP * _width(product) * d.split / product.k  # lanes without a piece in the last step
    waves = -(-blocks // at_once)
    ends = waves * (_LATENCY_NS + 20 * d.columns * product.rows + (300 if d.split > 1 else 0))
    return LAUNCH_US + (max(weight * idle / gbps, cached) + ends) * 1e-3


def launch(product: Product, d: Decision) -> None:
    """One kernel."""
    groups_of_block = d.warps // d.split
    blocks = -(-product.n // (d.columns * groups_of_block))
    with (
        T.thread_binding(blocks, thread="blockIdx.x") as block,
        T.thread_binding(d.warps * WARP, thread="threadIdx.x") as thread,
        T.sblock("block_of_threads"),
    ):
        T.reads()
        T.writes()
        warp, lane = thread // WARP, thread % WARP
        group = warp // d.split
        first = (block * groups_of_block + group) * d.columns
        sums = _sums(product, d, first, warp % d.split * WARP + lane)
        if d.split > 1:
            _across_warps(product, d, sums, thread)
        _finish(product, d, sums, first, thread)


def _sums(product: Product, d: Decision, first: ir.Expr, place: ir.Expr) -> ir.Var:
    """columns * rows sums, each complete in every lane of its warp. `place` numbers the lanes of a group."""
    rows, width = product.rows, _width(product)
    assert rows is not None
    sums = T.alloc_buffer((d.columns * rows,), "float32", scope="local")
    with T.unroll(d.columns * rows) as i:
        T.buffer_store(sums, tirx.const(0, "float32"), [i])
    x = [T.alloc_buffer((width,), product.x_dtype, scope="local") for _ in range(rows)]
    weight = [T.alloc_buffer((width,), product.weight_dtype, scope="local") for _ in range(d.columns)]

    def part(k: ir.Expr) -> None:
        # Columns beyond the last are computed as the last, and not stored.
        for c in range(d.columns):
            column = first + c if product.n % (d.columns * (d.warps // d.split)) == 0 else _least(first + c, product.n)
            _read(weight[c], product.weight, column, k, width)
        for r in range(rows):
            _read(x[r], product.x, tirx.IntImm("int32", r), k, width)
        for c in range(d.columns):
            for r in range(rows):
                with T.unroll(width) as e:
                    value = tirx.Cast("float32", x[r][e]) * tirx.Cast("float32", weight[c][e])
                    at = c * rows + r
                    T.buffer_store(sums, sums[at] + value, [at])

    for_each_piece(product.k, WARP * d.split, place, width, part)
    for at in range(d.columns * rows):
        for stmt in across_threads(sums, tirx.Add, WARP, at):
            T.add_to_parent(stmt)
    return sums


def _least(column: ir.Expr, n: int) -> ir.Expr:
    return tirx.min(column, n - 1)


def _read(to: ir.Var, matrix: ir.Var, row: ir.Expr, k: ir.Expr, width: int) -> None:
    """`width` neighbours, in pieces of 16 bytes at most."""
    piece = min(width, VECTOR_BYTES // itemsize_of(matrix.ty.dtype))
    for start in range(0, width, piece):
        with T.vectorized(piece) as e:
            T.buffer_store(to, matrix[row, k + start + e], [start + e])


def _across_warps(product: Product, d: Decision, sums: ir.Var, thread: ir.Var) -> None:
    """Add up the sums of the warps that share a group; every lane of them has the total."""
    assert product.rows is not None
    count = d.columns * product.rows
    kept = T.sblock_alloc_buffer((d.warps * count,), "float32", scope="shared")
    warp, lane = thread // WARP, thread % WARP
    with T.If(lane == 0), T.Then():
        for at in range(count):
            T.buffer_store(kept, sums[at], [warp * count + at])
    T.evaluate(T.tvm_storage_sync("shared"))
    for at in range(count):
        T.buffer_store(sums, kept[warp // d.split * d.split * count + at], [at])
        for other in range(1, d.split):
            T.buffer_store(sums, sums[at] + kept[(warp // d.split * d.split + other) * count + at], [at])


def _finish(product: Product, d: Decision, sums: ir.Var, first: ir.Expr, thread: ir.Var) -> None:
    """All stages, each sum by a lane of its own of the group's first warp."""
    assert product.rows is not None
    rows = product.rows
    count = d.columns * rows
    lane = thread % WARP
    mine = T.alloc_buffer((1,), "float32", scope="local")
    # Registers have no index at run time: each lane picks its own sum.
    T.buffer_store(mine, sums[0], [0])
    for at in range(1, count):
        T.buffer_store(mine, tirx.Select(lane == at, sums[at], mine[0]), [0])
    row, column = lane % rows, first + lane // rows
    conditions = [lane < count] if count < WARP else []
    if d.split > 1:
        conditions.append(thread // WARP % d.split == 0)
    if product.n % (d.columns * (d.warps // d.split)):
        conditions.append(column < product.n)

    def emit() -> None:
        emit_stages(
            product.stages,
            {product.acc: lambda _: mine[0]},
            product.outputs,
            lambda e: (row, column + e),
            1,
            scope="local",
        )

    if not conditions:
        emit()
        return
    with T.If(tirx.all(*conditions)), T.Then():
        emit()
