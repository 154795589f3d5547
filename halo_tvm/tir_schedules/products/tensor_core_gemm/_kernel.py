"""The kernel: asynchronous copies several steps ahead, products on tensor cores, stages on the sums in registers.

Before (blocks):   for i, j, k: acc;   for i, j: stage 1;   for i, j: stage 2 ...
After:
    block of threads = [block_m, block_n] of the result:
        copy the first stages - 1 steps of k to shared memory
        for step of block_k:
            wait for its copies; barrier; begin the copies that are stages - 1 steps ahead
            for 16 of k: fragments of the next 16 by ldmatrix, while mma works on these
        for each pair of neighbouring sums of a thread: all stages, where it is inside the result

Why not Schedule primitives: TVM's intrinsics for ldmatrix know float16 but not bfloat16, no permuted shared memory
and no float32 that is rounded on its way; its epilogues pass through memory; and reading them takes half a minute.

Rows and columns beyond the result are copies of its last one, which nobody stores; beyond k there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ....dimensions import itemsize_of
from ....targets import WARP
from ...code.nests import root_block
from ...stages import emit_stages
from .._product import Product
from ._rounding import round_rows, rounds_first
from ._shared import SharedTile
from ._tiling import MMA_K, MMA_M, MMA_N, Tiling, copy_width

_COPY = "tirx.s_tir.cp_async_raw"
_SHORT = {"float16": "fp16", "bfloat16": "bf16"}
_A, _B, _C = 8, 4, 4  # elements of a fragment that a lane holds: [16, 16] of x, [16, 8] of the weight, [16, 8] sums


def build(product: Product, tiling: Tiling, one_row: Callable[[], None] | None) -> s_tir.SBlockRealize:
    """All kernels as a root block; a single row of a symbolic number goes to the kernel that `one_row` emits."""

    def some_rows() -> None:
        scale = None
        taken = product
        if rounds_first(product):
            half, scale = round_rows(product)
            taken = replace(product, x=half)
        launch(taken, tiling, scale)

    with root_block() as builder:
        if one_row is None:
            some_rows()
        else:
            with T.If(product.m == 1):
                with T.Then():
                    one_row()
                with T.Else():
                    some_rows()
    return builder.get()


def launch(product: Product, t: Tiling, scale: ir.Var | None) -> None:
    """The kernel of the product, which multiplies the sums of a row by its `scale` [m] where there is one.

    Blocks of rows are neighbours in the order of launch, so that they share columns of the weight.
    """
    down, across = tirx.ceildiv(product.m, t.block_m), -(-product.n // t.block_n)
    with (
        T.thread_binding(down, thread="blockIdx.x") as by,
        T.thread_binding(across, thread="blockIdx.y") as bx,
        T.thread_binding(t.threads, thread="threadIdx.x") as thread,
        T.sblock("block_of_threads"),
    ):
        T.reads()
        T.writes()
        _Block(product, t, by * t.block_m, bx * t.block_n, thread, scale).emit()


@dataclass(frozen=True)
class _Operand:
    """A matrix in global memory and the tiles of it in shared memory, one per stage."""

    matrix: ir.Var
    tile: SharedTile
    kept: ir.Var  # [stages * tile.size]
    top: ir.Expr | int  # row of the matrix at which a tile begins, and its number of rows
    rows: ir.Expr | int
    left: ir.Expr | int
    columns: int


@dataclass(frozen=True)
class _Block:
    """One block of threads; the rest of the arguments says where its part of the result begins."""

    product: Product
    t: Tiling
    top: ir.Expr
    left: ir.Expr
    thread: ir.Var
    scale: ir.Var | None

    @property
    def lane(self) -> ir.Expr:
        return self.thread % WARP

    @property
    def steps(self) -> int:
        return -(-self.product.k // self.t.block_k)

    def emit(self) -> None:
        t = self.t
        warp_m, warp_n = t.warp_tile
        x = T.sblock_alloc_buffer((t.stages * t.x_tile.size,), t.x_dtype, scope="shared.dyn")
        weight = T.sblock_alloc_buffer((t.stages * t.weight_tile.size,), t.weight_dtype, scope="shared.dyn")
        sums = T.alloc_buffer((warp_m * warp_n // WARP,), "float32", scope="local")
        with T.unroll(warp_m * warp_n // WARP) as i:
            T.buffer_store(sums, tirx.const(0, "float32"), [i])
        for step in range(t.stages - 1):
            if step < self.steps:
                self._copy(x, weight, step, step)
            _commit()
        fragments = [
            (
                T.alloc_buffer((warp_m // MMA_M * _A,), t.weight_dtype, scope="local"),
                T.alloc_buffer((warp_n // MMA_N * _B,), t.weight_dtype, scope="local"),
            )
            for _ in range(2)
        ]
        with T.serial(self.steps) as step:
            T.evaluate(T.ptx["cp.async.wait_group"](t.stages - 2))
            T.evaluate(T.tvm_storage_sync("shared"))
            ahead = step + t.stages - 1
            if self.steps > t.stages - 1:
                with T.If(ahead < self.steps), T.Then():
                    self._copy(x, weight, ahead, ahead % t.stages)
            _commit()
            self._multiply(x, weight, step % t.stages, fragments, sums)
        self._finish(sums)

    # Copies

    def _copy(self, x: ir.Var, weight: ir.Var, step: ir.Expr | int, stage: ir.Expr | int) -> None:
        """Begin to copy the tiles of a step of k."""
        p, t = self.product, self.t
        k = step * t.block_k
        self._copy_tile(_Operand(p.x, t.x_tile, x, self.top, p.m, k, p.k), stage, along_k="columns")
        if p.by_column:
            operand = _Operand(p.weight, t.weight_tile, weight, self.left, p.n, k, p.k)
            self._copy_tile(operand, stage, along_k="columns")
        else:
            operand = _Operand(p.weight, t.weight_tile, weight, k, p.k, self.left, p.n)
            self._copy_tile(operand, stage, along_k="rows")

    def _copy_tile(self, o: _Operand, stage: ir.Expr | int, along_k: str) -> None:
        width = copy_width(o.columns, o.tile)
        across = o.tile.columns // width
        count = o.tile.rows * across
        whole_k = self.product.k % self.t.block_k == 0
        for first in range(0, count, self.t.threads):
            piece = first + self.thread
            row, column = piece // across, piece % across * width
            to = stage * o.tile.size + o.tile.at(row, column)
            row, column, inside = o.top + row, o.left + column, None
            if along_k == "columns":
                row, inside = tirx.min(row, o.rows - 1), column < o.columns
            else:
                column, inside = tirx.min(column, o.columns - width), row < o.rows
            inside = None if whole_k else inside
            if count - first < self.t.threads:
                with T.If(self.thread < count - first), T.Then():
                    _move(o, to, row, column, width, inside)
            else:
                _move(o, to, row, column, width, inside)

    # Products

    def _multiply(
        self, x: ir.Var, weight: ir.Var, stage: ir.Expr, fragments: list[tuple[ir.Var, ir.Var]], sums: ir.Var
    ) -> None:
        """sums += x @ weight over one step of k."""
        t = self.t
        short = _SHORT[t.weight_dtype]
        m, n = (size // mma for size, mma in zip(t.warp_tile, (MMA_M, MMA_N)))
        parts = t.block_k // MMA_K
        self._load(x, weight, stage, 0, fragments[0])
        for part in range(parts):
            if part + 1 < parts:
                self._load(x, weight, stage, part + 1, fragments[(part + 1) % 2])
            a, b = fragments[part % 2]
            for i in range(m):
                for j in range(n):
                    T.evaluate(
                        T.ptx_legacy.mma(
                            "m16n8k16",
                            "row",
                            "col",
                            short,
                            short,
                            "fp32",
                            a.data,
                            i * _A,
                            b.data,
                            j * _B,
                            sums.data,
                            (i * n + j) * _C,
                            False,
                            dtype="float32",
                        )
                    )

    def _load(self, x: ir.Var, weight: ir.Var, stage: ir.Expr, part: int, fragments: tuple[ir.Var, ir.Var]) -> None:
        """Fragments of 16 of k from shared memory."""
        t, lane = self.t, self.lane
        top, left = self._warp_origin()
        a, b = fragments
        k = part * MMA_K
        for i in range(t.warp_tile[0] // MMA_M):
            if t.x_dtype == t.weight_dtype:
                row, column = top + i * MMA_M + lane % 16, k + lane // 16 * 8
                _ldmatrix(t, False, a, i * _A, x, stage * t.x_tile.size + t.x_tile.at(row, column))
            else:
                self._round(x, stage, top + i * MMA_M, k, a, i * _A)
        for j in range(t.warp_tile[1] // (2 * MMA_N)):
            at = left + j * 2 * MMA_N
            if t.by_column:
                row, column = at + lane // 16 * 8 + lane % 8, k + lane // 8 % 2 * 8
            else:
                row, column = k + lane % 16, at + lane // 16 * 8
            _ldmatrix(
                t, not t.by_column, b, 2 * j * _B, weight, stage * t.weight_tile.size + t.weight_tile.at(row, column)
            )

    def _round(self, x: ir.Var, stage: ir.Expr, top: ir.Expr, k: int, a: ir.Var, first: int) -> None:
        """A fragment of float32 rows, rounded: each lane reads the four pairs of neighbours that are its own."""
        tile = self.t.x_tile
        for pair in range(4):
            row, column = top + pair % 2 * 8 + self.lane // 4, k + pair // 2 * 8 + self.lane % 4 * 2
            at = stage * tile.size + tile.at(row, column)
            # One by one, which nvcc makes loads of pairs of: of vectors TVM would make the buffer's type, and the
            # places of its copies wrong.
            for e in range(2):
                T.buffer_store(a, tirx.Cast(self.t.weight_dtype, x[at + e]), [first + 2 * pair + e])

    def _warp_origin(self) -> tuple[ir.Expr, ir.Expr]:
        """Row and column of the block's tile at which this warp's tile begins."""
        assert self.t.warp_grid is not None
        warp, (warp_m, warp_n) = self.thread // WARP, self.t.warp_tile
        across = self.t.warp_grid[1]
        return warp // across * warp_m, warp % across * warp_n

    # Results

    def _finish(self, sums: ir.Var) -> None:
        """All stages on the sums of this thread that are inside the result."""
        p, t = self.product, self.t
        top, left = self._warp_origin()
        m, n = (size // mma for size, mma in zip(t.warp_tile, (MMA_M, MMA_N)))
        width = 2 if p.n % 2 == 0 else 1
        factor = None if self.scale is None else T.alloc_buffer((1,), "float32", scope="local")

        def columns(row: ir.Expr, first: int) -> None:
            if factor is not None:
                T.buffer_store(factor, self.scale[row], [0])
            for j in range(n):
                for e in range(0, 2, width):
                    at = first + j * _C + e
                    column = self.left + left + j * MMA_N + self.lane % 4 * 2 + e

                    def emit(at: int = at, column: ir.Expr = column) -> None:
                        def total(lane: ir.Expr) -> ir.Expr:
                            return sums[at + lane] if factor is None else sums[at + lane] * factor[0]

                        def place(lane: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
                            return row, column + lane

                        emit_stages(p.stages, {p.acc: total}, p.outputs, place, width, scope="local")

                    _inside(None if p.n % t.block_n == 0 else column < p.n, emit)

        whole = p.rows is not None and p.rows % t.block_m == 0
        for i in range(m):
            for half in range(2):
                row = self.top + top + i * MMA_M + half * 8 + self.lane // 4
                first = i * n * _C + 2 * half
                _inside(None if whole else row < p.m, lambda row=row, first=first: columns(row, first))


def _inside(condition: ir.Expr | None, emit: object) -> None:
    if condition is None:
        emit()
        return
    with T.If(condition), T.Then():
        emit()


def _commit() -> None:
    T.evaluate(T.ptx["cp.async.commit_group"]())


def _move(o: _Operand, to: ir.Expr, row: ir.Expr, column: ir.Expr, width: int, inside: ir.Expr | None) -> None:
    """Begin to copy `width` elements; zeros where they are not `inside`."""
    size = width * itemsize_of(o.tile.dtype)
    # An address, because TVM hands offsets on as int32, and x may be larger than that.
    args = [o.kept.data, to, T.address_of(o.matrix[row, column]), 0, size]
    if inside is not None:
        args.append(inside)
    T.evaluate(ir.Call(ir.Op.get(_COPY), args, ret_ty=ir.PrimType(o.tile.dtype)))


def _ldmatrix(t: Tiling, transposed: bool, to: ir.Var, first: int, kept: ir.Var, at: ir.Expr) -> None:
    # An access pointer: the pass that gives shared memory its places counts neither `data` nor cp.async as a use.
    source = kept.access_ptr("r")
    T.evaluate(T.ptx_legacy.ldmatrix(transposed, 4, ".b16", to.data, first, source, at, dtype=t.weight_dtype))
