"""Whatever reduces and has no rule of its own: loop nests found by a model of their cost, or by measuring.

Serves
    functions of blocks over data-parallel and reduction loops: reductions along any axes, sums of products, pooling,
    convolutions, arg-max, with the element-wise blocks before and behind them; symbolic extents included
Before -> after
    for i, j: for k: s[i, j] += x[i, k] * w[k, j]   ->   parallel for runs of tiles of i and j, a tile of i x vectors
                                                         of j in registers: for k; the stages behind it in registers
    for i: for k: s[i] += x[i, k]                   ->   vectors along k hold partial sums, which are joined at the end
    if_then_else(0 <= j - 1, x[j - 1], 0)           ->   a masked load
Numerics
    totals have the type that the function gives them. Vectors along an axis keep the order of the steps; vectors along
    a step, for sums, products, maxima and minima only, do not
Declines
    see `_program`; nothing to vectorise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import ir, tirx

from ....targets import Target
from ...code.lanes import replace_body, seq
from ...injective.elementwise import decision_for, elements
from ...injective.nest import Nest
from ...rule import Numbers, Rule
from ._choice import default_of, space_of
from ._cost import Costs, cycles
from ._decision import MOST_NESTS, NONE, Decision
from ._nest import nest_of
from ._program import program_of, with_named_extents

_CYCLES_PER_US = 3_000.0


class Search(Rule[Decision]):
    """Reductions of any kind."""

    name = "search"
    is_general = True
    Decision = Decision
    domains = {
        "vector": Numbers(NONE, MOST_NESTS),
        "lanes": Numbers(1, 64, powers=True),
        "vectors": Numbers(1, 16),
        "row": Numbers(NONE, MOST_NESTS),
        "height": Numbers(1, 16),
        "tasks": Numbers(1, 1 << 16),
        "serial_below": Numbers(0, 1 << 31),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        return default_of(program_of(func), target)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        return space_of(program_of(func), target)

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        reductions = program_of(func).reductions
        tilings = decision.tilings(reductions)
        found = [cycles(Costs(r, target, sizes), t, decision) for r, t in zip(reductions, tilings)]
        return sum(found) / _CYCLES_PER_US

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        program, before = with_named_extents(program_of(func))
        tilings = iter(decision.tilings(program.reductions))
        maps = [nest for nest in program.nests if isinstance(nest, Nest)]
        elementwise = replace(decision_for(maps, target), tasks=decision.tasks)
        statements = [
            elements(nest, elementwise) if isinstance(nest, Nest) else nest_of(nest, next(tilings), decision)
            for nest in program.nests
        ]
        return replace_body(func, seq([*before, *statements]))
