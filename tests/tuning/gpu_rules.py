"""A rule for GPUs whose decisions say how a candidate behaves; the measurement processes import this module too."""

from dataclasses import dataclass

import tvm
from tvm import te, tirx

from halo_tvm.records.workload import workload_key
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES, Rule
from halo_tvm.tuning.task import Task, tasks_of

TARGET = resolve("cuda:sm_80")


@dataclass(frozen=True)
class Decision:
    mode: str  # "plain", "wrong"; "outside": it reads where it must not; "outside_at_2": only where there are 2 rows
    nonce: int = 0


class GpuLab(Rule[Decision]):
    """Element-wise functions of one block."""

    name = "gpu_lab"
    Decision = Decision

    def apply(self, func, target, decision):
        if decision.mode != "plain":
            func = function(int(func.params[0].ty.shape[1]), decision.mode, func.params[0].ty.shape[0])
        fallback = RULES["fallback_gpu"]
        return fallback.apply(func, target, fallback.default(func, target))


def function(columns, mode="plain", rows=None):
    """out = x * w + 1 with symbolic rows; w are weights."""
    rows = tirx.Var("rows", "int64") if rows is None else rows
    x = te.placeholder((rows, columns), name="x")
    w = te.placeholder((columns,), name="w")
    far, here = tirx.const(4096, "int64"), tirx.const(0, "int64")
    offset = {"outside": far, "outside_at_2": tirx.Select(rows == 2, far, here)}.get(mode, here)
    one = tirx.const(2.0 if mode == "wrong" else 1.0, "float32")
    y = te.compute(x.shape, lambda i, j: x[i + offset, j] * w[j] + one, name="lab", attrs={"halo.op": "lab"})
    return te.create_prim_func([x, w, y])


def task(columns, rows=(2, 4), rule="gpu_lab"):
    """One that is timed and checked at few rows: every thread is emulated."""
    func = function(columns)
    (made,) = tasks_of(tvm.IRModule({"f": func}), TARGET, {"rows": rows}).tasks
    fields = {name: getattr(made, name) for name in Task.__dataclass_fields__}
    changed = {"rule": RULES[rule], "default": Decision("plain"), "key": workload_key(func), "weights": (1,)}
    return Task(**{**fields, **changed})
