"""A rule whose decisions misbehave in ways that only a lab with several processes cares about."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import toy_rules
import tvm
from tvm import s_tir, te, tirx

from halo_tvm.records.workload import workload_key
from halo_tvm.tir_schedules import RULES, Rule
from halo_tvm.tir_schedules.code.timed import ONLY_TIMED, TIMED
from halo_tvm.tuning.task import Task, tasks_of

MEETING = "HALO_TVM_TEST_MEETING"  # a directory


@dataclass(frozen=True)
class Decision:
    mode: str
    nonce: int = 0


class Lab(Rule[Decision]):
    """One decision per way to behave."""

    name = "lab"
    Decision = Decision

    def apply(self, func, target, decision):
        schedule = s_tir.Schedule(getattr(self, f"_{decision.mode}")(func))
        if func.attrs and TIMED in func.attrs.keys() and decision.mode in ("plain", "wrong_tail"):
            schedule.annotate(schedule.get_sblock("root"), ONLY_TIMED, True)
        return schedule.mod[schedule.mod.get_global_vars()[0]].with_attr("tirx.is_scheduled", True)

    def _plain(self, func):
        return func

    def _complete(self, func):
        return func

    def _wrong_tail(self, func):
        """Right at even numbers of rows only."""
        return _body(func, lambda x, rows: x * tirx.if_then_else(rows % 2 == 1, tirx.const(3.0), tirx.const(2.0)))

    def _wrong(self, func):
        return _body(func, lambda x, rows: x * 3.0)

    def _aborts(self, func):
        """The code does, not the build."""
        return _calling(func, "abort")

    def _waits(self, func):
        return _calling(func, "pause")

    def _crash(self, func):
        os.kill(os.getpid(), 11)

    def _hang(self, func):
        time.sleep(1000)

    def _greedy(self, func):
        return bytearray(1 << 45)

    def _writes(self, func):
        with open("/dev/shm/halo-tvm-test" if os.path.isdir("/dev/shm") else "halo-tvm-test", "wb") as file:
            os.unlink(file.name)
            file.write(bytes(64 << 20))
        return func

    def _meets(self, func):
        """Goes on when a second process builds at the same time."""
        place = Path(os.environ[MEETING])
        (place / str(os.getpid())).touch()
        for _ in range(3000):
            if len(list(place.iterdir())) > 1:
                return func
            time.sleep(0.01)
        raise ValueError("nobody came")


def function(columns, factor=2.0):
    """out = in * factor with symbolic rows."""
    rows = tirx.Var("rows", "int64")
    x = te.placeholder((rows, columns), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] * factor, name="toy", attrs={"halo.op": "toy"})
    return te.create_prim_func([x, y])


def _body(func, value):
    rows, columns = func.params[0].ty.shape
    x = te.placeholder((rows, columns), name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: value(x[i, j], rows), name="toy")])


def _calling(func, name):
    return _body(func, lambda x, rows: x + tirx.call_extern("int32", name).astype("float32"))


def task(columns, rows=(8, 64)):
    """A task of this rule that is timed at 8, 32 and 64 rows and checked at 37 and 8."""
    func = function(columns)
    (made,) = tasks_of(tvm.IRModule({"f": func}), toy_rules.target(), {"rows": rows}).tasks
    fields = {name: getattr(made, name) for name in Task.__dataclass_fields__}
    return Task(**{**fields, "rule": RULES["lab"], "default": Decision("plain"), "key": workload_key(func)})
