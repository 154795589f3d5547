"""TVM's rules by name: what they serve is right in emulation; what they cannot read they decline with a reason."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import tvm
from gpu_functions import TARGET, check_emulated, function_of, scheduled_for
from injective_graphs import GRAPHS as INJECTIVE
from row_graphs import GRAPHS as ROWS
from tvm import relax, s_tir, tirx

from halo_tvm.errors import Declined, Stopped
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.general import dlight_gpu

op = relax.op
N = tirx.Var("n", "int64")


def matmul(emit, x, w):
    return emit(op.matmul(x, w))


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x @ w


# rule -> graph, shapes to compile for, shapes to run at, reference
SERVED = {
    "dlight_matmul": (matmul, [(N, 64), (64, 48)], [(5, 64), (64, 48)], product),
    "dlight_reduction": (
        lambda emit, x: emit(op.sum(x, axis=(1, 2))),
        [(N, 3, 20)],
        [(4, 3, 20)],
        lambda x: x.sum((1, 2)),
    ),
    "dlight_general_reduction": (ROWS["softmax"][0], [(N, 40)], [(3, 40)], ROWS["softmax"][2]),
}


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_right(name: str) -> None:
    graph, shapes, sizes, reference = SERVED[name]
    check_emulated(scheduled_for(function_of(graph, shapes), name), sizes, reference)


@pytest.mark.parametrize("name", SERVED)
def test_others_are_declined(name: str) -> None:
    func = function_of(INJECTIVE["add"][0], [(2, 3, 4), (2, 3, 4)])
    with pytest.raises(Declined, match="TVM's rule (gives no reason|stops with)"):
        RULES[name].default(func, TARGET)
    with pytest.raises(Declined, match="scheduled already"):
        RULES[name].default(func.with_attr("tirx.is_scheduled", True), TARGET)


def test_what_breaks_in_tvm_is_a_decline_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def apply(self, func: tirx.PrimFunc, target: object, tunable: bool) -> s_tir.Schedule:
            one, two = [1]  # as the rule for norms takes blocks apart before it counts them
            raise AssertionError(one, two)

    monkeypatch.setattr(dlight_gpu.DlightMatmul, "theirs", Broken)
    func = function_of(*SERVED["dlight_matmul"][:2])
    with pytest.raises(Stopped, match="TVM's rule stops with ValueError: not enough values"):
        RULES["dlight_matmul"].default(func, TARGET)
    spec = copy.copy(TARGET.spec)
    object.__setattr__(spec, "rules", ("elementwise_gpu", "dlight_matmul", "fallback_gpu"))
    _, report = schedule_functions(tvm.IRModule({"f": func}), dataclasses.replace(TARGET, spec=spec))
    (entry,) = report.functions
    assert report.rules == {"fallback_gpu": 1} and report.stopped == {"dlight_matmul": 1}
    assert len(entry.declined) == 2, "elementwise_gpu refuses, which is no stop"


def test_a_mistake_of_ours_is_no_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only TVM's own code may fail unseen: a rule that it no longer has is an error."""
    monkeypatch.setattr(dlight_gpu.DlightMatmul, "theirs", object)
    with pytest.raises(AttributeError):
        RULES["dlight_matmul"].default(function_of(*SERVED["dlight_matmul"][:2]), TARGET)


def test_the_target_lists_them_behind_ours() -> None:
    rules = TARGET.spec.rules
    ours = [n for n, rule in enumerate(rules) if not rule.startswith(("dlight_", "fallback"))]
    theirs = [n for n, rule in enumerate(rules) if rule.startswith("dlight_")]
    assert theirs and max(ours) < min(theirs) and rules[-1] == "fallback_gpu"
