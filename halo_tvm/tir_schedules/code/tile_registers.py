"""Products in AMX's registers of two dimensions: 16 rows of 64 bytes, so 16 steps of 16 sums' weights are one register.

    tdpbusd     uint8 times int8 into int32: a step is four k
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
from dataclasses import dataclass
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


def multiply(product: Product, rows: ir.Expr, heights: Sequence[int], *, continued: bool) -> None:
    """Emit `product` for `rows` rows, one of `heights`, which are 1 to 32. `continued`: sums are in memory already."""

    def of(above: int) -> None:
        _registers(product, rows, above, continued)

    above = {1 + (height > ROWS) for height in heights}
    if len(above) == 1:
        of(*above)
        return
    with T.If(rows > ROWS):
        with T.Then():
            of(2)
        with T.Else():
            of(1)


def release(*written: ir.Var) -> None:
    """Emit what gives the registers back behind a task: the system saves no more of them.

    Of buffers that registers were `written` to, the last element is read: lowering makes buffers as small as their
    loads and stores let it, and the instructions say where they begin alone.
    """
    _call("tilerelease")
    for buffer in written:
        T.evaluate(buffer[tuple(extent - 1 for extent in buffer.ty.shape)])


def _registers(product: Product, rows: ir.Expr, above: int, continued: bool) -> None:
    """`above` rows of registers, by runs of steps: whole registers of the weight, then what is left."""
    height = rows if above == 1 else T.bind((rows + 1) // 2)
    tops = [0, rows - height][:above]
    whole, rest = divmod(product.steps, ROWS)
    for first, number, steps in ((0, whole, ROWS), (whole * ROWS, 1, rest)):
        if number and steps:
            _configure(height, steps)
            for begin in range(0, product.columns, _COLUMNS * ROWS):
                _sums(product, tops, (first, number), begin, continued or first > 0)


def _configure(height: ir.Expr, steps: int) -> None:
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


def _sums(product: Product, tops: Sequence[Index], run: tuple[int, int], begin: int, continued: bool) -> None:
    """The loop over `run` (first step, number of registers of the weight), for three registers from `begin` on."""
    (first, number), columns = run, range(min(_COLUMNS, (product.columns - begin) // ROWS))
    places = list(itertools.product(range(len(tops)), columns))

    def move(name: str, above: int, v: int) -> None:
        _move(name, above * _COLUMNS + v, product.sums, tops[above], begin + ROWS * v)

    for above, v in places:
        if continued:
            move("tileloadd64", above, v)
        else:
            _call("tilezero", _register(above * _COLUMNS + v))
    with T.serial(_i64(number)) as iteration:
        if first == 0 and begin == 0:
            product.ahead(iteration, number)
        step, loaded = first + iteration * ROWS, None
        for above, top in enumerate(tops):
            _move("tileloadd64", _X, product.x, top, step)
            # Back and forth: what was loaded last serves both rows.
            for v in reversed(columns) if above else columns:
                if v != loaded:
                    _move("tileloadd64", _WEIGHT, product.weight, step, begin + ROWS * v)
                loaded = v
                _call(product.multiply, *map(_register, (above * _COLUMNS + v, _X, _WEIGHT)))
    for above, v in places:
        move("tilestored64", above, v)


def _move(name: str, register: int, matrix: Matrix, row: Index, column: Index) -> None:
    _call(name, _register(register), tirx.address_of(matrix.at(row, column)), _i64(matrix.row_bytes))


def _call(name: str, *arguments: ir.Expr) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _register(number: int) -> tirx.IntImm:
    return tirx.IntImm("int8", number)


def _i64(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)
