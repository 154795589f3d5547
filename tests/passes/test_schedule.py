"""A rule that matches a function and then fails is said: numbers would not show it, and speed only by chance."""

from __future__ import annotations

import logging

import pytest
import tvm
from tvm import te

from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES


def test_a_rule_that_fails_makes_way_and_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fails(*_: object) -> None:
        raise tvm.error.InternalError("a loop that is not there\nand its trace")

    x = te.placeholder((64, 64), "float32", name="x")
    func = te.create_prim_func([x, te.compute((64, 64), lambda i, j: x[i, j] + 1, name="plus")])
    mod = tvm.IRModule({"plus": func})
    assert [f.rule for f in schedule_functions(mod, resolve("cpu"))[1].functions] == ["elementwise"]
    assert not caplog.records
    monkeypatch.setattr(type(RULES["elementwise"]), "apply", fails)
    with caplog.at_level(logging.WARNING):
        (entry,) = schedule_functions(mod, resolve("cpu"))[1].functions
    assert entry.rule == "fallback"
    assert entry.declined[-1] == "elementwise: a loop that is not there"
    (record,) = caplog.records
    assert "plus: schedule rule elementwise matched and then failed (a loop that is not there)" in record.getMessage()
