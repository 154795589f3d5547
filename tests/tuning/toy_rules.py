"""A rule and a target for tests; the measurement worker imports this module too.

The rule's decision says how a candidate behaves: well, slow, wrong, hanging, crashing, greedy.
"""

import os
import time
from dataclasses import dataclass

from tvm import s_tir, te, tirx

from halo_tvm.errors import Declined
from halo_tvm.targets import Target, TargetSpec
from halo_tvm.targets.x86 import X86
from halo_tvm.tir_schedules import Rule


@dataclass(frozen=True)
class Decision:
    # Built well: "plain", "vector", "slow", "wrong"; and "dies", "waits" when it runs.
    # While it is built: "hang", "crash", "abort", "greedy", "decline", "raise".
    mode: str
    lanes: int


class Toy(Rule[Decision]):
    """Element-wise functions of one block."""

    name = "toy"
    Decision = Decision
    decisions = (Decision("plain", 1), Decision("vector", 8), Decision("vector", 16))

    def default(self, func, target):
        if len(func.params) != 2:
            raise Declined("the toy rule serves one input and one output")
        return self.decisions[0]

    def space(self, func, target):
        return self.decisions

    def apply(self, func, target, decision):
        if decision.mode == "decline":
            raise Declined("asked to")
        if decision.mode == "raise":
            raise ValueError("asked to")
        if decision.mode == "hang":
            time.sleep(1000)
        if decision.mode == "crash":
            os.kill(os.getpid(), 11)
        if decision.mode == "abort":
            os.abort()
        if decision.mode == "greedy":
            return bytearray(1 << 45)
        bodies = {"wrong": _wrong, "dies": _dies, "waits": _waits}
        schedule = s_tir.Schedule(bodies.get(decision.mode, lambda f: f)(func))
        loops = schedule.get_loops(schedule.get_sblock("toy"))
        if decision.mode == "slow":
            schedule.reorder(*reversed(loops))
        if decision.mode == "vector":
            _, inner = schedule.split(loops[-1], [None, decision.lanes])
            schedule.vectorize(inner)
        made = schedule.mod[schedule.mod.get_global_vars()[0]]
        return made.with_attr("tirx.is_scheduled", True)


def _wrong(func):
    rows, columns = func.params[0].ty.shape
    return function(int(columns), rows=rows, factor=3.0)


def _dies(func):
    return _calling(func, "abort")


def _waits(func):
    return _calling(func, "pause")  # of the C library: until a signal comes


def _calling(func, name):
    rows, columns = func.params[0].ty.shape
    x = te.placeholder((rows, columns), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + tirx.call_extern("int32", name).astype("float32"), name="toy")
    return te.create_prim_func([x, y])


def function(columns, rows=None, factor=2.0, name="toy"):
    """out[i, j] = sqrt(in[i, j] * in[i, j] + 1) * factor with symbolic rows."""
    rows = tirx.Var("rows", "int64") if rows is None else rows
    x = te.placeholder((rows, columns), name="x")
    y = te.compute(x.shape, lambda i, j: te.sqrt(x[i, j] * x[i, j] + 1.0) * factor, name=name, attrs={"halo.op": "toy"})
    return te.create_prim_func([x, y])


SPEC = TargetSpec(
    name="toy",
    description="for tests",
    kind="llvm",
    machine="x86_64",
    isas=X86.isas,
    rules=("gemm", "toy"),
    runs_on=X86.runs_on,
)


def target(cores=2):
    return Target(SPEC, X86.isas[0], cores)
