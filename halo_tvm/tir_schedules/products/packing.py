"""The one place that knows in which blocks a target wants its weights packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dimensions import itemsize_of

if TYPE_CHECKING:
    from ...targets import Target

GROUPS = {"float32": 1, "bfloat16": 2, "float16": 1}  # type of the weight -> rows of k that lie side by side
_MOST_CHUNKS = 16  # each chunk is one more pass over the output and one more start of the threads


def pack_shape(k: int, n: int, target: Target, dtype: str = "float32") -> tuple[int, int]:
    """(kc, nr) of the packed weight [k/kc, ceil(n/nr), kc/group, nr (, group)] for a matrix [k, n], k in whole groups.

    The group is that of GROUPS. float16 has twice the lanes where the target computes in it.

    nr is the width of the register tile: three vectors where there are 32 registers (8 x 3 sums,
    3 weights, some broadcasts), or two where those pad the matrix less; two where there are
    16 (6 x 2). Matrices narrower than that take fewer vectors. kc is the largest divisor of k (in few
    chunks) whose panel leaves a quarter of L2 to the rows of x that pass over it; measured in
    docs/kernels/gemm.md.
    """
    itemsize, group = itemsize_of(dtype), GROUPS[dtype]
    lanes = target.lanes_f32 * (2 if dtype == "float16" and target.isa.half_arithmetic else 1)
    widths = (3, 2) if target.isa.vector_registers >= 32 else (2,)
    choices = {min(width, -(-n // lanes)) * lanes for width in widths}
    # The narrower tile reads a little more for each sum: it has to save a column in a hundred.
    nr = min(choices, key=lambda nr: -(-n // nr) * nr * (1.0 if nr == max(choices) else 1.01))
    room = target.spec.l2_bytes * 3 // 4
    fits = (k // chunks for chunks in range(1, _MOST_CHUNKS + 1) if k % (chunks * group) == 0)
    return next((kc for kc in fits if kc * nr * itemsize <= room), k), nr
