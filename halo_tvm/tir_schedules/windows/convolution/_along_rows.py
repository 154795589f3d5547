"""The nest of a convolution in groups: its tiles are windows side by side along the last axis.

    a copy of x, widened or rounded, and padded         only of other types than float32
    parallel for task = (block of rows of windows, group, panel):
        for rows of windows, tiles of mr windows:
            for elements of the window but its last axis, steps of the sum:
                for elements of x that the tile reaches along its last axis:
                    times the weights of all windows it is part of: mr x nr sums held in registers
            for each window: all stages, vector by vector
A group has few channels: where windows lie anywhere their addresses take longer than their products. Here all elements
lie at fixed places behind the first one. Each is read once for all windows that have it. Of groups abreast, whose lanes
multiply other channels each, an element is what a step multiplies of all of them, brought into their lanes.
The last tile of a row ends with it: windows that two tiles have are computed twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import ceil_div, constant, index, kept, product, run, simplify, unravel
from ...code.nests import run_at
from ...products.gemm.arithmetic import Tile
from ...products.gemm.lane_dots import LaneDots
from ...products.gemm.w8a8 import words_of
from .._store import Panels, store_place
from .._zeros import address_or_zeros
from ._copy import Padded
from ._problem import InVectors, Problem


def emit_along_rows(problem: Problem, x: Padded, mr: int, block_rows: int, lanes: int) -> None:
    """Tiles of `mr` windows, tasks of at least `block_rows` windows where there are so many."""
    p, w = problem, problem.windows
    width = constant(w.places[-1])
    assert width is not None, "tiles lie along rows of a known length"
    number = product([w.batch, *w.places[:-1]])
    each = index(max(1, block_rows // width))
    with T.parallel(simplify(ceil_div(number, each) * (p.groups * p.panels))) as task:
        panel, group = kept(task % p.panels), kept(task // p.panels % p.groups)
        top = kept(simplify(task // (p.panels * p.groups) * each))
        sums = T.alloc_buffer((mr, p.nr), p.arithmetic.total, align=64)
        begin = _beginnings(p, x, panel, group, lanes)
        with T.serial(tirx.min(each, number - top)) as row, T.serial(index(-(-width // mr))) as tile:
            n, *front = (kept(simplify(at)) for at in unravel(top + row, [w.batch, *w.places[:-1]]))
            first = kept(simplify(tirx.min(tile * mr, index(width - mr))))
            _Tile(p, x, mr, lanes, panel, group).multiply(sums, begin, n, [*front, first])
            panels = Panels(p.outer, p.panels, p.nr)
            with T.serial(index(mr)) as r:
                store_place(w, sums, r, [n, *front, first + r], panel, panels, lanes, p.first_of_result(group))


def _beginnings(p: Problem, x: Padded, panel: ir.Expr, group: ir.Expr, lanes: int) -> ir.Var | None:
    """What the sums of a task begin with where that is not 0."""
    if not p.arithmetic.begins:
        return None
    found = T.alloc_buffer((p.nr,), p.arithmetic.sums, align=64)
    whole = Tile(x.buffer, p.weight, (), index(0), group, panel, p.run, p.nr, lanes)
    p.arithmetic.beginnings(whole, math.prod(p.windows.kernel) * (p.inner // p.arithmetic.group), found, 0)
    return found


class _Tile:
    def __init__(self, p: Problem, x: Padded, mr: int, lanes: int, panel: ir.Expr, group: ir.Expr) -> None:
        self.p, self.w, self.x, self.mr, self.lanes, self.panel, self.group = p, p.windows, x, mr, lanes, panel, group
        assert isinstance(p.arithmetic, InVectors), f"{type(p.arithmetic).__name__} adds no vectors"
        self.arithmetic, self.vectors = p.arithmetic, p.nr // lanes
        self.side = 1 if p.arithmetic.words else p.arithmetic.group  # numbers of the buffer that a step multiplies
        self.steps = p.inner // p.arithmetic.group
        # A whole vector is brought into lanes as it is read; what is less is read once for all steps, which are few.
        self.at_once = self.steps if 1 < p.abreast and p.abreast * self.steps < lanes else 1
        self.acc = [T.alloc_buffer((p.nr,), p.arithmetic.sums) for _ in range(mr)]

    def multiply(self, sums: ir.Var, begin: ir.Var | None, n: ir.Expr, place: Sequence[ir.Expr]) -> None:
        """sums[r] = the window that lies r places behind `place`, from `begin` on."""
        p, w = self.p, self.w
        for acc, v in itertools.product(self.acc, range(self.vectors)):
            zeros = tirx.Broadcast(tirx.const(0, p.arithmetic.sums), self.lanes)
            T.buffer_store(acc, zeros if begin is None else begin[self._vector(v)], [self._vector(v)])
        with T.serial(index(math.prod(w.kernel[:-1]))) as tap:
            ks = [*(kept(simplify(k)) for k in unravel(tap, [index(k) for k in w.kernel[:-1]])), index(0)]
            at = [o * w.strides[a] - self.x.before[a] + k * w.dilations[a] for a, (o, k) in enumerate(zip(place, ks))]
            elements, first = self._elements(n, at), tap * (w.kernel[-1] * self.steps)
            for begin in range(0, self.steps, self.at_once):
                self._add(elements, first, range(begin, begin + self.at_once))
        for r, v in itertools.product(range(self.mr), range(self.vectors)):
            T.buffer_store(sums, self.acc[r][self._vector(v)], [r, self._vector(v)])

    def _windows(self, place: int) -> list[tuple[int, int]]:
        """(window, element of its last axis) of all that have the element `place` places behind the first one."""
        stride, dilation = self.w.strides[-1], self.w.dilations[-1]
        behind = [(place - k * dilation, k) for k in range(self.w.kernel[-1])]
        return [(at // stride, k) for at, k in behind if at % stride == 0 and 0 <= at // stride < self.mr]

    def _elements(self, n: ir.Expr, at: Sequence[ir.Expr]) -> dict[int, ir.Var]:
        """What a group, or those abreast, multiply of the element at `at` and of those behind it, by their place."""
        p, w, x, channel = self.p, self.w, self.x, self.p.first_of_x(self.group)
        channel = channel // p.arithmetic.group if p.arithmetic.words else channel
        length = p.abreast * self.steps * self.side
        *front, column = at
        tests = [t for a, i in enumerate(front) if not x.is_inside(a) for t in (i >= 0, i < x.sizes[a])]
        inside = kept(tirx.Select(tirx.all(*tests), index(1), index(0))) if tests else None
        found = {}
        for place in range((self.mr - 1) * w.strides[-1] + (w.kernel[-1] - 1) * w.dilations[-1] + 1):
            if not self._windows(place):
                continue
            address = tirx.address_of(x.buffer[(n, *front, column + place, channel)])
            tests = [inside > 0] if inside is not None else []
            if not x.is_inside(w.rank - 1):
                tests += [column + place >= 0, column + place < x.sizes[-1]]
            if tests:
                address = address_or_zeros(length, tirx.all(*tests), address)
            found[place] = run_at(address, (length,), str(x.buffer.dtype), f"element{place}")
        return found

    def _add(self, elements: Mapping[int, ir.Var], first: ir.Expr, steps: Sequence[int]) -> None:
        """Add up some steps of all elements, whose weights begin at step `first` of the panel."""
        taps = list(itertools.product(range(self.w.kernel[-1]), range(self.vectors)))
        weights = {(step, k, v): self._weight(first + (k * self.steps + step), v) for step in steps for k, v in taps}
        for place, element in elements.items():
            abreast = self._words(element, index(0), self.p.abreast * self.steps) if self.p.abreast > 1 else None
            for step in steps:
                x = self._in_all_lanes(element, step) if abreast is None else self._in_lanes(abreast, step)
                for (r, k), v in itertools.product(self._windows(place), range(self.vectors)):
                    at = self._vector(v)
                    T.buffer_store(self.acc[r], self._added(self.acc[r][at], x, weights[step, k, v]), [at])

    def _added(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr) -> ir.Expr:
        if isinstance(self.arithmetic, LaneDots):
            return self.arithmetic.dot(total, x, weight)
        return self.arithmetic.add(total, x, weight, self.lanes)

    def _weight(self, k: ir.Expr, v: int) -> ir.Expr:
        front, group = (self.group, self.panel, k), self.p.arithmetic.group
        if group == 1:
            return T.bind(self.p.weight[(*front, self._vector(v))])
        found = self.p.weight[(*front, v * self.lanes, tirx.Ramp(index(0), index(1), group * self.lanes))]
        return T.bind(tirx.reinterpret(words_of(self.lanes), found) if self.p.arithmetic.words else found)

    def _in_all_lanes(self, element: ir.Var, step: int) -> ir.Expr:
        return T.bind(tirx.Broadcast(self._words(element, index(step * self.side), 1), self.lanes))

    def _in_lanes(self, words: ir.Expr, step: int) -> ir.Expr:
        """Step `step` of each group abreast in the lanes of its columns."""
        each, count = self.lanes // self.p.abreast, self.p.abreast * self.steps
        order = [tirx.IntImm("int32", lane // each * self.steps + step) for lane in range(self.lanes)]
        # TVM takes no more lanes than it is given.
        return T.bind(tirx.Shuffle([words] * -(-self.lanes // count), order))

    def _words(self, element: ir.Var, at: ir.Expr, count: int) -> ir.Expr:
        width = count * self.side
        found = element[run(at, width)]
        words = found if self.side == 1 else tirx.reinterpret(words_of(count), found)
        return T.bind(self.arithmetic.of_row(words, count) if isinstance(self.arithmetic, LaneDots) else words)

    def _vector(self, v: int) -> ir.Expr:
        return tirx.Ramp(index(v * self.lanes), index(1), self.lanes)
