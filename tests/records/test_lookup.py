"""A record whose decision the rule cannot use is told and left out; compiling goes on."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from tvm import te, tirx

from halo_tvm.lookup import lookup_in
from halo_tvm.targets import resolve


@dataclass(frozen=True)
class Decision:
    tile: int


class Dividing:
    """Stands for a rule; divides by the tile, as rules do."""

    name, version, Decision = "dividing", 1, Decision

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def apply(self, func: tirx.PrimFunc, target: object, decision: Decision) -> tirx.PrimFunc:
        if self.error:
            raise self.error
        assert 64 // decision.tile
        return func


def look(decision: dict[str, object], error: Exception | None = None) -> tuple[object, list[str]]:
    x = te.placeholder((64,), "float32")
    func = te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1.0)])
    told: list[str] = []
    log = SimpleNamespace(best=lambda *_, **__: SimpleNamespace(decision=decision, speedup_low=1.2))
    return lookup_in(log, resolve("cpu"), told.append)(func, Dividing(error)), told


def test_a_decision_that_fits_is_used() -> None:
    found, told = look({"tile": 8})
    assert found[0] == Decision(8) and not told


@pytest.mark.parametrize("decision", [{"tile": 0}, {"tile": 1000}, {"tile": "8"}, {"tile": True}, {}], ids=str)
def test_a_decision_that_does_not_fit_is_told(decision: dict[str, object]) -> None:
    found, told = look(decision)
    assert found is None and len(told) == 1


@pytest.mark.parametrize("error", [RuntimeError("InternalError\nlong\ntext"), IndexError("8"), MemoryError()], ids=repr)
def test_whatever_the_rule_raises_is_told_in_one_line(error: Exception) -> None:
    found, told = look({"tile": 8}, error)
    assert found is None and type(error).__name__ in told[0] and "\n" not in told[0]
