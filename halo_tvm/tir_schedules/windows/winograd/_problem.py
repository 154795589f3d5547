"""Recognise a convolution whose last two axes, or last one, are computed by minimal filtering."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ....winograd import FLOATS, INTEGERS, Filtering
from ...blocks import Block, annotated, loads
from ...code.lanes import ceil_div, constant, product
from ...products.gemm.arithmetic import Arithmetic
from ...products.gemm.float32 import Float32
from ...products.gemm.word_pairs import WordPairs
from .._match import WINDOW, Windows, behind_padding, windows_of

if TYPE_CHECKING:
    from ....targets import Isa

# By operator: its tiles, and how factors, of which a step takes a group, are multiplied.
_KINDS: dict[str, tuple[Filtering, Arithmetic]] = {
    "convolution_winograd": (FLOATS, Float32()),
    "convolution_integer_winograd": (INTEGERS, WordPairs()),
}
_INPUT, _PRODUCT = "winograd_input0", "winograd_product"  # halo.part of the blocks that read x and the weight


@dataclass(frozen=True)
class Problem:
    """Windows of x times weight [panels, factors, taps * c, nr]; `taps` are elements of the kernel's axes in front.

    Integers: times weight [panels, factors, taps * c / 2, nr, 2].
    """

    windows: Windows
    filtering: Filtering
    arithmetic: Arithmetic
    weight: ir.Var
    axes: int  # that are transformed, the last ones: two or one
    panels: int
    nr: int
    outer: int  # channels of the result
    split: int = 1  # so many panels here are one of the weight

    def split_into(self, pieces: int) -> Problem:
        """The same with each panel of the weight cut into `pieces` of whole vectors, each a panel of its own."""
        if pieces == 1:
            return self
        nr = self.nr // pieces
        return replace(self, nr=nr, panels=-(-self.outer // nr), split=pieces)

    @property
    def front(self) -> int:
        """Number of axes in front of those that are transformed."""
        return self.windows.rank - self.axes

    @property
    def factors(self) -> int:
        """Of a tile, and products that it takes."""
        return int(self.filtering.tile**self.axes)

    @property
    def results(self) -> int:
        """Of a tile."""
        return int(self.filtering.results**self.axes)

    @property
    def taps(self) -> int:
        return math.prod(self.windows.kernel[: self.front])

    @property
    def depth(self) -> int:
        """Products that are added up for each factor of a tile."""
        return self.taps * self.windows.channels

    @property
    def grid(self) -> tuple[ir.Expr, ...]:
        """Number of tiles along each axis, the batch first; an axis in front has one for each place."""
        places = self.windows.places
        return (
            self.windows.batch,
            *places[: self.front],
            *(ceil_div(size, self.filtering.results) for size in places[self.front :]),
        )

    @property
    def tiles(self) -> ir.Expr:
        return product(self.grid)

    def shares(self, blocks: int, cores: int) -> int:
        """In how many shares the panels are walked: one, unless there are too few blocks for the cores."""
        return min(self.panels, -(-cores // blocks))


@functools.lru_cache(maxsize=16)
def match(func: tirx.PrimFunc, isa: Isa) -> Problem:
    """The convolution `func` consists of; `Declined` with the first reason why it is none."""
    main, earlier, behind = annotated(func, _KINDS)
    parts = [str(block.node.annotations.get("halo.part", "")) for block in earlier]
    if WINDOW not in main.node.annotations or not {_INPUT, _PRODUCT} <= set(parts):
        raise Declined("the convolution does not say how its windows lie, or lacks one of its parts")
    first = parts.index(_INPUT)
    source = _read(earlier[first])[0].source
    x, outside = behind_padding(source, earlier[:first])
    made = [block.store.buffer for block in earlier if block.store is not None]
    read = [load.source for load in _read(earlier[parts.index(_PRODUCT)])]
    weight = next(buffer for buffer in read if not any(buffer.same_as(b) for b in made))
    acc = _stored(main)
    filtering, arithmetic = _KINDS[str(main.op)]
    types = [str(buffer.dtype) for buffer in (x, weight, acc)]
    served = ["float32"] * 3 if filtering is FLOATS else ["uint8", "int16", "int32"]
    if types != served:
        raise Declined(f"x, weight and sums are {', '.join(types)}: only {', '.join(served)} are served")
    if filtering is INTEGERS and isa.byte_dot != "vpmaddwd":
        raise Declined(f"{isa.name} multiplies bytes as fast as words, or words one by one")
    channels, outer, lanes = constant(x.shape[-1]), constant(main.extents[-1]), isa.vector_bits // 32
    if channels is None or outer is None or channels < lanes * arithmetic.group or outer < lanes:
        least = f"{lanes * arithmetic.group} to {lanes}"
        raise Declined(f"{channels} to {outer} channels: at least {least} are served")
    panels, factors, _, nr, *_ = (int(size) for size in weight.shape)
    if nr % lanes:
        raise Declined(f"panels of {nr} columns are no multiple of {lanes} lanes")
    windows = windows_of(main, x, source, outside, behind, func, "the convolution")
    return Problem(windows, filtering, arithmetic, weight, filtering.axes(factors), panels, nr, outer)


def _stored(block: Block) -> ir.Var:
    """The buffer that `block` writes."""
    if block.store is None:
        raise Declined(f"block {block.node.name_hint} is no single store")
    return block.store.buffer


def _read(block: Block) -> list[ir.TensorLoad]:
    """What `block` reads besides what it writes."""
    out = _stored(block)
    return [load for load in loads(block.node.body) if not load.source.same_as(out)]
