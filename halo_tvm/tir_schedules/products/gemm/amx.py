"""Products in AMX's registers of two dimensions: 16 rows of 64 bytes, so a step of a panel's 16 sums is a row of one.

    tdpbusd     uint8 times int8 into int32, four k a step
    tdpbf16ps   bfloat16 times bfloat16 into float32, two k a step; rows are rounded once, in front of all products

Both read the panels that vectors read: 16 steps of 16 columns are a register, with a stride of one step. Up to 32 rows
are two such rows of registers, which share what is loaded of the weight:

    sums 0 1 2      for 16 steps:  rows 0, weight 0: sum 0;  weight 1: sum 1;  weight 2: sum 2
    sums 3 4 5                     rows 1:           sum 5;  weight 1: sum 4;  weight 0: sum 3

How many rows registers have is said at run time: one code serves tiles of every height. Two rows of registers have
equally many; of an odd number of rows the middle one is computed twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tvm import DataType, ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.prefetch import CACHE_LINE_BYTES, prefetch
from ..row_tiling import switch
from ._bf16 import BFloat16Pairs
from .arithmetic import Arithmetic
from .w8a8 import DotBytes

if TYPE_CHECKING:
    from .chain import Chain
    from .tile import Pass
    from .tiling import Tiling

ROWS = 16  # of a register
_ROW_BYTES = 64
_COLUMNS = 3  # registers of sums side by side, in two rows
_X, _WEIGHT, _REGISTERS = 6, 7, 8
_LINES_AHEAD = 16  # of the next panel, for 16 steps of the present one
_MOST_ROWS_AHEAD = 4
_L1 = 3  # locality of a prefetch


class InTiles(Arithmetic):
    """What both have in common: any height from one code, up to two registers."""

    multiply: ClassVar[str]  # the instruction
    of_step: ClassVar[int]  # elements of the operand x that a step takes
    few_rows: ClassVar[int] = 0  # so many are faster in vectors
    block_rows = 128
    prefetches = (0, 8, 16, 24, 48)

    def lines_ahead(self, unroll: int) -> int:
        return _LINES_AHEAD

    def tallest(self, vectors: int, registers: int) -> int:
        return 2 * ROWS

    def heights(self, vectors: int, registers: int) -> tuple[int, ...]:
        return ROWS, 2 * ROWS

    def instructions(self, rows: int, vectors: int) -> float:
        """A product takes a cycle for each of its rows, and is 16 steps."""
        return rows * vectors / ROWS

    def loads(self, rows: int, vectors: int) -> float:
        return rows / ROWS + vectors * (2 - 1 / vectors if rows > ROWS else 1)


class TileBytes(InTiles, DotBytes):
    multiply = "tdpbusd"
    of_step = 4
    few_rows = 4


class TilePairs(InTiles, BFloat16Pairs):
    multiply = "tdpbf16ps"
    of_step = 1


def tile(chain: Chain, t: Tiling, p: Pass, rows: ir.Expr, heights: Sequence[int], continued: bool) -> None:
    """scratch[:rows] (+)= x[start : start + rows, chunk] @ weight[chunk, panel], `rows` being one of `heights`.

    `continued`: sums of earlier chunks are in the scratch tile already.
    """
    switch(
        (rows > ROWS).astype("int64") + 1,
        [above for above in (2, 1) if any((height > ROWS) == (above > 1) for height in heights)],
        lambda above: _registers(chain, t, p, rows, above, continued),
    )


def release() -> None:
    """Emit what gives the registers back behind a task: the system saves no more of them."""
    _call("tilerelease")


def _registers(chain: Chain, t: Tiling, p: Pass, rows: ir.Expr, above: int, continued: bool) -> None:
    """The same with `above` rows of registers, by runs of steps: whole registers of the weight, then what is left."""
    height = rows if above == 1 else T.bind((rows + 1) // 2)
    tops = [0, rows - height][:above]
    whole, rest = divmod(chain.steps, ROWS)
    for first, number, steps in ((0, whole, ROWS), (whole * ROWS, 1, rest)):
        if number and steps:
            _configure(height, steps)
            for begin in range(0, chain.nr // ROWS, _COLUMNS):
                _sums(chain, t, p, tops, (first, number), begin, continued or first > 0)


def _configure(height: ir.Expr, steps: int) -> None:
    """Say that registers of sums and of x have `height` rows, those of x and of the weight `steps` steps."""
    sizes = [4 * steps if register == _X else _ROW_BYTES for register in range(_REGISTERS)]
    heights = _i64(sum(1 << 8 * register for register in range(_REGISTERS) if register != _WEIGHT)) * height
    heights = heights + _i64(steps << 8 * _WEIGHT)
    words = T.alloc_buffer((8,), "int64", align=64)
    # The palette, sizes of rows of two bytes each, from byte 48 on numbers of rows.
    packed = (sum(size << 16 * i for i, size in enumerate(half)) for half in (sizes[:4], sizes[4:]))
    for at, word in enumerate((_i64(1), _i64(0), *map(_i64, packed), _i64(0), _i64(0), heights, _i64(0))):
        T.buffer_store(words, word, [at])
    _call("ldtilecfg", tirx.address_of(words[0]))


def _sums(
    chain: Chain,
    t: Tiling,
    p: Pass,
    tops: Sequence[ir.Expr | int],
    run: tuple[int, int],
    begin: int,
    continued: bool,
) -> None:
    """The k loop over `run` (first step, number of registers of the weight), for the columns from `begin` on."""
    (first, number), columns = run, range(min(_COLUMNS, chain.nr // ROWS - begin))
    arithmetic = chain.arithmetic
    assert isinstance(arithmetic, InTiles), f"{type(arithmetic).__name__} is not computed in these registers"
    row_bytes = _i64(4 * chain.parts * chain.nr)

    def in_scratch(above: int, v: int) -> ir.Expr:
        return tirx.address_of(p.scratch[tops[above], p.column + ROWS * (begin + v)])

    each = list(itertools.product(range(len(tops)), columns))
    for above, v in each:
        if continued:
            _call("tileloadd64", _register(above * _COLUMNS + v), in_scratch(above, v), row_bytes)
        else:
            _call("tilezero", _register(above * _COLUMNS + v))
    with T.serial(_i64(number)) as ko:
        for q in range(t.prefetch):
            prefetch(chain.weight_line(p.chunk, p.panel + 1, p.step * p.ahead + ko * t.prefetch + q))
        if first == 0 and begin == 0:
            _prefetch_output(chain, t, p, ko, number)
        k, loaded = first + ko * ROWS, None
        for above, top in enumerate(tops):
            x = p.operands.x[p.start + top, (p.chunk * chain.steps + k) * arithmetic.of_step]
            _call("tileloadd64", _register(_X), tirx.address_of(x), _i64(4 * chain.chunks * chain.steps))
            # Back and forth: what was loaded last serves both rows.
            for v in reversed(columns) if above else columns:
                if v != loaded:
                    weight = chain.weight[p.chunk, p.panel, k, ROWS * (begin + v), 0]
                    _call("tileloadd64", _register(_WEIGHT), tirx.address_of(weight), _i64(4 * chain.nr))
                loaded = v
                _call(arithmetic.multiply, *map(_register, (above * _COLUMNS + v, _X, _WEIGHT)))
    for above, v in each:
        _call("tilestored64", _register(above * _COLUMNS + v), in_scratch(above, v), row_bytes)


def _prefetch_output(chain: Chain, t: Tiling, p: Pass, ko: ir.Expr, number: int) -> None:
    """In iteration `ko` of `number` fetch some rows that stages will write: else their stores wait for the cache."""
    out = chain.outputs[-1]
    lines = -(-chain.nr * DataType(str(out.ty.dtype)).itemsize // CACHE_LINE_BYTES)
    rows = min(_MOST_ROWS_AHEAD, -(-t.mr // number))
    for row, line in itertools.product(range(rows), range(lines)):
        column = p.panel % chain.panels * chain.nr + line * (chain.nr // lines)
        prefetch(out[p.start + ko * rows + row, column], _L1)


def _call(name: str, *arguments: ir.Expr) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _register(number: int) -> tirx.IntImm:
    return tirx.IntImm("int8", number)


def _i64(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)
