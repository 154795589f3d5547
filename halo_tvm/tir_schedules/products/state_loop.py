"""Operators with a state that moves from token to token: vectors of channels, their steps one after the other.

Serves
    functions of the operators of `relay_ops/parts/kept_state.py`, whose loops carry the annotation `halo.loop`; any
    number of tokens and sequences, symbolic or not
Declines
    functions without a loop of tasks
Before -> after
    for e in lanes    ->   vectors, unrolled; exact tails: what a task sums stays in registers
    for task          ->   parallel, where there is work for threads
The rule never asks which operator it is: what the loops compute is left as it stands.
Measured
    docs/kernels/states.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...errors import Declined
from ...targets import Target
from ..blocks import is_scheduled, written_out
from ..code.lanes import constant, seq, vector_loop
from ..rule import Rule

MARK = "halo.loop"
LANES, TASKS = "lanes", "tasks"
_PARALLEL = ("no", TASKS)
_WORTH_THREADS = 1 << 16  # elements that a call moves at least: starting threads takes a microsecond


@dataclass(frozen=True)
class Decision:
    """How one function runs."""

    parallel: str  # one of _PARALLEL


class StateLoop(Rule[Decision]):
    """Steps of a state as vectors."""

    name = "state_loop"
    Decision = Decision
    domains = {"parallel": _PARALLEL}

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        if is_scheduled(func) or not _has_tasks(func):
            raise Declined("serves operators whose state moves from token to token, this function has no such loop")
        sizes = [_elements(param) for param in func.params]
        most = None if None in sizes else max(size for size in sizes if size is not None)
        threads = target.cores > 1 and (most is None or most >= _WORTH_THREADS)
        return Decision(TASKS if threads else "no")

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        first = self.default(func, target)
        return tuple(dict.fromkeys([first, *map(Decision, _PARALLEL)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        self.default(func, target)

        def rewritten(loop: tirx.For) -> tirx.Stmt:
            mark = str(loop.annotations.get(MARK, ""))
            if mark == LANES:
                return _vectors(loop, target.lanes_f32)
            if not mark:
                return loop
            parallel = decision.parallel == TASKS and mark == TASKS
            kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
            return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body)

        body = tvm_ffi.structural_map(func.body, (tirx.For, rewritten), order="post")
        return tirx.transform.ConvertSSA()(tvm.IRModule({"main": written_out(func, body)}))["main"]


def _has_tasks(func: tirx.PrimFunc) -> bool:
    marks: list[str] = []
    tvm_ffi.structural_walk(
        func.body, (tirx.For, lambda loop: marks.append(str(loop.annotations.get(MARK, "")))), order="post"
    )
    return TASKS in marks


def _elements(param: ir.Var) -> int | None:
    """Elements of a buffer; None where a size is not known."""
    total = 1
    for dim in param.ty.shape:
        size = constant(dim)
        if size is None:
            return None
        total *= size
    return total


def _vectors(loop: tirx.For, lanes: int) -> tirx.Stmt:
    """All elements of a loop over lanes, as vectors side by side."""

    def body(j: Expr, _slot: Expr | None) -> list[tirx.Stmt]:
        found = tvm_ffi.structural_map(
            loop.body, (ir.Var, lambda var: j if var.same_as(loop.loop_var) else var), order="post"
        )
        return list(found.seq) if isinstance(found, tirx.SeqStmt) else [found]

    return seq(vector_loop(tirx.IntImm("int64", 0), loop.extent, lanes, max(1, int(loop.extent) // lanes), body))
