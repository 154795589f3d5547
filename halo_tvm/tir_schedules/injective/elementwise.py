"""Injective functions: element-wise chains, broadcasts, transposes, gathers, concatenations, slices.

Serves
    functions without a reduction whose blocks each store one value at their own iterators
Before -> after
    a[i] = f(x[i]); y[i] = g(a[i])             ->   y[i] = g(f(x[i]))
    for i0..in: y                              ->   parallel for runs of rows: for j over the trailing axes
                                                    that are contiguous everywhere: vectors, exact tails
    a concatenation, padding                   ->   a loop for each part of the last axis (`_seams`)
    y[i, j] = f(x[j, i])                       ->   tiles of `tile` x `tile`, so that cache lines are used whole;
                                                    32-bit elements turned in registers (`_tiles`), or the values
                                                    made of several of them (`_turned_values`); operands whose
                                                    neighbours are at most four elements apart are not tiled:
                                                    `loads_in_order` shuffles them
Declines
    see `match`: reductions; blocks with a predicate or several stores; scatters; what grows too large when inlined
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir import Expr

from ...extremes import once
from ...targets import Target
from ..blocks import loads
from ..code.lanes import (
    ceil_div,
    constant,
    in_parallel_when_large,
    index,
    kept_apart,
    parallel_rows,
    product,
    replace_body,
    seq,
    simplify,
    unravel,
    vector_loop,
)
from ..rule import Numbers, Rule
from ._seams import Part, parts_of
from ._tiles import is_near, is_turned, swapped_axis, tiles
from ._turned_values import has_values_to_turn, turned_values
from .match import contiguous_axes, nests_of
from .nest import Nest, bits, store_at, without_ones

_SERIAL = (1 << 12, 1 << 13, 1 << 15)  # elements below which one thread may do it all
# Out of memory, tiles of several cache lines use each page that they open four times: 1.4 times faster at
# 4096 x 4096; within a few per cent from 768 x 768 on.
_TURNED_FAR, _FAR_ELEMENTS = 64, 1 << 20


@dataclass(frozen=True)
class ElementwiseDecision:
    """How the elements of an injective function are cut."""

    lanes: int  # elements of one vector
    unroll: int  # vectors per iteration
    tasks: int  # at most so many parallel runs
    serial_below: int  # elements; less work than this runs on one thread
    tile: int  # edge of a transposition's tiles


class Elementwise(Rule[ElementwiseDecision]):
    """Maps, broadcasts and data movement."""

    name = "elementwise"
    Decision = ElementwiseDecision
    domains = {
        "lanes": Numbers(1, 64, powers=True),
        "unroll": Numbers(1, 16),
        "tasks": Numbers(1, 1 << 16),
        "serial_below": Numbers(0, 1 << 31),
        "tile": Numbers(1, 64),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> ElementwiseDecision:
        return decision_for(_nests_of(func), target)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[ElementwiseDecision]:
        base, cores = self.default(func, target), target.cores
        edges = (8, 16, 32, 64) if any(swapped_axis(nest) is not None for nest in _nests_of(func)) else (base.tile,)
        values = itertools.product(
            (base.lanes, max(1, base.lanes // 2)), (1, 2, 4), (cores, 4 * cores, 8 * cores), _SERIAL, edges
        )
        return tuple(dict.fromkeys([base, *(ElementwiseDecision(*fields) for fields in values)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: ElementwiseDecision) -> tirx.PrimFunc:
        self.check(decision)
        return replace_body(func, seq([elements(nest, decision) for nest in _nests_of(func)]))


def _nests_of(func: tirx.PrimFunc) -> list[Nest]:
    return [without_ones(nest) for nest in nests_of(func, once)]


def decision_for(nests: Sequence[Nest], target: Target) -> ElementwiseDecision:
    """The analytic decision for these nests."""
    # The widest element decides: a vector of 16 int64 would be two registers, and gathers of them four.
    widest = max((bits(v) for nest in nests for v in (nest.output, *(x.source for x in loads(nest.value)))), default=32)
    lanes = max(1, target.isa.vector_bits // max(widest, 32))
    # A launch costs 0.75 us, in which one core copies about 16 KiB out of its cache.
    tile = _TURNED_FAR if any(_is_far(nest) for nest in nests) else 16
    return ElementwiseDecision(lanes=lanes, unroll=2, tasks=8 * target.cores, serial_below=8192, tile=tile)


def elements(nest: Nest, decision: ElementwiseDecision) -> tirx.Stmt:
    """The statement that computes every element of `nest`."""

    def emit(parallel: bool) -> tirx.Stmt:
        swapped = swapped_axis(nest)
        turns = swapped is not None and is_turned(nest, swapped)
        if swapped is not None and (turns or not is_near(nest)):
            if not turns and has_values_to_turn(nest, decision.lanes, swapped):
                return turned_values(nest, decision.lanes, decision.tasks, parallel, swapped)
            return tiles(nest, decision.lanes, decision.tile, decision.tasks, parallel, swapped)
        return _vectors(nest, decision, parallel)

    return in_parallel_when_large(product(nest.extents), decision.serial_below, emit)


def _is_far(nest: Nest) -> bool:
    """Whether it swaps axes in registers, and is larger than the caches."""
    size, swapped = constant(product(nest.extents)), swapped_axis(nest)
    return size is not None and size >= _FAR_ELEMENTS and swapped is not None and is_turned(nest, swapped)


def _vectors(nest: Nest, decision: ElementwiseDecision, parallel: bool) -> tirx.Stmt:
    """Rows of the leading axes, vectors over the trailing axes that are contiguous everywhere."""
    split = len(nest.extents) - contiguous_axes(nest)
    leading, trailing = nest.extents[:split], nest.extents[split:]
    length, rows = product(trailing), product(leading)
    unit = decision.lanes * decision.unroll
    # Too few rows for the threads: the vectors of a row are cut into runs too.
    count = constant(rows)
    chunks = index(1)
    if parallel and count is not None and count < decision.tasks:
        chunks = simplify(tirx.max(tirx.min(index(-(-decision.tasks // count)), ceil_div(length, unit)), index(1)))
    size = (
        simplify(tirx.floordiv(ceil_div(length, chunks) + index(unit - 1), index(unit)) * index(unit))
        if constant(chunks) != 1
        else length
    )

    parts = parts_of(nest) if len(trailing) == 1 else []

    def row(r: Expr) -> list[tirx.Stmt]:
        whole = constant(chunks) == 1
        start = index(0) if whole else simplify(tirx.floormod(r, chunks) * size)
        at = unravel(r if whole else simplify(tirx.floordiv(r, chunks)), leading)
        # Divided by a size that is not known once a row, not in every vector.
        first, at = kept_apart(at) if any(constant(extent) is None for extent in leading[1:]) else ([], at)

        def body(j: Expr, _slot: Expr | None) -> list[tirx.Stmt]:
            return [store_at(nest, dict(zip(nest.axes, (*at, *unravel(j, trailing)))))]

        def between(part: Part) -> list[tirx.Stmt]:
            here = replace(nest, value=part.value)

            def element(j: Expr, _slot: Expr | None) -> list[tirx.Stmt]:
                return [store_at(here, dict(zip(nest.axes, (*at, j))))]

            return vector_loop(
                index(part.first), index(part.end - part.first), decision.lanes, decision.unroll, element
            )

        if whole and len(parts) > 1:
            return [*first, *(stmt for part in parts for stmt in between(part))]
        left = length if whole else simplify(tirx.max(tirx.min(size, length - start), index(0)))
        return [*first, *(vector_loop(start, left, decision.lanes, decision.unroll, body) or [tirx.Evaluate(index(0))])]

    return parallel_rows(simplify(rows * chunks), decision.tasks, parallel, row, list)
