"""Recognise a convolution with packed weights, of floats or of bytes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ...blocks import Block, loads, uses
from ...code.lanes import constant, index
from ...products.gemm.arithmetic import Arithmetic
from ...products.gemm.bf16 import BFloat16Pairs
from ...products.gemm.float32 import Float32
from ...products.gemm.lane_dots import LaneDots
from ...products.gemm.served import enough, of_block, served
from ...products.gemm.w8a8 import W8A8, DotBytes
from .._match import ABREAST, Windows, match_windows

if TYPE_CHECKING:
    from ....targets import Isa

InVectors = Float32 | BFloat16Pairs | DotBytes | LaneDots  # whose steps add vectors to sums, whatever lanes multiply
_FEW_CHANNELS = 16  # fewer: elements of a window along its last axis are one run of memory, which padding would break
_FEW_STEPS = 8  # at one element of a window: of more, finding it takes no time
_FEWEST_ALONG_ROWS = 4  # windows of a row: of fewer, tiles of windows that lie anywhere are fuller
_MOST_ALONG_ROWS = 14


def tallest_along_rows(width: ir.Expr, kernel: int, vectors: int, registers: int) -> int:
    """The most windows of a tile along rows of `width` windows, `kernel` elements wide; 0 where none is high enough.

    Their sums are in registers beside the weights, an element, and what brings it into lanes.
    """
    most = min(_MOST_ALONG_ROWS, constant(width) or 0, (registers - kernel * vectors - 3) // vectors)
    return most if most >= _FEWEST_ALONG_ROWS else 0


@dataclass(frozen=True)
class Problem:
    """Windows of x times weight [groups, panels, window * inner, nr].

    Bytes are [groups, panels, window * inner / 4, nr, 4], bfloat16 [groups, panels, window * inner / 2, nr, 2]. Of
    groups that lie abreast, `groups` counts the panels, each of which is a vector wide.
    """

    windows: Windows
    weight: ir.Var
    arithmetic: Arithmetic
    groups: int
    panels: int
    nr: int
    inner: int  # channels of x that a group adds up, whole steps of the sum
    outer: int  # channels of the result that a group makes, or several abreast
    abreast: int = 1

    @property
    def is_padded(self) -> bool:
        """Whether windows reach beyond x."""
        return not all(self.windows.is_inside(axis) for axis in range(self.windows.rank))

    @property
    def channels(self) -> int:
        """Of x, in whole steps."""
        return self.windows.channels if self.abreast > 1 else self.groups * self.inner

    def first_of_x(self, group: ir.Expr) -> ir.Expr:
        """The first channel of x that is multiplied for `group`."""
        if self.abreast == 1:
            return group * self.inner
        # The last panel ends with the last group, whatever it computes twice.
        return tirx.min(group * (self.abreast * self.inner), index(self.channels - self.abreast * self.inner))

    def first_of_result(self, group: ir.Expr) -> ir.Expr:
        """The first channel of the result that `group` makes."""
        if self.abreast == 1:
            return group * self.outer
        return tirx.min(group * self.outer, index(constant(self.windows.acc.shape[-1]) - self.outer))

    def along_rows(self, isa: Isa) -> int:
        """The most windows of a tile that lies along a row of them; 0 where its windows lie anywhere.

        Of groups, where a window has few steps at one element: to find that would take longer.
        """
        whole = isinstance(self.arithmetic, InVectors)
        few = self.groups > 1 and self.inner // self.arithmetic.group <= _FEW_STEPS
        if not whole or not (few or self.abreast > 1):
            return 0
        vectors = self.nr * 32 // isa.vector_bits
        return tallest_along_rows(self.windows.places[-1], self.windows.kernel[-1], vectors, isa.vector_registers)

    @property
    def copies(self) -> bool:
        """Whether x is first copied, widened or taken apart, and with its padding."""
        if self.arithmetic.takes_apart or self.arithmetic.words:
            return True
        if self.windows.x.dtype == self.dtype and not self.is_padded:
            return self.windows.channels != self.channels
        # Bytes are a quarter of what floats are to copy, and what surrounds them may be any number.
        return self.windows.x.dtype != "float32" or self.windows.channels < _FEW_CHANNELS

    @property
    def dtype(self) -> str:
        """Of the elements that are multiplied."""
        return self.arithmetic.dtypes[0]

    @property
    def joins(self) -> bool:
        """Whether elements along the last axis of a window are one run of memory."""
        return self.groups == 1 and self.windows.dilations[-1] == 1 and (self.copies or not self.is_padded)

    @property
    def taps(self) -> tuple[int, ...]:
        """The kernel's axes that are walked step by step."""
        return self.windows.kernel[:-1] if self.joins else self.windows.kernel

    @property
    def run(self) -> int:
        """Neighbours in memory that are added up at each of `taps`."""
        return self.inner * (self.windows.kernel[-1] if self.joins else 1)


@functools.lru_cache(maxsize=16)
def match(func: tirx.PrimFunc, isa: Isa) -> Problem:
    """The convolution `func` consists of; `Declined` with the first reason why it is none."""
    windows = match_windows(func, ("convolution", "convolution_integer"), "the convolution")
    block = windows.block
    weight = next((x for x in loads(block.store.value) if x.source not in (windows.source, windows.acc)), None)
    types = [str(buffer.dtype) for buffer in (windows.x, weight.source, windows.acc)] if weight is not None else []
    if types[:1] in (["float16"], ["bfloat16"]):
        types[0] = "float32"  # widened once
    arithmetic = next(
        (
            a
            for a in of_block(block, served(isa, tiles=True))
            if list(a.dtypes) == types and isinstance(a, Float32 | BFloat16Pairs | W8A8)
        ),
        None,
    )
    if weight is not None and arithmetic is None:
        raise Declined(
            f"x, weight and sums are {', '.join(types)}: only float32, pairs of bfloat16 where the target "
            "multiplies them in vectors, and bytes with sums of int32 are served"
        )
    group = arithmetic.group if arithmetic else 1
    shape = [constant(d) for d in weight.source.shape] if weight is not None else []
    if len(shape) != (4 if group == 1 else 5) or None in shape or _walks_blocks(weight, block):
        raise Declined("the weight is not packed as [groups, panels, window * channels, nr]")
    groups, panels, steps, nr = shape[:4]
    depth = steps * group
    channels, result = windows.channels, constant(windows.acc.shape[-1])
    lanes, abreast = isa.vector_bits // 32, int(block.node.annotations.get(ABREAST, 1))
    if abreast > 1:
        return _abreast(windows, weight.source, arithmetic, abreast, isa)
    inner, outer = -(-(channels // groups) // group) * group, result // groups
    if depth != inner * math.prod(windows.kernel) or not (panels - 1) * nr < outer <= panels * nr:
        raise Declined(f"the weight {shape} is no packed one of {channels} to {result} channels")
    if arithmetic.words and channels != inner * groups:
        raise Declined(f"{channels // groups} channels are no whole pairs")
    if nr % lanes:
        raise Declined(f"panels of {nr} columns are no multiple of {lanes} lanes")
    if depth == 0 or any(constant(extent) is None for extent in block.extents[windows.rank + 2 :]):
        raise Declined("the windows are empty, or their size is symbolic")
    arithmetic = enough(steps, arithmetic, isa)
    return Problem(windows, weight.source, arithmetic, groups, panels, nr, inner, outer)


def _abreast(windows: Windows, weight: ir.Var, arithmetic: Arithmetic, abreast: int, isa: Isa) -> Problem:
    """The problem of groups that lie side by side in the panels of `weight`, a vector wide each."""
    panels, _, steps, nr = (int(d) for d in weight.shape[:4])
    lanes, each, groups = isa.vector_bits // 32, nr // abreast, constant(windows.acc.shape[-1]) * abreast // nr
    inner = windows.channels // groups
    if nr != lanes or nr != abreast * each or panels != -(-groups // abreast):
        raise Declined(f"panels of {nr} columns are no {abreast} groups that fill {lanes} lanes")
    if steps * arithmetic.group != inner * math.prod(windows.kernel):
        raise Declined(f"the weight of {steps} steps is no packed one of {inner} channels")
    problem = Problem(windows, weight, arithmetic, panels, 1, nr, inner, nr, abreast)
    if not problem.along_rows(isa):
        raise Declined("groups abreast need a known number of windows in a row, and whole vectors of products")
    return problem


def _walks_blocks(weight: ir.TensorLoad, block: Block) -> bool:
    """Whether a sum runs along what are groups and panels of a packed weight: their sizes may be those of a kernel."""
    steps = [
        var
        for var, kind, extent in zip(block.vars, block.kinds, block.extents)
        if kind == "R" and constant(extent) != 1
    ]
    return any(uses(at, var) for at in weight.indices[:2] for var in steps)
