"""What the nest has to know about one kind of multiplication: its types, and how one step of its k loop is emitted.

The nest is one for all: panels x row blocks, tiles of exact height, prefetch, stages run once from a tile in L1.
A step takes `group` consecutive k, which lie side by side in the packed weight [k/kc, n/nr, kc/group, nr, group].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index, run

if TYPE_CHECKING:
    from .chain import Chain
    from .tiling import Tiling


class Unpacked(NamedTuple):
    """What a task keeps beside its scratch tile, see `group_tiles`: its panels as bytes [parts, k / 4, nr * 4], and
    integer sums [groups at once, 16, nr]."""

    weight: ir.Var
    integers: ir.Var
    part: ir.Expr | int = 0


@dataclass(frozen=True)
class Tile:
    """Some rows of x times one panel of the weight, the sums in registers."""

    x: ir.Var  # buffer [m, k]
    weight: ir.Var  # buffer [chunks, panels, kc / group, nr (, group)]
    acc: Sequence[Sequence[ir.Var]]  # for each row its buffers of nr sums, see Arithmetic.chains
    start: ir.Expr  # first row
    chunk: ir.Expr | int
    panel: ir.Expr
    kc: int
    nr: int
    lanes: int  # sums in one vector register
    half: int | None = None  # of rows that are taken apart, the only one that this walk along k takes
    marks: ir.Var | None = None  # of the steps of the panel, see Arithmetic.look
    beside: ir.Var | None = None  # nr sums that belong to the columns, of few rows; see Arithmetic.few
    marks_of_rows: ir.Var | None = None  # [m, k / group], see Operands
    split: int = 1  # so many panels of the tile are one of the weight, see Chain.split_into

    @property
    def vectors(self) -> int:
        return self.nr // self.lanes

    def of_x(self, row: int, at: ir.Expr, width: int = 1) -> ir.Expr:
        """`width` neighbours of row `row`, from element `at` of the chunk on."""
        column = self.chunk * self.kc + at
        return self.x[self.start + row, run(column, width)]

    def of_words(self, row: int, k: ir.Expr, group: int) -> ir.Expr:
        """The word that step `k` reads of row `row`, where words of `group` numbers are made of rows."""
        return self.x[self.start + row, self.chunk * (self.kc // group) + k]

    def of_pairs(self, row: int, half: int, k: ir.Expr) -> ir.Expr:
        """The even or the odd two of the four numbers of step `k`, where rows are taken apart."""
        return self.x[half, self.start + row, self.chunk * (self.kc // 4) + k]

    def of_marks(self, row: int, k: ir.Expr, width: int) -> ir.Expr:
        """The marks of row `row` at `width` steps from step `k` on."""
        assert self.marks_of_rows is not None, "the rows have been looked at"
        return self.marks_of_rows[self.start + row, run(k, width)]

    def of_weight(self, k: ir.Expr, *at: ir.Expr) -> ir.Expr:
        """The weight of step `k`."""
        if self.split == 1:
            return self.weight[(self.chunk, self.panel, k, *at)]
        column, *inner = at
        column = self.panel % self.split * self.nr + column
        return self.weight[(self.chunk, self.panel // self.split, k, column, *inner)]

    def vector(self, v: int) -> ir.Expr:
        """The columns of vector number `v`, as sums have them."""
        return tirx.Ramp(v * self.lanes, 1, self.lanes)

    def weights(self, k: ir.Expr, v: int, group: int) -> ir.Expr:
        """The `group` neighbours in step `k` of each of these columns."""
        return self.of_weight(k, v * self.lanes, tirx.Ramp(0, 1, group * self.lanes))


@dataclass(frozen=True)
class Operands:
    """What an arithmetic has made of x, and by what the results of a row are multiplied."""

    x: ir.Var
    row_factor: ir.Var | None
    # uint8 [rows, k / group]: 1 for a step at which the row may need mending
    marks: ir.Var | None = field(default=None, kw_only=True)


class Arithmetic:
    """Base class; one instance per kind and instruction set."""

    op: ClassVar[str] = "linear"  # annotation of the main block
    dtypes: ClassVar[tuple[str, str, str]]  # of x, weight and product
    lane_factor: ClassVar[int] = 1  # sums in a register, for each float32 it would hold
    promoted_every: ClassVar[int | None] = None  # steps whose sums are kept in `sums`, then added to the product's type
    group: ClassVar[int] = 1
    words: ClassVar[bool] = False  # x becomes words of the `group` numbers of a step, once
    takes_apart: ClassVar[bool] = False  # x becomes words of the even two of four bytes and of the odd ones, once
    splits: ClassVar[bool] = False  # a task may take some vectors of a panel's columns alone
    begins: ClassVar[bool] = False  # sums begin with the `beginnings` of their columns, not with 0
    few: ClassVar[int] = 0  # tiles of so many rows begin with 0 all the same, and find out `beside` their steps
    unroll: ClassVar[int] = 4  # steps per iteration unless decided otherwise: more make longer loops, not faster ones
    unrolls: ClassVar[tuple[int, ...]] = (1, 2, 4, 8)  # those worth trying
    block_rows: ClassVar[int] = 64  # blocks this tall read a panel often enough from the cache, and few rows are cut
    least_steps: ClassVar[int] = 0  # of a sum: of fewer another arithmetic is faster
    prefetches: ClassVar[tuple[int, ...]] = (0, 1, 2, 4)  # cache lines ahead of an iteration that are worth trying

    @property
    def total(self) -> str:
        """Element type of what a tile leaves to the stages."""
        return self.dtypes[2]

    @property
    def sums(self) -> str:
        """Element type of the sums in registers."""
        return self.total

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> Operands:
        """Emit what runs once in front of all products. `more` are the tensors that belong to the weight."""
        return Operands(x, None)

    def look(self, tile: Tile, steps: int) -> ir.Var | None:
        """Emit what a task finds out about the `steps` of its panel before it multiplies: uint8, 1 for one to mend."""
        return None

    def unpack(self, chain: Chain, t: Tiling, panel: ir.Expr, rows: ir.Expr) -> Unpacked | None:
        """Emit what a task of `rows` rows takes apart of panel number `panel` of each part, before it multiplies."""
        return None

    def beginnings(self, tile: Tile, steps: int, found: ir.Var, first: ir.Expr | int) -> None:
        """Emit found[first : first + nr] = what the sums of the panel's columns over all of its `steps` begin with."""
        raise AssertionError(f"{type(self).__name__} lacks beginnings")

    def mend(self, tile: Tile, first: ir.Expr | int) -> None:
        """Emit what sums need behind the steps of a run, which begin at step `first` of the panel."""

    def registers(self, rows: int, vectors: int) -> int:
        """Vector registers that a tile keeps busy: sums, one step's weights, what a step computes with."""
        raise AssertionError(f"{type(self).__name__} lacks registers")

    def tallest(self, vectors: int, registers: int) -> int:
        """Rows of the tallest tile that stays in so many registers, at most 8 where it is wide."""
        most = 8 if vectors > 1 else 12
        return max(rows for rows in range(1, most + 1) if rows == 1 or self.registers(rows, vectors) <= registers)

    def heights(self, vectors: int, registers: int) -> Sequence[int]:
        """Rows of the tiles that are worth trying."""
        most = self.tallest(vectors, registers)
        return [mr for mr in range(max(1, most // 2), most + 2) if self.registers(mr, vectors) <= registers]

    def instructions(self, rows: int, vectors: int) -> float:
        """Vector instructions of one step that compute: multiplications, and what unpacks for them."""
        raise AssertionError(f"{type(self).__name__} lacks instructions")

    def loads(self, rows: int, vectors: int) -> float:
        """Cache lines, and broadcasts, that one step loads."""
        return rows + vectors

    def lines_ahead(self, unroll: int) -> int:
        """Cache lines that an iteration fetches ahead unless decided otherwise."""
        return max(1, unroll // 2)

    def chains(self, rows: int, vectors: int) -> int:
        """Buffers that the sums of a row are spread over, added up behind the k loop: few sums wait for each other."""
        return 1

    def walks(self, rows: int, vectors: int) -> tuple[int | None, ...]:
        """The walks along k that a tile takes one after another, see Tile.half."""
        return (None,)

    def in_registers(self, rows: int, vectors: int) -> bool:
        """Whether what the sums of `promoted_every` steps are added to stays in registers, not in L1."""
        return False

    def first(self, operands: Operands, row: ir.Expr, block: ir.Expr) -> ir.Expr:
        """What the sums of a row begin with in block number `block` of `promoted_every` steps."""
        return tirx.const(0, self.sums)

    def promoted(
        self,
        operands: Operands,
        row: ir.Expr,
        block: ir.Expr,
        panel: ir.Expr,
        at: ir.Expr,
        sums: ir.Expr,
        so_far: ir.Expr,
    ) -> ir.Expr:
        """`so_far`, of the product's type, and the sums of a block at column `at` of the panel."""
        return so_far + tirx.Cast(self.total, sums)

    def settle(self, tile: Tile) -> None:
        """Emit what makes the sums of a tile out of what its steps have left in them."""

    def steps(self, tile: Tile, first: ir.Expr, count: int) -> None:
        """Emit `count` steps from step `first` on."""
        with T.unroll(index(count)) as k:
            self.step(tile, first + k)

    def step(self, tile: Tile, k: ir.Expr) -> None:
        """Emit `acc[r] += x[start + r, step k] * weight[step k]` for every row of the tile."""
        raise AssertionError(f"{type(self).__name__} lacks its step")


def each_row(rows: ir.Expr, k: int, emit: Callable[[ir.Expr], None], shared_from: int = 16384) -> None:
    """emit(row) of every row of `k` numbers, in parallel from so many on: of fewer no other thread has started yet."""
    with T.If(rows * k < shared_from):
        with T.Then(), T.serial(rows) as row:
            emit(row)
        with T.Else(), T.parallel(rows) as row:
            emit(row)


def parts_of(count: int, lanes: int) -> list[tuple[int, int, int]]:
    """(width, first, number) of the loops that cover `count` elements of a row: whole vectors, then single ones."""
    whole = count // lanes
    return [part for part in ((lanes, 0, whole), (1, whole * lanes, count - whole * lanes)) if part[2]]


def part_at(first: ir.Expr | int, v: ir.Expr, width: int) -> ir.Expr:
    """Index of vector number `v` of such a loop."""
    return run((index(first) if isinstance(first, int) else first) + v * width, width)
