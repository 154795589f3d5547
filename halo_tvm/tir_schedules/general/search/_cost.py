"""What a tiling of a reduction should cost: arithmetic, loads, the latency of totals, tiles that overlap, cores.

The numbers are cycles of a core with two load ports and one vector unit per cycle. Only their order for one function
is used, so one set of them serves every CPU with vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ....targets import Target
from ...blocks import is_choice, uses
from ...code.lanes import constant, simplify
from ...injective.nest import bits, substituted
from ._access import Access, accesses, place_of, step_of
from ._decision import NONE, Decision, Tiling
from ._masks import is_masked
from ._program import Reduction

_LATENCY = 4.0  # of an addition or a multiply-add: with fewer independent totals the unit waits
_LOADS_PER_CYCLE = 2.0
_GATHERED = 2.0  # one lane of a load that is not contiguous
_SHORT = 2.0  # a run that ends before the iterator does: the next is elsewhere, and not fetched ahead
_FAR, _GATHERED_FAR = 512, 8.0  # elements apart, every lane takes a line and a page of its own
_STREAM = 0.3  # a run of memory that a step reads beside others: vectors next to each other are one
_BEHIND_BRANCH = 4.0  # one lane of a load behind a condition of its own
_MASKED = 2.0
_BRANCH = 2.0  # a condition that is the same for all lanes
_CALL = 12.0  # exp and its like
_DIVISION = 8.0
_EXPOSED = 0.15  # of what is not the bottleneck
_LOOP = 1.0
_TILE = 25.0  # addresses, the first values of totals
_LAUNCH = 3_000.0
_SPILL = 4.0
_PLAIN, _PLAIN_SCALAR = 0.6, 2.5  # a step of the fallback where the compiler finds vectors, and where not
_TYPICAL = 128  # of an extent that is not known


@dataclass(frozen=True)
class Costs:
    """What the cost of every tiling of one reduction is made of."""

    reduction: Reduction
    target: Target
    sizes: Mapping[ir.Var, int]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        batch = self.reduction.extents[0] if self.reduction.extents else None
        return tuple(self._size(e, 1 if e is batch else _TYPICAL) for _, e in self.reduction.iterators)

    def _size(self, extent: Expr, typical: int) -> int:
        known = {v: tirx.IntImm(str(v.ty.dtype), self.sizes.get(v, typical)) for v in variables(extent)}
        size = constant(extent) if not known else constant(simplify(substituted(extent, known)))
        return max(1, typical if size is None else size)

    @cached_property
    def loads(self) -> tuple[Access, ...]:
        """The loads of a step that are not of totals."""
        totals = [t.buffer for t in self.reduction.totals]
        found = [a for t in self.reduction.totals for a in accesses(t.update)]
        found = [a for a in found if not any(a.load.source.same_as(b) for b in totals)]
        distinct: list[Access] = []
        for access in found:
            if not any(tvm_ffi.structural_equal(access.load, other.load) for other in distinct):
                distinct.append(access)
        return tuple(distinct)

    @cached_property
    def arithmetic(self) -> float:
        """Vector instructions of one step of one vector."""
        return max(1.0, sum(_arithmetic(total.update) for total in self.reduction.totals))

    @cached_property
    def registers(self) -> float:
        """Registers of `target` that one lane of the totals takes, as a share of a register."""
        return sum(max(bits(t.buffer), 8) for t in self.reduction.totals) / self.target.isa.vector_bits

    def of(self, number: int) -> tuple[float | None, ...]:
        """Of each load, its cycles for one lane where iterator `number` lies in the vectors; None: it stays the same.

        A contiguous load counts as -1, a masked one as -2, for a whole vector.
        """
        if number not in self._along:
            var = self.reduction.iterators[number][0]
            self._along[number] = tuple(_along(access, var) for access in self.loads)
        return self._along[number]

    @cached_property
    def _along(self) -> dict[int, tuple[float | None, ...]]:
        return {}

    def moves(self, number: int) -> tuple[bool, ...]:
        """Of each load, whether iterator `number` changes its place or its conditions."""
        if number not in self._moves:
            var = self.reduction.iterators[number][0]
            self._moves[number] = tuple(
                any(uses(i, var) for i in a.load.indices) or bool(a.guards_on(var)) for a in self.loads
            )
        return self._moves[number]

    @cached_property
    def _moves(self) -> dict[int, tuple[bool, ...]]:
        return {}

    def _branches(self, tiling: Tiling) -> int:
        """Conditions that are looked at in a step."""
        axis = self.reduction.axes[tiling.row] if tiling.row != NONE else None
        guards = [guard for access in self.loads for guard in access.guards]
        return sum(tiling.height if axis is not None and uses(g.condition, axis) else 1 for g in guards)

    def storing(self, buffer: ir.Var, tiling: Tiling) -> float:
        """Cycles of storing one vector of an output."""
        if tiling.vector == NONE or tiling.is_partial(self.reduction):
            return 1.0
        place = place_of(buffer, dict(self.reduction.places)[buffer])
        step = step_of(place, self.reduction.axes[tiling.vector])
        return 1.0 if step == 1 else _GATHERED * tiling.lanes

    def step(self, tiling: Tiling) -> float:
        """Cycles of one step of a tile."""
        vectors = tiling.vectors * tiling.height
        along = self.of(tiling.vector) if tiling.vector != NONE else (None,) * len(self.loads)
        down = self.moves(tiling.row) if tiling.row != NONE else (False,) * len(self.loads)
        loading = 0.0
        for cost, moves in zip(along, down):
            times = tiling.height if moves else 1
            short = cost == -1.0 and self.extents[tiling.vector] > tiling.lanes * tiling.vectors
            loading += times * (_SHORT if short else _STREAM)
            if cost is None:
                loading += times
            else:
                each = {-1.0: 1.0, -2.0: _MASKED}.get(cost, cost * tiling.lanes)
                loading += times * tiling.vectors * each
        loading += _LOADS_PER_CYCLE * _BRANCH * self._branches(tiling)
        wide = max(1.0, self.registers * tiling.lanes)
        needed = vectors * wide + (tiling.vectors if tiling.height > 1 else 1) + 2
        spilled = max(0.0, needed - self.target.isa.vector_registers) * _SPILL
        bounds = (self.arithmetic * vectors * wide, loading / _LOADS_PER_CYCLE, _LATENCY)
        return max(bounds) + _EXPOSED * (sum(bounds) - max(bounds)) + spilled + _LOOP


def cycles(costs: Costs, tiling: Tiling, decision: Decision) -> float:
    """Cycles of the reduction, all cores together at work."""
    r = costs.reduction
    axes, steps = costs.extents[: len(r.axes)], list(costs.extents[len(r.axes) :])
    partial, unit = tiling.is_partial(r), tiling.lanes * tiling.vectors
    joining = 0.0
    if partial:
        at = tiling.vector - len(r.axes)
        whole, rest = divmod(steps[at], unit)
        steps[at] = whole + (rest / tiling.lanes) + (rest % tiling.lanes).bit_count()
        joining = tiling.height * (tiling.vectors + 3 * math.log2(max(2, tiling.lanes)))
    tiles = 1
    for n, extent in enumerate(axes):
        size = (unit if n == tiling.vector else 1) * (tiling.height if n == tiling.row else 1)
        tiles *= -(-extent // min(size, extent))
    vectors = tiling.height * (1 if partial else tiling.vectors)
    storing = sum(costs.storing(buffer, tiling) for buffer in r.stored)
    behind = _TILE + joining + vectors * (3.0 + storing + 3.0 * len(r.stages))
    total = tiles * (math.prod(steps) * costs.step(tiling) + behind)
    if math.prod(costs.extents) < decision.serial_below or tiles == 1:
        return total
    return total / min(costs.target.cores, tiles) + _LAUNCH


def plain_cycles(costs: Costs, decision: Decision) -> float:
    """Cycles of the fallback: steps outside, the last axis inside, totals in memory."""
    axes = len(costs.reduction.axes)
    along = costs.of(axes - 1) if axes else (_GATHERED,)
    guarded = any(access.guards for access in costs.loads)
    vectors = len(costs.reduction.totals) == 1 and not guarded and axes > 1 and costs.extents[axes - 1] > 1
    smooth = vectors and all(cost is None or cost == -1.0 for cost in along)
    each = _PLAIN if smooth else _PLAIN_SCALAR
    total = math.prod(costs.extents) * (each + (costs.arithmetic - 1) * each / 2)
    if math.prod(costs.extents) < decision.serial_below or axes == 0:
        return total
    return total / min(costs.target.cores, max(1, math.prod(costs.extents[: axes - 1]))) + _LAUNCH


def variables(expr: Expr) -> list[ir.Var]:
    """The variables in `expr`."""
    found: list[ir.Var] = []
    tvm_ffi.structural_walk(expr, (ir.Var, found.append), order="post")
    return found


def _along(access: Access, var: ir.Var) -> float | None:
    if access.guards_on(var):
        return -2.0 if is_masked(access, var) else _BEHIND_BRANCH
    step = access.step(var)
    if step == 0:
        return None
    if step == 1:
        return -1.0
    return _GATHERED if step is not None and abs(step) < _FAR else _GATHERED_FAR


def _arithmetic(value: Expr) -> float:
    """Instructions of a value; what places of loads are made of does not count, conditions do for one."""
    found = [0.0]

    def count(node: Expr) -> None:
        if isinstance(node, ir.TensorLoad):
            return
        if isinstance(node, ir.Call):
            found[0] += 1.0 if is_choice(node) else _CALL
            for arg in node.args[1:] if is_choice(node) else node.args:
                count(arg)
            return
        if isinstance(node, (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)):
            found[0] += _DIVISION
        elif not isinstance(node, (tirx.Add, tirx.Sub)) or not any(isinstance(x, tirx.Mul) for x in (node.a, node.b)):
            found[0] += 0.0 if isinstance(node, (ir.Var, tirx.IntImm, tirx.FloatImm)) else 1.0
        for name in ("a", "b", "value", "condition", "true_value", "false_value"):
            child = getattr(node, name, None)
            if isinstance(child, ir.Expr):
                count(child)

    count(value)
    return found[0]
