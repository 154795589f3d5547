"""Windows of every channel by itself, channels last: depthwise convolution and pooling, and the stages behind them.

Serves
    one or more spatial axes, any of them symbolic; strides, dilations, padding, kernels larger than the image; any type
    of elements; any number of element-wise stages over the same axes
Declines
    channels first; a symbolic number of channels; convolutions that add up channels; padding that depends on sizes;
    blocks in front of the windows, other than their padding
References
    docs/kernels/convolution.md: measurements and how the defaults were chosen
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import DataType, tirx

from ....errors import Declined
from ...blocks import loads, written_out
from ...code.lanes import constant
from ...products.row_tiling import FEW_CORES, least_of, slowest_core
from ...rule import Numbers, Rule
from .._match import Windows, match_windows
from ._nest import build, has_whole_rows, known_tiles

if TYPE_CHECKING:
    from ....targets import Target

__all__ = ["Channelwise", "Decision"]

_SMALLEST, _LARGEST = (
    4,
    8,
)  # windows of a tile: fewer wait for each other's sums, more need no register but load the same
_LEAST_ELEMENTS = 4096  # of windows, that are worth a task


@dataclass(frozen=True)
class Decision:
    """How the windows are cut."""

    columns: int  # neighbouring windows of a register tile
    lanes: int  # channels of a vector
    tasks: int  # parallel pieces at least, where there are as many tiles
    shares: int = 1  # of the channels, each a task of its own


class Channelwise(Rule[Decision]):
    """Register tiles of neighbouring windows in vectors of channels."""

    name = "channelwise"
    Decision = Decision
    domains = {
        "columns": Numbers(1, 16),
        "lanes": Numbers(1, 64),
        "tasks": Numbers(1, 4096),
        "shares": Numbers(1, 256),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        windows = _match(func)
        element = max(DataType(str(buffer.dtype)).bits for buffer in (windows.acc, *(s.out for s in windows.stages)))
        lanes = target.isa.vector_bits // max(element, 32)
        while lanes > max(windows.channels, 1):
            lanes //= 2
        tasks = 4 * target.cores
        columns = _columns(windows, tasks)
        return Decision(columns, lanes, tasks, _shares(windows, columns, lanes, tasks, target.cores))

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        first = self.default(func, target)
        tasks = (target.cores, 4 * target.cores, 16 * target.cores)
        values = itertools.product((first.columns, 2, 4, 6, 8, 12), {first.lanes, max(1, first.lanes // 2)}, tasks)
        return tuple(dict.fromkeys([first, *(Decision(*fields) for fields in values)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        windows = _match(func)
        if decision.lanes > max(windows.channels, 1):
            raise Declined(f"vectors of {decision.lanes} channels, but there are {windows.channels}")
        body = build(windows, decision.columns, decision.lanes, decision.tasks, decision.shares)
        return written_out(func, body)


def _match(func: tirx.PrimFunc) -> Windows:
    windows = match_windows(func, ("convolution", "pooling"), "the block of windows")
    block, rank = windows.block, windows.rank
    *_, channel = block.vars[: rank + 2]
    for axis, extent in enumerate(block.extents[rank + 2 :]):
        # A convolution also adds up over the channels of a group: one of them here.
        known = windows.kernel[axis] if axis < rank else 1
        if constant(extent) != known:
            raise Declined(
                f"{constant(extent) or extent} elements add up along reduction axis {axis}, expected {known}"
            )
    for load in loads(block.store.value):
        if load.source.same_as(windows.source) and not load.indices[-1].same_as(channel):
            raise Declined(f"channel {channel.name} of the result is made of channel {load.indices[-1]}")
    if constant(windows.acc.shape[-1]) != windows.channels:
        raise Declined(f"{windows.channels} channels become {windows.acc.shape[-1]}")
    return windows


def _shares(windows: Windows, columns: int, lanes: int, tasks: int, cores: int) -> int:
    """In how many shares the channels are walked where places make too few tasks for many cores."""
    sizes = [constant(size) for size in (windows.batch, *windows.places)]
    if cores <= FEW_CORES or not all(sizes):
        return 1
    *_, width = places = [size or 0 for size in sizes]
    rows = math.prod(places[:-1])
    pieces = 1 if has_whole_rows(windows, columns, tasks) else min(-(-tasks // rows), -(-width // columns))
    vectors = -(-windows.channels // lanes)
    elements = math.prod(places) * math.prod(windows.kernel) * windows.channels
    most = min(vectors, elements // (rows * pieces * _LEAST_ELEMENTS))
    others = range(2, most + 1)
    return least_of(1, others, lambda shares: slowest_core([-(-vectors // shares)], rows * pieces * shares, cores))


def _columns(windows: Windows, tasks: int) -> int:
    """The width of a tile that computes the fewest windows twice."""
    count = constant(windows.places[-1])
    if count is None:
        return _LARGEST
    if has_whole_rows(windows, _LARGEST, tasks) and known_tiles(windows, _LARGEST) is not None:
        return _LARGEST
    axis = windows.rank - 1
    size, reach = constant(windows.sizes[axis]), (windows.kernel[-1] - 1) * windows.dilations[-1]
    stride, before = windows.strides[-1], windows.before[-1]
    first = -(-before // stride)
    whole = max(0, min(count, (size - 1 + before - reach) // stride + 1) - first) if size is not None else count
    if whole <= _LARGEST:
        return max(1, whole)
    return min(range(_LARGEST, _SMALLEST - 1, -1), key=lambda columns: -(-whole // columns) * (columns + 1))
