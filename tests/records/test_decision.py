"""Decisions become JSON and come back equal; anything that is not exactly the dataclass is refused."""

import json
from dataclasses import dataclass

import pytest

from halo_tvm.records.decision import decision_from_plain, decision_to_plain


@dataclass(frozen=True)
class Tiles:
    rows: int
    split: tuple[int, ...]
    mode: str
    balance: bool
    scale: float | None = None


def test_round_trip():
    made = Tiles(8, (1, 2, 4), "wide", True)
    assert decision_from_plain(Tiles, json.loads(json.dumps(decision_to_plain(made)))) == made
    assert hash(decision_from_plain(Tiles, decision_to_plain(made))) == hash(made)


@pytest.mark.parametrize(
    "fields", [{}, {"rows": 1}, {"rows": 1, "split": [], "mode": "", "balance": True, "scale": 1.0, "more": 2}]
)
def test_other_fields_are_refused(fields):
    with pytest.raises(ValueError, match="expected the fields .* of Tiles, found"):
        decision_from_plain(Tiles, fields)


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="numbers, strings and tuples"):
        decision_to_plain(Tiles(8, ({1},), "wide", True))
    with pytest.raises(TypeError, match="a decision is a frozen dataclass"):
        decision_to_plain({"rows": 8})


FITTING = {"rows": 1, "split": [1], "mode": "", "balance": True, "scale": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "8"},
        {"rows": True},
        {"rows": 8.0},
        {"rows": None},
        {"rows": [8]},
        {"split": 1},
        {"split": [1, "2"]},
        {"mode": 1},
        {"balance": 1},
        {"balance": None},
        {"scale": "1"},
        {"scale": {}},
    ],
)
def test_other_types_are_refused(change):
    assert all(decision_from_plain(Tiles, {**FITTING, "scale": fitting}) for fitting in (None, 1, 1.5))
    with pytest.raises(ValueError, match=rf"expected {next(iter(change))}\S* of Tiles to be"):
        decision_from_plain(Tiles, {**FITTING, **change})
