"""What would be computed again and again where it is read: fusion leaves it in memory.

    a = f(x);  y[i] = a[p(i)] * w[i, 0] + a[q(i)] * w[i, 1]
FuseOps would write f in place of each of the loads of a. That is cheap where f is a few loads and products, which is
how the axes of an interpolated image become one kernel; it is dear where f has an exponential or a quotient, gathers
along the axis that vectors run over, or has been multiplied itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..dimensions import size_of
from ..errors import Declined
from ..relay_ops.operator import INJECTIVE, OPAQUE
from ..tir_schedules.blocks import is_const, loads, uses
from ..tir_schedules.code.threads import distinct
from ..tir_schedules.injective.match import nests_of
from ..tir_schedules.injective.nest import Nest
from .graph_pass import bindings, makes_tensor

_MOST_LOADS = 16  # of one element, when everything is written where it is read: those of a bicubic image
_TIMES = 2.0  # each element of a read so often is not worth keeping what is dear out of memory


@dataclass(frozen=True)
class _Made:
    """What one element costs where it is computed in place of being read."""

    loads: int  # along the axis of vectors
    dear: bool


def repeating_functions(mod: tvm.IRModule, sizes: Mapping[str, int]) -> set[str]:
    """Names of the functions of `mod` that must not take in what makes their operands; `sizes` are typical ones."""
    return _Costs(mod, sizes).found()


class _Costs:
    def __init__(self, mod: tvm.IRModule, sizes: Mapping[str, int]) -> None:
        self._mod, self._sizes = mod, sizes
        self._calls = {b.var: b.value for b in bindings(mod["main"]) if self._is_written_inside(b.value)}
        self._readers = _readers(mod["main"])
        self._nests: dict[ir.GlobalVar, list[Nest]] = {}
        self._made: dict[relax.Var, _Made] = {}

    def found(self) -> set[str]:
        names = set()
        for call in self._calls.values():
            taken = [(param, operand) for param, operand in self._operands(call) if self._is_taken_in(operand)]
            if taken and self._reads_twice(call.args[0], [param for param, _ in taken]):
                if any(self._is_too_much(call, param, operand) for param, operand in taken):
                    names.add(call.args[0].name_hint)
        return names

    def _is_written_inside(self, call: relax.Expr) -> bool:
        """Whether FuseOps may write what `call` computes where it is read."""
        if not makes_tensor(call):
            return False
        return int(self._mod[call.args[0]].attrs.get("op_pattern", OPAQUE)) <= INJECTIVE

    def _is_taken_in(self, operand: relax.Expr) -> bool:
        return operand in self._calls and self._readers[operand] == 1

    def _operands(self, call: relax.Call) -> list[tuple[tirx.Var, relax.Expr]]:
        return list(zip(self._mod[call.args[0]].params, call.args[1].fields))

    def _reads_twice(self, gvar: ir.GlobalVar, params: list[tirx.Var]) -> bool:
        sources = [load.source for load in loads(self._mod[gvar].body)]
        return any(sum(source.same_as(param) for source in sources) > 1 for param in params)

    def _is_too_much(self, call: relax.Call, param: tirx.Var, operand: relax.Expr) -> bool:
        reads = self._reads(call.args[0], param)
        times = reads * self._elements(call) / max(self._elements(self._calls[operand]), 1)
        if reads < 2 or times < _TIMES:
            return False
        made = self._cost(operand)
        return made.dear or reads * made.loads > _MOST_LOADS

    def _cost(self, var: relax.Var) -> _Made:
        """Of what `var` holds, with everything written inside that FuseOps would."""
        waiting = [var]
        while waiting:  # no recursion: chains may be long
            call = self._calls[waiting[-1]]
            taken = [(param, operand) for param, operand in self._operands(call) if self._is_taken_in(operand)]
            unknown = [operand for _, operand in taken if operand not in self._made]
            if unknown:
                waiting += unknown
            else:
                self._made[waiting.pop()] = self._made_by(call)
        return self._made[var]

    def _made_by(self, call: relax.Call) -> _Made:
        """What `call` costs, where what it takes in is known."""
        count, dear = 0, any(_is_dear(nest) for nest in self._nests_of(call.args[0]))
        for param, operand in self._operands(call):
            reads = self._reads(call.args[0], param)
            if self._is_taken_in(operand) and not self._is_too_much(call, param, operand):
                count += reads * self._made[operand].loads
                dear = dear or self._made[operand].dear
            else:
                count += reads
        return _Made(max(count, 1), dear)

    def _reads(self, gvar: ir.GlobalVar, param: tirx.Var) -> int:
        """Places of `param` that one element is made of; what all elements of a vector share counts as none."""
        places = [
            load
            for nest in self._nests_of(gvar)
            for load in loads(nest.value)
            if nest.axes and load.source.same_as(param) and any(uses(at, _lanes(nest)) for at in load.indices)
        ]
        return len(distinct(places))

    def _nests_of(self, gvar: ir.GlobalVar) -> list[Nest]:
        if gvar not in self._nests:
            try:
                self._nests[gvar] = nests_of(self._mod[gvar])
            except Declined:
                self._nests[gvar] = []
        return self._nests[gvar]

    def _elements(self, call: relax.Call) -> int:
        total = 1
        for dim in call.ty_args[0].shape.values:
            total *= size_of(dim, self._sizes)
        return total


def _readers(func: relax.Function) -> Counter[relax.Var]:
    counts: Counter[relax.Var] = Counter()

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Var):
            counts[node] += 1

    for value in [*(b.value for b in bindings(func)), func.body.body]:
        relax.analysis.post_order_visit(value, visit)
    return counts


def _lanes(nest: Nest) -> tirx.Var:
    """The axis that vectors run along."""
    return next((a for a, n in zip(nest.axes[::-1], nest.extents[::-1]) if not is_const(n, 1)), nest.axes[-1])


def _is_dear(nest: Nest) -> bool:
    found: list[ir.Expr] = []
    tvm_ffi.structural_walk(nest.value, (ir.Call, found.append), order="post")
    tvm_ffi.structural_walk(nest.value, (tirx.Div, found.append), order="post")
    if found or not nest.axes:
        return bool(found)
    return any(uses(at, _lanes(nest)) and loads(at) for load in loads(nest.value) for at in load.indices)
