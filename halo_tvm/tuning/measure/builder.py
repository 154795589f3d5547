"""A builder process: `python -m halo_tvm.tuning.measure.builder`. Decisions come in, shared libraries go out.

It schedules and builds by the same functions as `compile`. Whatever a decision does (crash, hang, eat
memory, fill the disk) happens here and not in the tuner. Requests and replies: see `protocol`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx

from ...passes.schedule import scheduled_by
from ...phase_reports import DeviceCode, to_plain
from ...records.decision import decision_from_plain
from ...targets import Target, resolve
from ...tir_schedules import RULES, Rule
from ...tir_schedules.code.timed import is_only_timed, with_timed
from ..sizes import symbols
from . import protocol as p
from .build import NAME, write_library
from .confined import Answer, Say, serve

_UNSCHEDULED = "fallback_gpu"  # one thread for each element of a result, as the function says it


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
        began = time.perf_counter()
        special, device = self._build(request)
        return {
            "special": special,
            "build_s": time.perf_counter() - began,
            "device": None if device is None else to_plain(device),
        }

    def _build(self, request: dict) -> tuple[bool, DeviceCode | None]:
        """(whether the library is code for the timed sizes only; what it holds for a GPU)."""
        task = self._tasks[request["key"]]
        func = task.func
        if request["decision"] is None and task.target.spec.gpu:  # a GPU runs nothing that is bound to no threads
            rule = RULES[_UNSCHEDULED]
            func = scheduled_by(rule, func, task.target, rule.default(func, task.target), vector_math=task.vector_math)
        elif request["decision"] is not None:
            decision = decision_from_plain(task.rule.Decision, request["decision"])
            if request["timed"] is not None:
                func = _timed(func, request["timed"])
            func = scheduled_by(task.rule, func, task.target, decision, vector_math=task.vector_math)
        device = write_library(func, task.target, Path(request["path"]))
        return is_only_timed(func), device


def _timed(func: tirx.PrimFunc, sizes: list[list[int]]) -> tirx.PrimFunc:
    """`func` that knows where it is timed, unless the names of its dimensions are ambiguous."""
    names = [str(v.name) for v in symbols(func)]
    if len(set(names)) < len(names):
        return func
    return with_timed(func, {name: [dims[i] for dims in sizes] for i, name in enumerate(names)})


def _make() -> tuple[Answer, str]:
    return Builder().answer, p.BUILD_ERROR


if __name__ == "__main__":
    sys.exit(serve(_make))
