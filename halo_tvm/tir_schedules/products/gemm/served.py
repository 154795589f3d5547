"""Which kinds of multiplication the rule serves on a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....errors import Declined
from ...blocks import Block
from ._fp16 import HalfArithmetic, HalfWeights
from ._group_pairs import BytePairs, NibblePairs
from .amx import TileBytes, TilePairs
from .arithmetic import Arithmetic
from .bf16 import BFloat16Pairs, BFloat16Weights
from .float32 import Float32
from .group_tiles import GroupTiles
from .groups import Groups
from .lane_dots import MixedDots, SignedDots, SignedGroups
from .narrow_pairs import NARROW, NarrowPairs
from .w8a8 import W8A8, DotBytes, PlainBytes, WidenedPairs

if TYPE_CHECKING:
    from ....targets import Isa, Target

_BYTES = {
    "vpdpbusd": DotBytes,
    "vpmaddwd": WidenedPairs,
    "usdot": MixedDots,
    "sdot": SignedDots,
    "": PlainBytes,
}


def byte_product(isa: Isa) -> W8A8:
    """How bytes are multiplied."""
    return _BYTES[isa.byte_dot]()


def served(isa: Isa, *, tiles: bool = False) -> tuple[Arithmetic, ...]:
    """One arithmetic for each combination of operator and types; `tiles`: in AMX's registers if it has any."""
    half = HalfArithmetic() if isa.half_arithmetic else HalfWeights()
    brief = BFloat16Pairs() if isa.bf16_dot else BFloat16Weights()
    product = byte_product(isa)
    eight: Groups = Groups(product, 8)
    four: Groups = Groups(product, 4)
    if isinstance(product, SignedDots):
        eight, four = SignedGroups(product, 8), SignedGroups(product, 4)
    if isa.byte_dot == "vpmaddwd":
        eight = BytePairs(product, 8, vector_registers=isa.vector_registers)
        four = NibblePairs(product, 4, vector_registers=isa.vector_registers)
    narrow = (NarrowPairs(),) if NarrowPairs.serves(isa.vector_bits, isa.byte_dot) else ()
    if tiles and isa.tiles:
        eight, four = GroupTiles(product, 8), GroupTiles(product, 4)
        product, brief = TileBytes(), TilePairs()
    return (Float32(), brief, half, product, eight, four, *narrow)


def enough(steps: int, arithmetic: Arithmetic, isa: Isa) -> Arithmetic:
    """`arithmetic`, or where sums have too few steps for it the one in vectors."""
    if steps >= arithmetic.least_steps:
        return arithmetic
    return next(a for a in served(isa) if (a.op, a.dtypes) == (arithmetic.op, arithmetic.dtypes))


def vectors_of(nr: int, arithmetic: Arithmetic, target: Target) -> int:
    """Vectors of sums in a row of a panel of `nr` columns; `Declined` where it holds a part of one."""
    lanes = target.lanes_f32 * arithmetic.lane_factor
    if nr % lanes:
        raise Declined(f"panels of {nr} columns are no multiple of {lanes} lanes of {target.isa.name}")
    return nr // lanes


def without_marks(arithmetic: Arithmetic, arithmetics: Sequence[Arithmetic]) -> Arithmetic:
    """`arithmetic`, or one of the same operator and types that looks at no panel."""
    same = (a for a in arithmetics if (a.op, a.dtypes) == (arithmetic.op, arithmetic.dtypes))
    return (
        next(a for a in same if not isinstance(a, NarrowPairs)) if isinstance(arithmetic, NarrowPairs) else arithmetic
    )


def of_block(block: Block, arithmetics: Sequence[Arithmetic]) -> list[Arithmetic]:
    """Those of its operator that the weight of a block is meant for, first."""
    narrow = NARROW in block.node.annotations
    return sorted(arithmetics, key=lambda a: isinstance(a, NarrowPairs) != narrow)
