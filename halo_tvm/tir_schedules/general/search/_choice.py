"""Decisions worth having: every tiling of a reduction by its cost, the best as the default, near ones as the space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tvm import ir

from ....errors import Declined
from ....targets import Target
from ...code.lanes import constant
from ...injective.nest import bits
from ._cost import Costs, cycles, plain_cycles
from ._decision import NONE, Decision, Tiling
from ._program import Program, Reduction

_VECTORS = (1, 2, 3, 4, 6, 8, 16)
_HEIGHTS = (1, 2, 3, 4, 6, 8)
_SERIAL = (1 << 12, 1 << 14, 1 << 16)
_OPEN_TILE = 8  # vectors of a tile along extents that are not all known
_IN_SPACE = 40  # tilings of one reduction
_NEAR = 4.0  # a tiling that should take so many times the best is not measured


def default_of(program: Program, target: Target) -> Decision:
    """The tiling of each reduction that should cost least; `Declined` where none has vectors."""
    base = _parallel(target)
    best = [_ranked(reduction, target, base)[0] for reduction in program.reductions]
    plain = sum(plain_cycles(Costs(reduction, target, {}), base) for reduction in program.reductions)
    if sum(cost for cost, _ in best) > plain:
        raise Declined("the plain loops should be as fast")
    return _joined([tiling for _, tiling in best], base)


def space_of(program: Program, target: Target) -> tuple[Decision, ...]:
    """The default, then others: of one reduction at a time, and of how the work is shared."""
    base = _parallel(target)
    ranked = [_ranked(reduction, target, base) for reduction in program.reductions]
    best = [choices[0][1] for choices in ranked]
    default = _joined(best, base)
    found = [default]
    for n, choices in enumerate(ranked):
        near = [tiling for cost, tiling in choices if cost <= _NEAR * choices[0][0]]
        found += [_joined([*best[:n], tiling, *best[n + 1 :]], base) for tiling in near[:_IN_SPACE]]
    runs = (target.cores, 4 * target.cores, 8 * target.cores, 32 * target.cores)
    shared = [replace(default, tasks=t, serial_below=s) for t, s in itertools.product(runs, _SERIAL)]
    return tuple(dict.fromkeys([*found, *shared]))


def _parallel(target: Target) -> Decision:
    # A launch costs 0.75 us, some thousand steps of a vector.
    return Decision((), (), (), (), (), tasks=8 * target.cores, serial_below=1 << 14)


def _joined(tilings: list[Tiling], base: Decision) -> Decision:
    fields = ("vector", "lanes", "vectors", "row", "height")
    return replace(base, **{name: tuple(getattr(t, name) for t in tilings) for name in fields})


def _ranked(reduction: Reduction, target: Target, base: Decision) -> list[tuple[float, Tiling]]:
    """Every tiling with vectors and its cost, the cheapest first."""
    costs = Costs(reduction, target, {})
    # A tile along an open extent is written out again for each of its ends, vector by vector: TVM takes that long.
    is_open = any(constant(extent) is None for _, extent in reduction.iterators)
    ranked = []
    for tiling in _tilings(reduction, costs):
        if is_open and tiling.vectors * tiling.height > _OPEN_TILE:
            continue
        try:
            tiling.check(reduction)
        except Declined:
            continue
        ranked.append((cycles(costs, tiling, base), tiling))
    if not ranked:
        raise Declined("no iterator of a reduction fills a vector")
    return sorted(ranked, key=lambda entry: entry[0])


def _tilings(reduction: Reduction, costs: Costs) -> Iterator[Tiling]:
    buffers = [*(t.buffer for t in reduction.totals), *(a.load.source for a in costs.loads)]
    widest = max(8, *(bits(buffer) for buffer in buffers))
    most = max(2, costs.target.isa.vector_bits // widest)
    for number, (_, extent) in enumerate(reduction.iterators):
        known = constant(extent)
        lanes = most
        while known is not None and lanes > known and lanes > 2:
            lanes //= 2
        rows = [
            n for n, (_, e) in enumerate(reduction.iterators[: len(reduction.axes)]) if n != number and constant(e) != 1
        ]
        shared = [n for n in rows if not all(costs.moves(n))]  # a tile of several reads something once for all
        rows = rows if number >= len(reduction.axes) else shared
        if _is_involved(reduction):
            rows = []
        for vectors in _VECTORS:
            yield Tiling(number, lanes, vectors, NONE, 1)
            for row, height in itertools.product(rows, _HEIGHTS[1:]):
                yield Tiling(number, lanes, vectors, row, height)


def _is_involved(reduction: Reduction) -> bool:
    """Whether extents are expressions of dimensions: every access that is spelled out takes TVM a tenth of a second."""
    return any(constant(e) is None and not isinstance(e, ir.Var) for _, e in reduction.iterators)
