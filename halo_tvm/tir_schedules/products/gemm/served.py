"""Which kinds of multiplication the rule serves on a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._bf16 import BFloat16Pairs, BFloat16Weights
from ._fp16 import HalfArithmetic, HalfWeights
from ._group_pairs import BytePairs, NibblePairs
from .arithmetic import Arithmetic
from .float32 import Float32
from .groups import Groups
from .w8a8 import W8A8, DotBytes, PlainBytes, WidenedPairs

if TYPE_CHECKING:
    from ....targets import Isa

_BYTES = {"vpdpbusd": DotBytes, "vpmaddwd": WidenedPairs, "": PlainBytes}


def byte_product(isa: Isa) -> W8A8:
    """How bytes are multiplied."""
    return _BYTES[isa.byte_dot]()


def served(isa: Isa) -> tuple[Arithmetic, ...]:
    """One arithmetic for each combination of operator and types."""
    half = HalfArithmetic() if isa.half_arithmetic else HalfWeights()
    brief = BFloat16Pairs() if isa.bf16_dot else BFloat16Weights()
    product = byte_product(isa)
    eight: Groups = Groups(product, 8)
    four: Groups = Groups(product, 4)
    if isa.byte_dot == "vpmaddwd":
        eight = BytePairs(product, 8, vector_registers=isa.vector_registers)
        four = NibblePairs(product, 4, vector_registers=isa.vector_registers)
    return (Float32(), brief, half, product, eight, four)
