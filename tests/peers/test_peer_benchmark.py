"""Turns between engines: failures stay with the engine that fails, ours excepted."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from halo_tvm.artifact import FunctionSpec, TensorSpec
from halo_tvm.errors import PeerFailed, UsageError
from halo_tvm.peers._turns import runs_per_turn
from halo_tvm.peers.benchmark import Contestant, accuracy, take_turns, timed_inputs
from halo_tvm.peers.load_meter import LoadMeter
from halo_tvm.peers.messages import without_folders
from halo_tvm.peers.order import in_turn
from halo_tvm.peers.protocol import LoadRequest

FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture
def turns(tmp_path):
    np.savez(tmp_path / "inputs.npz", x=np.arange(3.0))
    np.savez(tmp_path / "reference.npz", **{"case0.input.x": np.ones(4), "case0.output.y": np.full(4, 2.0)})
    request = LoadRequest("model", 1, str(tmp_path / "inputs.npz"))

    def run(*behaviours: str, rounds: int = 3):
        contestants = [Contestant(b, [sys.executable, str(FAKE), b], request) for b in behaviours]
        return take_turns(contestants, rounds, tmp_path / "reference.npz", tmp_path)

    return run


def test_every_engine_has_one_sample_per_round(turns):
    results, runs, other = turns("plain", "slow")
    assert runs >= 1 and (other is None or other >= 0)
    assert [r.engine for r in results] == ["plain", "slow"]
    assert all(len(r.samples_ms) == 3 and r.failure is None for r in results)
    assert results[0].accuracy.max_abs == 0 and results[0].accuracy.cases == 1
    assert results[0].version == "1.2.3" and results[0].peak_rss_mib > 1


@pytest.mark.parametrize(
    ("behaviour", "words"), [("crash", "signal 6"), ("garbage", "not JSON"), ("raises", "cannot read the model")]
)
def test_a_failing_peer_is_reported_and_the_others_go_on(turns, behaviour, words):
    results, *_ = turns("plain", behaviour, "slow")
    assert [r.failure is None for r in results] == [True, False, True]
    assert words in results[1].failure and results[1].samples_ms == () and results[1].median_ms is None
    assert len(results[2].samples_ms) == 3


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ('File "/home/me/v/lib/python3.11/site-packages/torch/nn.py", line 3', 'File "nn.py", line 3'),
        ("cannot open /tmp/halo-bench-x/model.onnx: no space", "cannot open model.onnx: no space"),
        ("~/models/a.halo and ../b/c.halo", "a.halo and c.halo"),
        ("pip install torch --index-url https://example.org/whl/cpu", None),
        ("expected n / 64 rows, found 3/4; and/or 1e3/s", None),
    ],
)
def test_results_hold_no_folders(said, kept):
    assert without_folders(said) == (said if kept is None else kept)


def test_a_failure_in_a_result_holds_no_folders(turns):
    results, *_ = turns("plain", "path")
    assert results[1].failure.endswith("cannot read model.bin")


def test_our_own_failure_is_raised(turns):
    with pytest.raises(PeerFailed, match="cannot read the model"):
        turns("raises", "plain")


def test_only_missing_peers_is_an_environment_problem(turns):
    with pytest.raises(PeerFailed, match="pip install fakeengine") as error:
        turns("plain", "missing")
    assert error.value.exit_code == 5
    results, *_ = turns("plain", "missing", "slow")
    assert "pip install fakeengine" in results[1].failure and results[2].failure is None


def test_a_wrong_engine_shows_in_the_accuracy(turns):
    results, *_ = turns("plain", "wrong", rounds=1)
    assert results[1].accuracy.max_abs == 0.5
    assert results[1].accuracy.relative_l2 == pytest.approx(0.25)


def test_missing_and_misshapen_outputs_are_infinitely_wrong():
    expected = {"case0": {"y": np.ones(3)}}
    assert accuracy(expected, {}).relative_l2 == float("inf")
    assert accuracy(expected, {"case0": {"y": np.ones(4)}}).max_abs == float("inf")
    assert accuracy(expected, {"case0": {"y": np.array([1, np.nan, 1])}}).relative_l2 == float("inf")


SPEC = FunctionSpec(
    inputs=(
        TensorSpec("input_ids", ("batch", "sequence"), "int64", values=(0, 99)),
        TensorSpec("mask", ("batch", "sequence"), "int64", values=(0, 1), default="ones"),
    ),
    outputs=(TensorSpec("y", ("batch", "sequence", 4), "float32"),),
    ranges={"batch": (1, 8), "sequence": (1, 64)},
)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (None, (1, 64)),
        ("input_ids=2x16", (2, 16)),
        ("batch=3,sequence=5", (3, 5)),
        ("sequence=7", (1, 7)),
        ("input_ids=2x16,mask=2x16", (2, 16)),
    ],
)
def test_timed_inputs(shape, expected):
    inputs = timed_inputs(SPEC, shape, seed=0)
    assert inputs["input_ids"].shape == inputs["mask"].shape == expected
    assert inputs["mask"].all() and 0 <= inputs["input_ids"].min() and inputs["input_ids"].max() <= 99


def test_timed_inputs_of_computed_sizes():
    new = TensorSpec("new", ("batch", "tokens"), "float32")
    whole = TensorSpec("whole", ("batch", "past + tokens"), "float32")
    spec = replace(SPEC, inputs=(new, whole), ranges=dict.fromkeys(("batch", "tokens", "past"), (1, 9)))
    found = timed_inputs(spec, "new=2x3,past=4,whole=2x7", 0)
    assert {name: x.shape for name, x in found.items()} == {"new": (2, 3), "whole": (2, 7)}
    with pytest.raises(UsageError, match=r"expected 2x7 for input whole, whose sizes past \+ tokens follow from"):
        timed_inputs(spec, "new=2x3,past=4,whole=2x8", 0)


def test_dimensions_without_a_size_take_the_typical_one():
    typical = {"batch": 4, "sequence": 32}
    assert timed_inputs(SPEC, None, 0, typical)["input_ids"].shape == (4, 32)
    assert timed_inputs(SPEC, "sequence=8", 0, typical)["input_ids"].shape == (4, 8)


@pytest.mark.parametrize("count", range(1, 10))
def test_places_and_predecessors_are_shared_out_equally(count):
    rounds = count if count % 2 == 0 else 2 * count
    orders = [in_turn(range(count), index) for index in range(rounds)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    places = Counter((place, engine) for order in orders for place, engine in enumerate(order))
    assert set(places.values()) == {rounds // count} and len(places) == count**2
    behind = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(behind) == count * (count - 1) and set(behind.values()) <= {rounds // count}


@pytest.mark.parametrize("count", range(3, 10))
def test_in_the_few_rounds_of_a_quick_suite_no_engine_keeps_its_predecessor(count):
    behind = Counter(pair for index in range(6) for pair in itertools.pairwise(in_turn(range(count), index)))
    assert max(behind.values()) <= (6 if count == 3 else 2)


def test_a_turn_is_more_than_one_run_unless_runs_are_long():
    assert [runs_per_turn(ms) for ms in (0.01, 50.0, 127.0, 900.0, 1100.0)] == [20, 5, 3, 3, 1]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("input_ids=2", "expected a shape like batchxsequence"),
        ("sequence=65", "expected sequence from 1 to 64, found 65"),
        ("input_ids=axb", "NAME=SIZE"),
    ],
)
def test_shapes_that_cannot_be_meant(shape, words):
    with pytest.raises(UsageError, match=words):
        timed_inputs(SPEC, shape, seed=0)


def fake_proc(folder: Path, cpu: str, processes: dict[int, tuple[int, int, int]]) -> Path:
    """`processes`: number -> (parent, own ticks, ticks of children it waited for)."""
    (folder / "stat").write_text(f"cpu  {cpu}\ncpu0 1 2 3\n")
    for pid, (parent, ticks, waited) in processes.items():
        (folder / str(pid)).mkdir(exist_ok=True)
        rest = ["S", str(parent), *["0"] * 9, str(ticks), "0", str(waited), "0"]
        (folder / str(pid) / "stat").write_text(f"{pid} (a name) with) {' '.join(rest)}\n")
    return folder


# user nice system idle iowait irq softirq steal guest guest_nice
@pytest.mark.parametrize(
    ("cpu", "processes", "others"),
    [
        ("300 0 0 900 50 0 0 0 0 0", {1: (0, 300, 0)}, 300),
        ("300 0 0 900 50 0 0 0 0 0", {8: (7, 290, 0), 9: (8, 10, 0)}, 0),  # children and theirs are ours
        ("300 0 0 900 50 0 0 0 0 0", {8: (7, 0, 250)}, 50),  # so are those that ended
        ("0 0 0 900 50 0 0 400 0 0", {}, 400),  # the hypervisor ran somebody else
    ],
)
def test_what_others_take_is_counted_and_our_own_is_not(tmp_path, monkeypatch, cpu, processes, others):
    monkeypatch.setattr(os, "getpid", lambda: 7)
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    meter = LoadMeter(fake_proc(tmp_path, "0 0 0 0 0 0 0 0 0 0", {7: (1, 0, 0), 8: (7, 0, 0), 9: (8, 0, 0)}))
    fake_proc(tmp_path, cpu, processes)
    assert meter.other_cores() == pytest.approx(others / os.sysconf("SC_CLK_TCK") / 2)


def test_the_load_of_this_machine_can_be_read(tmp_path):
    assert LoadMeter(tmp_path / "none").other_cores() is None
    found = LoadMeter().other_cores()
    assert found is None or found >= 0
