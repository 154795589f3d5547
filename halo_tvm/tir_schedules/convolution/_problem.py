"""Recognise a convolution with packed weights."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tvm import ir, tirx

from ...errors import Declined
from .._blocks import loads
from .._lanes import constant
from .._windows import Windows, match_windows

_FEW_CHANNELS = (
    16  # fewer: the elements of a window along its last axis are one run of memory, which padding would break
)


@dataclass(frozen=True)
class Problem:
    """Windows of x times weight [groups, panels, window * inner, nr]."""

    windows: Windows
    weight: ir.Var
    groups: int
    panels: int
    nr: int
    inner: int  # channels of x that a group adds up
    outer: int  # channels of the result that a group makes

    @property
    def is_padded(self) -> bool:
        """Whether windows reach beyond x."""
        return not all(self.windows.is_inside(axis) for axis in range(self.windows.rank))

    @property
    def copies(self) -> bool:
        """Whether x is first copied, widened and with its padding."""
        return str(self.windows.x.dtype) != "float32" or (self.is_padded and self.windows.channels < _FEW_CHANNELS)

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
def match(func: tirx.PrimFunc, lanes: int) -> Problem:
    """The convolution `func` consists of; `Declined` with the first reason why it is none."""
    windows = match_windows(func, ("convolution",), "the convolution")
    block = windows.block
    weight = next((x for x in loads(block.store.value) if x.source not in (windows.source, windows.acc)), None)
    if weight is None or len(weight.source.shape) != 4 or any(constant(d) is None for d in weight.source.shape):
        raise Declined("the weight is not packed as [groups, panels, window * channels, nr]")
    groups, panels, depth, nr = (constant(d) for d in weight.source.shape)
    channels, result = windows.channels, constant(windows.acc.shape[-1])
    inner, outer = channels // groups, result // groups
    if depth != inner * math.prod(windows.kernel) or not (panels - 1) * nr < outer <= panels * nr:
        raise Declined(f"the weight {[groups, panels, depth, nr]} is no packed one of {channels} to {result} channels")
    types = [str(buffer.dtype) for buffer in (windows.x, weight.source, windows.acc)]
    if types[0] not in ("float32", "float16", "bfloat16") or types[1:] != ["float32", "float32"]:
        raise Declined(f"x, weight and sums are {', '.join(types)}: only float32 weights and sums are served")
    if nr % lanes:
        raise Declined(f"panels of {nr} columns are no multiple of {lanes} lanes")
    if depth == 0 or any(constant(extent) is None for extent in block.extents[windows.rank + 2 :]):
        raise Declined("the windows are empty, or their size is symbolic")
    return Problem(windows, weight.source, groups, panels, nr, inner, outer)
