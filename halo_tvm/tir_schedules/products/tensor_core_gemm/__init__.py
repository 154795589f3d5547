"""Linear layers on tensor cores: x [m, k] @ weight in float16 or bfloat16, and the stages fused behind it.

Serves
    weight [n, k] or [k, n] of float16 or bfloat16; x of the same type, or of float32; sums in float32; m symbolic or
    static; any number of element-wise stages over [m, n]
    A single row of a symbolic number of rows is computed by the kernel of rule gemv, in its default.
Declines
    a target without tensor cores for the weight's type, or without cp.async; no linear block; a packed weight; rows of
    an odd number of 16-bit elements; x of rank 3 or more; a stage that is not element-wise over the same rows and
    columns; a block before the linear block
Numerics
    x of float32 under bfloat16 is rounded to it; under float16 each row is divided by a power of two first, so that
    none overflows and none vanishes: |error| <= 2^-11 sum |x w| + 2^-24 max |x| sum |w|, and float32 sums. One row
    of a symbolic number is not rounded.
Limits
    mma.sync only: Hopper's wgmma and Blackwell's tcgen05, which need an arch of their own, are not used
References
    PTX ISA: mma.sync.m16n8k16, ldmatrix, cp.async
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....dimensions import by_name, size_of
from ....errors import Declined
from ...rule import Numbers, Rule, gpu_of
from .._product import Product, match_product
from ..gemv import one_row_of
from ._estimate import estimate
from ._kernel import build
from ._rounding import rounds_first
from ._tiling import BLOCK_K, BLOCK_M, BLOCK_N, Tiling, tilings

if TYPE_CHECKING:
    from ....targets import Target
    from ....targets.gpu_levels import GpuLevel

_TYPES = ("float16", "bfloat16")
# Rows that the default is chosen for where they are symbolic: some sentences, or one long one.
_TYPICAL_ROWS = 512


@dataclass(frozen=True)
class Decision:
    """How one product is cut."""

    block_m: int  # rows and columns of the result that a block of threads makes
    block_n: int
    block_k: int  # of k in one step
    warps: int  # of a block
    stages: int  # steps that have room in shared memory: one is worked on, the others are on their way


class TensorCoreGEMM(Rule[Decision]):
    """Tiles in permuted shared memory, copied several steps ahead, multiplied by mma."""

    name = "tensor_core_gemm"
    Decision = Decision
    domains = {
        "block_m": BLOCK_M,
        "block_n": BLOCK_N,
        "block_k": BLOCK_K,
        "warps": Numbers(1, 16),
        "stages": Numbers(2, 6),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        return self.space(func, target)[0]

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Every cut that fits, the fastest by the estimate first."""
        product, gpu = _served(func, target)
        rows = _typical_rows(product)
        ranked = sorted(tilings(product, gpu), key=lambda t: estimate(product, t, rows, gpu))
        if not ranked:
            raise Declined(f"no tile fits {product.m} rows, {product.n} columns and k = {product.k}")
        return tuple(Decision(t.block_m, t.block_n, t.block_k, t.warps, t.stages) for t in ranked)

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        product, gpu = _served(func, target)
        rows = size_of(product.m, by_name(sizes))
        return estimate(product, _tiling(product, decision, gpu), rows, gpu)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        product, gpu = _served(func, target)
        tiling = _tiling(product, decision, gpu)
        # A model that decodes has the same function for a long prompt and for one token after another.
        one_row = one_row_of(product, gpu) if product.rows is None and product.by_column else None
        return func.with_body(build(product, tiling, one_row)).with_attr("tirx.is_scheduled", True)


def _served(func: tirx.PrimFunc, target: Target) -> tuple[Product, GpuLevel]:
    gpu = gpu_of(target)
    if "cp.async" not in gpu.copies:
        raise Declined(f"{target.name} has no asynchronous copies")
    product = match_product(func)
    x, weight = product.x_dtype, product.weight_dtype
    if weight not in _TYPES or weight not in gpu.tensor_core_dtypes:
        raise Declined(f"the weight is {weight}: only {' and '.join(_TYPES)} are served")
    if x not in (weight, "float32"):
        raise Declined(f"x is {x} under a weight of {weight}: only {weight} and float32 are served")
    leading = product.k if product.by_column else product.n
    if leading % 2 or (product.k % 2 and (x == weight or rounds_first(product))):
        odd = leading if leading % 2 else product.k
        raise Declined(f"rows of {odd} elements of 16 bits: cp.async copies whole pairs")
    return product, gpu


def _tiling(product: Product, d: Decision, gpu: GpuLevel) -> Tiling:
    """The cut of a decision."""
    tiling = Tiling.of(product, d.block_m, d.block_n, d.block_k, d.warps, d.stages)
    refused = tiling.refusal(gpu)
    if refused:
        raise Declined(refused)
    return tiling


def _typical_rows(product: Product) -> int:
    if product.rows is not None:
        return product.rows
    return max(product.timed, default=_TYPICAL_ROWS)
