"""Recognise windows that slide over a channels-last tensor, and the element-wise stages behind them.

The operators say by the annotation `WINDOW` of their main block how their windows lie; what the block computes of
each element is read from the block itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.sym import Analyzer

from ...errors import Declined
from ..blocks import Block, annotated, loads
from ..code.lanes import constant, index, product
from ..stages import Stage, read_stages, written_by

ABREAST = "halo.abreast"  # groups whose columns lie side by side in a panel of the weight
WINDOW = "halo.window"  # JSON: kernel, strides, dilations and pads (beginnings, then ends), a number for each axis


@dataclass(frozen=True)
class Windows:
    """x [batch, *sizes, c] seen through windows into acc [batch, *places, m], then stages, all over acc's axes."""

    block: Block
    x: ir.Var  # buffer; what lies beyond its sizes is what the main block starts with
    source: ir.Var  # buffer that the main block reads: x, or x with its padding
    acc: ir.Var
    stages: tuple[Stage, ...]
    outputs: tuple[ir.Var, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    outside: ir.Expr | None = None  # what padding holds; None where the main block reads x itself

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def batch(self) -> ir.Expr:
        return self.block.extents[0]

    @property
    def places(self) -> tuple[ir.Expr, ...]:
        """Number of windows along each axis."""
        return self.block.extents[1 : 1 + self.rank]

    @property
    def sizes(self) -> tuple[ir.Expr, ...]:
        """Of x along each spatial axis."""
        return tuple(self.x.shape[1:-1])

    @property
    def channels(self) -> int:
        """Of x."""
        return constant(self.x.shape[-1])

    @property
    def before(self) -> tuple[int, ...]:
        """Padding in front of each axis."""
        return self.pads[: self.rank]

    @property
    def rows(self) -> ir.Expr:
        """Number of windows."""
        return product([self.batch, *self.places])

    def is_inside(self, axis: int) -> bool:
        """Whether no window reaches beyond x along `axis`."""
        reached = (self.places[axis] - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis]
        return self.before[axis] == 0 and Analyzer().can_prove(reached < self.sizes[axis])

    def reach(self, axis: int) -> ir.Expr:
        """Elements along `axis` from the first of the first window to the last of the last."""
        step = (self.places[axis] - index(1)) * self.strides[axis]
        return Analyzer().simplify(step + ((self.kernel[axis] - 1) * self.dilations[axis] + 1))


def match_windows(func: tirx.PrimFunc, ops: Collection[str], called: str) -> Windows:
    """The windows `func` consists of; `Declined` with the first reason why it has none."""
    main, earlier, behind = annotated(func, sorted(ops))
    store = main.store
    if store is None or not main.plain or WINDOW not in main.node.annotations:
        raise Declined(f"{called} does not say how its windows lie, or is no single store in a plain loop nest")
    rank = len(json.loads(str(main.node.annotations[WINDOW]))["kernel"])
    source = next((load.source for load in loads(store.value) if not load.source.same_as(store.buffer)), None)
    if source is None or len(source.shape) != rank + 2 or len(store.indices) != rank + 2:
        raise Declined(f"{called} does not read a tensor [batch, {rank} axes, channels]")
    x, outside = behind_padding(source, earlier)
    if constant(x.shape[-1]) is None or constant(main.extents[rank + 1]) is None:
        raise Declined(f"the number of channels is symbolic: {x.shape[-1]}")
    return windows_of(main, x, source, outside, behind, func, called)


def windows_of(
    main: Block,
    x: ir.Var,
    source: ir.Var,
    outside: ir.Expr | None,
    behind: Sequence[Block],
    func: tirx.PrimFunc,
    called: str,
) -> Windows:
    """The windows of `main`, which reads `source`, and the stages in the blocks `behind` it; `Declined` for others."""
    window = json.loads(str(main.node.annotations[WINDOW]))
    rank, acc = len(window["kernel"]), main.store.buffer
    stages = read_stages(behind, acc, ", ".join(["axis"] * (rank + 2)), main.extents[: rank + 2], called)
    fields = {name: tuple(window[name]) for name in ("kernel", "strides", "dilations", "pads")}
    return Windows(main, x, source, acc, stages, written_by(stages, acc, func), **fields, outside=outside)


def behind_padding(source: ir.Var, earlier: Sequence[Block]) -> tuple[ir.Var, ir.Expr | None]:
    """(x, what surrounds it) of `source`, which may be a padded copy; `Declined` where anything else runs before."""
    if not earlier:
        return source, None
    (block, *others) = earlier
    value = None if block.store is None else block.store.value
    read = {} if value is None else {load.source.name: load.source for load in loads(value) if load.indices}
    if (
        others
        or len(read) != 1
        or not block.store.buffer.same_as(source)
        or "halo.padding" not in block.node.annotations
        or not isinstance(value, ir.Call)
        or len(value.args) != 3
    ):
        raise Declined(f"block {block.node.name_hint} runs before the windows: only their padding is served")
    return next(iter(read.values())), value.args[2]
