"""Products in AMX's registers of two dimensions: 16 rows of 64 bytes, so 16 steps of 16 sums' weights are one register.

    tdpbusd     uint8 times int8 into int32: a step is four k; tdpbssd: int8 times int8
    tdpbf16ps   bfloat16 times bfloat16 into float32: a step is two k

Either way a step is four bytes of each row of x, and a row of 16 weights is as packed panels have it. Up to 32 rows are
two rows of registers of sums, which share what is loaded of the weight:

    sums 0 1 2      for 16 steps:  x 0,  weight 0: sum 0;  weight 1: sum 1;  weight 2: sum 2
    sums 3 4 5                     x 1:           sum 5;  weight 1: sum 4;  weight 0: sum 3

How many rows registers have is said at run time: one code serves tiles of every height. Two rows of registers have
equally many; of an odd number of rows the middle one is computed twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

ROWS = 16  # of a register
ROW_BYTES = 64
_COLUMNS = 3  # registers of sums side by side, in two rows
_X, _WEIGHT, _REGISTERS = 6, 7, 8
_STEP_BYTES = 4
WHOLE = "halo_whole_tiles"  # a function that says that all registers have 16 rows of 64 bytes
# Where code calls it, an attribute of pragma_import_llvm holds this: the palette, sizes of rows, numbers of rows.
_SIZES, _HEIGHTS = sum(ROW_BYTES << 16 * i for i in range(4)), sum(ROWS << 8 * i for i in range(_REGISTERS))
WHOLE_TEXT = f"""
@{WHOLE}_sizes = internal constant [8 x i64]
  [i64 1, i64 0, i64 {_SIZES}, i64 {_SIZES}, i64 0, i64 0, i64 {_HEIGHTS}, i64 0], align 64
define internal void @{WHOLE}() alwaysinline nounwind {{
  call void @llvm.x86.ldtilecfg(ptr @{WHOLE}_sizes)
  ret void
}}
declare void @llvm.x86.ldtilecfg(ptr)
"""

Index: TypeAlias = "ir.Expr | int"


class Matrix(NamedTuple):
    """Where an element lies in memory, and the bytes from one row to the next."""

    at: Callable[[Index, Index], ir.TensorLoad]
    row_bytes: int


def _nothing(_iteration: ir.Expr, _iterations: int) -> None:
    pass


@dataclass(frozen=True)
class Product:
    """sums (+)= x @ weight, by the instruction `multiply` ("tdpbusd")."""

    multiply: str
    x: Matrix  # (row, step)
    weight: Matrix  # (step, column); a column is four bytes
    sums: Matrix  # (row, column)
    steps: int
    columns: int  # a multiple of 16
    ahead: Callable[[ir.Expr, int], None] = _nothing  # emitted in each iteration over 16 steps: what to fetch

    def below(self, top: Index) -> Product:
        """Its rows from `top` on."""
        x, sums = self.x, self.sums
        return replace(
            self,
            x=Matrix(lambda row, step: x.at(top + row, step), x.row_bytes),
            sums=Matrix(lambda row, column: sums.at(top + row, column), sums.row_bytes),
        )


def multiply(product: Product, rows: ir.Expr, heights: Sequence[int], *, continued: bool) -> None:
    """Emit `product` for `rows` rows, one of `heights`, which are 1 to 32. `continued`: sums are in memory already."""

    def of(band: Band) -> None:
        whole, rest = divmod(product.steps, ROWS)
        for first, number, steps in ((0, whole, ROWS), (whole * ROWS, 1, rest)):
            if number and steps:
                configure(band.height, steps)
                sum_up([product.below(top) for top in band.tops], (first, number), continued=continued or first > 0)

    in_bands(rows, heights, of)


class Band(NamedTuple):
    """Rows of registers, one or two: how many rows each has, and where they begin."""

    height: ir.Expr
    tops: tuple[Index, ...]


def in_bands(rows: ir.Expr, heights: Sequence[int], emit: Callable[[Band], None]) -> None:
    """emit(band) for `rows` rows, one of `heights`, which are 1 to 32."""

    def of(count: int) -> None:
        height = rows if count == 1 else T.bind((rows + 1) // 2)
        emit(Band(height, (0, rows - height)[:count]))

    counts = {1 + (height > ROWS) for height in heights}
    if len(counts) == 1:
        of(*counts)
        return
    with T.If(rows > ROWS):
        with T.Then():
            of(2)
        with T.Else():
            of(1)


def configure(height: ir.Expr, steps: int) -> None:
    """Say that registers of sums and of x have `height` rows, those of x and of the weight `steps` steps."""
    sizes = [_STEP_BYTES * steps if register == _X else ROW_BYTES for register in range(_REGISTERS)]
    heights = _i64(sum(1 << 8 * register for register in range(_REGISTERS) if register != _WEIGHT)) * height
    heights = heights + _i64(steps << 8 * _WEIGHT)
    words = T.alloc_buffer((8,), "int64", align=64)
    # The palette, sizes of rows of two bytes each, from byte 48 on numbers of rows.
    packed = (sum(size << 16 * i for i, size in enumerate(half)) for half in (sizes[:4], sizes[4:]))
    for at, word in enumerate((_i64(1), _i64(0), *map(_i64, packed), _i64(0), _i64(0), heights, _i64(0))):
        T.buffer_store(words, word, [at])
    _call("ldtilecfg", tirx.address_of(words[0]))


def sum_up(products: Sequence[Product], run: tuple[int, int], *, continued: bool) -> None:
    """Emit one product, or two side by side, over `run` (first step, number of registers of the weight).

    Two of the same weight load it once. They are of one kind, size and configuration, with `ahead` of the first.
    """
    for begin in range(0, products[0].columns, _COLUMNS * ROWS):
        _sums(products, run, begin, continued)


def release(*written: ir.Var) -> None:
    """Emit what gives the registers back behind a task: the system saves no more of them."""
    _call("tilerelease")
    keep_whole(*written)


def keep_whole(*written: ir.Var) -> None:
    """Emit reads of the last elements of buffers that registers were `written` to.

    Lowering makes buffers as small as their loads and stores let it, and the instructions say where they begin alone.
    """
    for buffer in written:
        T.evaluate(buffer[tuple(extent - 1 for extent in buffer.ty.shape)])


def _sums(products: Sequence[Product], run: tuple[int, int], begin: int, continued: bool) -> None:
    """The loop over `run`, for three registers from `begin` on."""
    (first, number), columns = run, range(min(_COLUMNS, (products[0].columns - begin) // ROWS))
    places = list(itertools.product(range(len(products)), columns))
    shared = products[0].weight is products[-1].weight

    def move(name: str, which: int, v: int) -> None:
        _move(name, which * _COLUMNS + v, products[which].sums, 0, begin + ROWS * v)

    for which, v in places:
        if continued:
            move("tileloadd64", which, v)
        else:
            _call("tilezero", _register(which * _COLUMNS + v))
    with T.serial(_i64(number)) as iteration:
        if first == 0 and begin == 0:
            products[0].ahead(iteration, number)
        step, loaded = first + iteration * ROWS, None
        for which, product in enumerate(products):
            _move("tileloadd64", _X, product.x, 0, step)
            # Back and forth: what was loaded last serves both.
            for v in reversed(columns) if which and shared else columns:
                if v != loaded or not shared:
                    _move("tileloadd64", _WEIGHT, product.weight, step, begin + ROWS * v)
                loaded = v
                _call(product.multiply, *map(_register, (which * _COLUMNS + v, _X, _WEIGHT)))
    for which, v in places:
        move("tilestored64", which, v)


def _move(name: str, register: int, matrix: Matrix, row: Index, column: Index) -> None:
    _call(name, _register(register), tirx.address_of(matrix.at(row, column)), _i64(matrix.row_bytes))


def _call(name: str, *arguments: ir.Expr) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _register(number: int) -> tirx.IntImm:
    return tirx.IntImm("int8", number)


def _i64(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)
