"""The one place that knows in which blocks a target wants its weights packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..targets import Target


def pack_shape(k: int, n: int, target: Target) -> tuple[int, int]:
    """(kc, nr) of the packed weight [k/kc, ceil(n/nr), kc, nr] for a float32 matrix [k, n].

    nr is the width of the register tile: three vectors where there are 32 registers (8 x 3 sums,
    3 weights, some broadcasts), two where there are 16 (6 x 2). Narrow matrices take fewer vectors,
    so that little is padded. kc is k: see docs/kernels/gemm.md for when chunks pay.
    """
    widest = 3 if target.isa.vector_registers >= 32 else 2
    vectors = min(widest, -(-n // target.lanes_f32))
    return k, vectors * target.lanes_f32
