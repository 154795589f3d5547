"""Tuning for what cannot be measured here: the ways forward, and candidates that are built and not measured."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import toy_rules
import tvm
from tvm import te, tirx, topi

from halo_tvm.cli import main
from halo_tvm.config import TuneConfig
from halo_tvm.cuda.toolkit import find_nvcc
from halo_tvm.errors import INTERRUPTED, NoValidTrial, UsageError
from halo_tvm.report import schema
from halo_tvm.report import tuned as r
from halo_tvm.report.terminal import render
from halo_tvm.targets import Gpu, _available, resolve
from halo_tvm.tuning import place
from halo_tvm.tuning.model import tune_module
from halo_tvm.tuning.progress import BuildProgress

GOOD = (toy_rules.Decision("plain", 1), toy_rules.Decision("vector", 8), toy_rules.Decision("vector", 16))


def gpus(monkeypatch: pytest.MonkeyPatch, *found: Gpu) -> None:
    """This machine has exactly these GPUs."""
    for module in (place, _available):
        monkeypatch.setattr(module, "read_gpus", lambda: found)


@pytest.mark.parametrize("target", ["cuda", "cuda:sm_90"], ids=["by_name", "by_level"])  # "cuda" is a marker
def test_without_a_gpu_the_ways_forward_are_named(target, monkeypatch, capsys) -> None:
    gpus(monkeypatch)
    assert main(["tune", "--model", "gpt2", "--target", target]) == 5
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = [line for line in said.err.splitlines() if line.startswith("halo-tvm: ")]
    assert "needs a GPU that runs it, but this machine has none: run this on a machine that has one; or " in line
    compiling = f"halo-tvm compile --model MODEL --target {resolve(target).name}`"
    for way in ("with --rpc HOST:PORT --device-key KEY; or", "with --build-only", compiling):
        assert way in line


def test_a_gpu_that_does_not_do_is_named(monkeypatch, capsys) -> None:
    gpus(monkeypatch, Gpu("Old", "sm_75"))
    assert main(["tune", "--model", "gpt2", "--target", "cuda:sm_90"]) == 5
    assert "this machine has Old (sm_75)" in capsys.readouterr().err
    gpus(monkeypatch, Gpu("Old", "sm_75"), Gpu("New", "sm_90"))
    monkeypatch.setattr(place, "first_gpu", lambda: Gpu("", "sm_75"))
    assert main(["tune", "--model", "gpt2", "--target", "cuda:sm_90"]) == 5
    line = capsys.readouterr().err
    assert "on the first GPU, which is one of sm_75 and does not run it: name another with CUDA_VISIBLE_DEVICES" in line


def test_a_gpu_is_not_measured_with_another_compiler(monkeypatch, capsys) -> None:
    gpus(monkeypatch, Gpu("New", "sm_90"))
    monkeypatch.setattr(place, "first_gpu", lambda: Gpu("", "sm_90"))
    monkeypatch.setattr(place, "no_compiler", lambda arch: "nvcc is not on this machine: install it")
    assert main(["tune", "--model", "gpt2", "--target", "cuda"]) == 5
    line = capsys.readouterr().err
    assert "candidates for cuda:sm_90 are compiled on this machine, by NVIDIA's compiler, but nvcc is not on" in line


@pytest.mark.parametrize(
    "more",
    [{"rpc": "h:1", "device_key": "k"}, {"resume": True}, {"stages": ("ranked",)}],
    ids=["rpc", "resume", "stages"],
)
def test_what_says_how_to_measure_is_refused(more) -> None:
    with pytest.raises(UsageError, match="--build-only measures nothing, but --.* says how to measure"):
        TuneConfig(model="mlp", build_only=True, **more)


def build_only(log: Path, monkeypatch, decisions=GOOD, columns=(24, 40), **more) -> tuple[r.TuneResult, str]:
    """The result for toy functions of so many columns, and what was said meanwhile."""
    monkeypatch.setattr(toy_rules.Toy, "decisions", decisions)
    mod = tvm.IRModule({f"f{n}": toy_rules.function(n).with_attr("global_symbol", f"f{n}") for n in columns})
    stream = io.StringIO()
    config = TuneConfig(model="toy", log=str(log), build_only=True, **more)
    return tune_module(mod, toy_rules.target(), config, modules=("toy_rules",), stream=stream), stream.getvalue()


@pytest.mark.slow
def test_candidates_are_built_and_nothing_looks_measured(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        toy_rules.Toy, "estimate", lambda self, func, target, decision, sizes: 100.0 / decision.lanes, raising=False
    )
    log = tmp_path / "log"
    result, said = build_only(log, monkeypatch)
    assert not log.exists(), "no record is written, and no directory for one"
    assert result.build_only and result.measured == 0 and result.exit_code == 0 and not result.improved
    for task in result.tasks:
        assert (task.outcome, task.default_us, task.best_us, task.measured) == ("not measured", (), (), 0)
        assert [c.decision["lanes"] for c in task.candidates] == [16, 8, 1], "as the rule's model orders them"
        assert [c.rank for c in task.candidates] == [1, 2, 3]
        assert [round(c.predicted_us, 2) for c in task.candidates] == [6.25, 12.5, 100.0]
        assert task.built == 3 and all(c.build_s > 0 for c in task.candidates)
        assert task.note == "3 of 3 candidates built and ranked by the model of toy"
    lines = [line for line in said.splitlines() if ": candidate " in line]  # on a busy machine others come between
    assert len(lines) == 6 and all("is built, not measured" in line for line in lines)
    assert lines[0].startswith("tune: task 1/2: candidate 1 is built") and "(6 of 6 built, 0 failed, " in lines[-1]
    plain = json.loads(json.dumps(schema.to_json(result)))
    assert schema.from_json(plain) == result and plain["build_only"] is True
    for task in plain["tasks"]:
        assert (task["outcome"], task["measured"], task["default_us"]) == ("not measured", 0, [])
    shown = render(result)
    assert "ranked by their rules' models, not measured" in shown and shown.count("built, not measured") == 6
    assert "improved" not in shown and "next:" not in shown


@pytest.mark.slow
def test_the_first_of_every_task_goes_before_the_second_of_any(tmp_path, monkeypatch) -> None:
    """Four of each where no number is given, as many as it says otherwise."""
    six = tuple(toy_rules.Decision("vector", lanes) for lanes in (1, 2, 4, 8, 12, 16))
    for given, built in (({}, 4), ({"trials": 5}, 5)):
        (task,) = build_only(tmp_path / "log", monkeypatch, six, columns=(24,), **given)[0].tasks
        assert len(task.candidates) == built
    result, _ = build_only(tmp_path / "log", monkeypatch, trials=3)
    assert sorted(len(t.candidates) for t in result.tasks) == [1, 2]
    assert all("its rule has no model" in t.note for t in result.tasks)
    assert all(c.predicted_us is None for t in result.tasks for c in t.candidates)
    none, _ = build_only(tmp_path / "log", monkeypatch, effort="none")
    assert all(t.candidates == () and "no candidate was built" in t.note for t in none.tasks)


@pytest.mark.slow
def test_a_candidate_that_cannot_be_built_stops_nothing(tmp_path, monkeypatch) -> None:
    decisions = (GOOD[0], toy_rules.Decision("decline", 2), toy_rules.Decision("abort", 4))
    result, said = build_only(tmp_path / "log", monkeypatch, decisions, columns=(24,))
    (task,) = result.tasks
    assert task.failures == {"declined": 1, "crash": 1} and task.built == 1
    assert [bool(c.failure) for c in task.candidates] == [False, True, True]
    assert (
        "1 candidates of 1 tasks were built (2 failed)" in result.summary()
        and "candidate 2 failed: declined" in said
        and "(1 of 3 built, 2 failed (1 declined, 1 crash), " in said.splitlines()[-1]
    )
    with pytest.raises(NoValidTrial, match="expected to be built, but all of them failed \\(2 declined\\): declined"):
        bad = (toy_rules.Decision("decline", 1), toy_rules.Decision("decline", 2))
        build_only(tmp_path / "log", monkeypatch, bad, columns=(24,))


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: install NVIDIA's CUDA toolkit 13")
@pytest.mark.slow
def test_the_kernels_of_a_gpu_are_told(tmp_path) -> None:
    x = te.placeholder((tirx.Var("n", "int64"), 256), name="x")
    mod = tvm.IRModule({"softmax": te.create_prim_func([x, topi.nn.softmax(x)])})
    config = TuneConfig(model="x", target="cuda:sm_90", build_only=True, trials=2, log=str(tmp_path / "log"))
    result = tune_module(mod, resolve("cuda:sm_90"), config, stream=io.StringIO())
    (task,) = result.tasks
    assert (task.rule, len(task.candidates), task.default_us) == ("row_reduction_gpu", 2, ())
    assert task.candidates[0].predicted_us <= task.candidates[1].predicted_us
    for candidate in task.candidates:
        assert candidate.failure == "" and candidate.registers > 8 and candidate.spill_bytes == 0
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_without_a_compiler_of_the_device_nothing_is_said_to_compile(tmp_path, monkeypatch, capsys) -> None:
    """The library holds source, so that neither its registers nor that it compiles are known."""
    x = te.placeholder((8, 256), name="x")
    mod = tvm.IRModule({"softmax": te.create_prim_func([x, topi.nn.softmax(x)])})
    config = TuneConfig(model="x", target="cuda:sm_90", build_only=True, trials=1, log=str(tmp_path / "log"))
    result = tune_module(mod, resolve("cuda:sm_90"), config, modules=("without_nvcc",), stream=io.StringIO())
    (task,) = result.tasks
    (candidate,) = task.candidates
    assert candidate.failure == "" and candidate.registers == 0
    assert candidate.source_only.startswith("nvcc is not on this machine")
    assert "candidates built as source only and ranked" in task.note
    assert "1 of them as source that no compiler of the device has seen (nvcc is not" in result.summary()
    shown = render(result)
    assert "source only, not measured" in shown and "  built, not measured" not in shown


@pytest.mark.slow
def test_an_interruption_keeps_what_was_built(tmp_path, monkeypatch) -> None:
    built = BuildProgress.built

    def until_the_third(self, key, readable, rank, *failure) -> None:
        if rank == 3:
            raise KeyboardInterrupt
        built(self, key, readable, rank, *failure)

    monkeypatch.setattr(BuildProgress, "built", until_the_third)
    result, _ = build_only(tmp_path / "log", monkeypatch, columns=(24,))
    assert result.interrupted and result.exit_code == INTERRUPTED and len(result.tasks[0].candidates) == 3
    assert ", interrupted; no record was written" in result.summary()


def test_no_candidate_begins_after_the_budget(tmp_path, monkeypatch) -> None:
    result, _ = build_only(tmp_path / "log", monkeypatch, budget="0.000001")
    assert not any(t.candidates for t in result.tasks) and "0 candidates" in result.summary()
