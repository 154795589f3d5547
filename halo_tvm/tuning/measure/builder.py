"""A builder process: `python -m halo_tvm.tuning.measure.builder`. Decisions come in, shared libraries go out.

It schedules and builds by the same functions as `compile`. Whatever a decision does (crash, hang, eat
memory, fill the disk) happens here and not in the tuner. Requests and replies: see `protocol`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx

from ...passes.schedule import scheduled_by
from ...records.decision import decision_from_plain
from ...targets import Target, resolve
from ...tir_schedules import RULES, Rule
from ..sizes import symbols
from . import protocol as p
from .build import NAME, write_library
from .confined import Answer, Say, serve

# JSON on a function: {symbolic dimension: the values it is timed at}. A rule may then leave out what other
# values need, and says so by annotating the root block of what it makes with ONLY_TIMED.
TIMED = "halo.timed"
ONLY_TIMED = "halo.only_timed"


@dataclass(frozen=True)
class _Task:
    func: tirx.PrimFunc
    rule: Rule
    target: Target
    vector_math: bool


class Builder:
    """Answers requests; keeps the tasks it was told of."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    def answer(self, request: dict, _: Say) -> dict:
        if request["op"] == p.TASK:
            func = tvm.ir.load_json(request["ir"])[NAME]
            target = resolve(request["target"], cores=request["cores"])
            self._tasks[request["key"]] = _Task(func, RULES[request["rule"]], target, request["vector_math"])
            return {}
        assert request["op"] == p.BUILD, f"no such request: {request['op']}"
        cpu, wall = _cpu_s(), time.perf_counter()
        special = self._build(request)
        return {"special": special, "cpu_s": _cpu_s() - cpu, "build_s": time.perf_counter() - wall}

    def _build(self, request: dict) -> bool:
        """Whether the library is code for the timed sizes only."""
        task = self._tasks[request["key"]]
        func = task.func
        if request["decision"] is not None:
            decision = decision_from_plain(task.rule.Decision, request["decision"])
            if request["timed"] is not None:
                func = with_timed(func, request["timed"])
            func = scheduled_by(task.rule, func, task.target, decision, vector_math=task.vector_math)
        write_library(func, task.target, Path(request["path"]))
        return is_only_timed(func)


def with_timed(func: tirx.PrimFunc, sizes: list[list[int]]) -> tirx.PrimFunc:
    """`func` that knows where it is timed: rows of `sizes` are values of its symbolic dimensions."""
    names = [str(v.name) for v in symbols(func)]
    if len(set(names)) < len(names) or not names:
        return func
    timed = {name: sorted({dims[i] for dims in sizes}) for i, name in enumerate(names)}
    return func.with_attr(TIMED, json.dumps(timed))


def is_only_timed(func: tirx.PrimFunc) -> bool:
    root = getattr(func.body, "block", None)
    return root is not None and ONLY_TIMED in root.annotations


def _cpu_s() -> float:
    """Processor time of this process and of the linkers it has waited for."""
    return sum(os.times()[:4])


def _make() -> tuple[Answer, str]:
    return Builder().answer, p.BUILD_ERROR


if __name__ == "__main__":
    sys.exit(serve(_make))
