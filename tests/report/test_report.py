"""The result schema survives its JSON; views show every engine, every loss and every failure."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re

import pytest

from halo_tvm.errors import UsageError
from halo_tvm.report import markdown, schema, terminal
from halo_tvm.report.host import describe_host
from halo_tvm.report.parts import Skipped, TaskStage, TunedModel
from halo_tvm.report.schema import (
    Accuracy,
    BenchResult,
    Comparison,
    EngineResult,
    Host,
    Interval,
    KernelTime,
    OutputError,
    ProfileResult,
    TuneResult,
    ValidateResult,
)
from halo_tvm.report.tuned import FAILED, IMPROVED, KEPT, TaskResult

HOST = Host("x86_64 Vendor family 1 model 2", ("avx2", "fma"), 2, 23.5, "3.11.7", {"numpy": "2.0"})


def engine(name: str, median: float, error: float = 1e-6) -> EngineResult:
    return EngineResult(
        name, "1.0", (median,) * 3, median, median - 1, median + 1, 0.5, 512.0, Accuracy(2, 1e-5, error)
    )


def comparison(peer: str, ratio: float, verdict: str) -> Comparison:
    return Comparison(
        peer,
        ratio,
        Interval(ratio, ratio - 0.1, ratio + 0.1, 0.9),
        Interval(ratio, ratio - 0.2, ratio + 0.2, 0.95),
        verdict,
    )


BENCH = BenchResult(
    "gpt2",
    {"input_ids": (1, 128)},
    2,
    20,
    3,
    50.0,
    HOST,
    (
        engine("halo_tvm", 50.0),
        engine("onnxruntime", 75.0),
        engine("torch", 40.0, float("inf")),
        EngineResult("torch-compile", failure="no compiler | found"),
    ),
    (comparison("onnxruntime", 1.5, "faster"), comparison("torch", 0.8, "slower")),
)


def tuned(name: str, outcome: str, default_us: float = 0.0, speedup: float = 1.0, **more: object) -> TaskResult:
    """A task of one size; `more` are fields of the record."""
    times = (default_us,) if default_us else ()
    fields = {"rule": "gemm", "count": 1, "decision": {}, "measured": 0, "failures": {}, "seconds": 1.0, "note": ""}
    spread = {"speedup_low": speedup * 0.96, "speedup_high": speedup * 1.04}
    best = tuple(us / speedup for us in times)
    known = {"key": name[0], "readable": name, "outcome": outcome, "sizes": ((8,),) * len(times), "speedup": speedup}
    return TaskResult(**{**fields, **known, **spread, "default_us": times, "best_us": best, **more})


RESULTS = [
    BENCH,
    ValidateResult(
        "m",
        "numpy float64",
        HOST,
        (
            OutputError("case0", "y", 1e-3, 1e-4, 1e-5, False),
            OutputError("case1", "y", 0.0, 0.0, 1e-5, True, "recorded", 0.5),
        ),
        False,
    ),
    TuneResult(
        "m",
        "llvm",
        HOST,
        "log",
        (
            tuned("linear", IMPROVED, 100.0, 1.25, measured=12, failures={"crash": 1}),
            tuned("conv", KEPT, 10.0, measured=3, failures={"crash": 3}, note="no candidate was faster"),
        ),
        seconds=60.0,
    ),
    TuneResult(
        "one,two,three,four",
        "llvm",
        HOST,
        "log",
        (
            tuned(
                "little",
                IMPROVED,
                100.0,
                1.25,
                rule="gemm",
                count=2,
                measured=12,
                failures={"crash": 1},
                decision={"mc": 4, "fused": True, "order": "nk", "none": None},
                seconds=3.5,
                stages=(TaskStage("ranked", 9, 1, 3.0, 1.0, 1.25),),
                predicted_gain=0.01,
                roofline_us=(70.0,),
                stage="ranked",
                ended="space",
                rank_correlation=0.5,
                models={"one": 2},
            ),
            tuned("much", IMPROVED, 50.0, 2.0, count=10, measured=5, stage="records"),
            tuned("dead", FAILED, note="x" * 100, failures={"timeout": 3}),
        ),
        (Skipped("f", 1, "r"),),
        {"hits": 1, "refused": {}},
        seconds=60.0,
        budget_s=60.0,
        threads=2,
        worker_restarts=1,
        resumed=True,
        notes=("3 of 3",),
        run="id",
        rank_correlation=0.62,
        drift=0.034,
        models=(
            TunedModel("one", 3, 1, 2, 3000.0, 2000.0, 1.5),
            TunedModel("two", 0, 0, 0, 0.0, 0.0, None, "no file", 2),
            TunedModel("three", 1, 0, 0, 5.0, 5.0, 1.0),
            TunedModel("four", 0, 0, 0, 0.0, 0.0, None),
        ),
    ),
    ProfileResult(
        "m",
        {"x": (2, 3)},
        1,
        10,
        1000.0,
        HOST,
        (KernelTime("linear", "gemm", 2, 100.0), KernelTime("attention", "", 1, 900.0)),
    ),
]


@pytest.mark.parametrize("result", RESULTS, ids=[f"{r.kind}{i}" for i, r in enumerate(RESULTS)])
def test_round_trip_through_json(result):
    text = json.dumps(schema.to_json(result), allow_nan=False)
    assert json.loads(text)["schema"] == 1 and json.loads(text)["kind"] == result.kind
    assert schema.from_json(json.loads(text)) == result


def test_the_host_describes_a_class_of_machine_only():
    host = describe_host()
    assert host.cores >= 1 and host.memory_gib > 0 and "numpy" in host.packages
    text = json.dumps(dataclasses.asdict(host))
    assert (
        not re.search(rf"\b{re.escape(platform.node())}\b", text)
        and os.sep + "home" not in text
        and os.getcwd() not in text
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d | {"schema": 2}, "expected a result of schema 1, found 2"),
        (lambda d: d | {"kind": "guess"}, "expected a result of kind bench"),
        (lambda d: d | {"surprise": 1}, "found surprise beyond them"),
        (lambda d: {k: v for k, v in d.items() if k != "host"}, "host missing"),
        (lambda d: d | {"threads": "two"}, "at bench.threads, found 'two'"),
        (lambda d: d | {"threads": True}, "at bench.threads, found a boolean"),
        (lambda d: d | {"host": 3}, "expected an object at bench.host"),
    ],
)
def test_damaged_results_are_refused(change, words):
    with pytest.raises(UsageError, match=words):
        schema.from_json(change(schema.to_json(BENCH)))
    with pytest.raises(UsageError, match="found 'list'"):
        schema.from_json([])


@pytest.mark.parametrize("view", [terminal, markdown])
def test_bench_view_shows_losses_and_failures_as_such(view):
    text = view.render(BENCH)
    lines = text.splitlines()
    assert "gpt2, input_ids 1x128, 2 threads" in lines[0]
    row = {
        name: next(line for line in lines if line.strip(" |").startswith(name))
        for name in ("halo_tvm", "onnxruntime", "torch")
    }
    assert "50.00" in row["halo_tvm"] and "1.0e-06" in row["halo_tvm"]
    assert "1.50 (1.40 to 1.60) faster" in row["onnxruntime"]
    assert "0.80 (0.70 to 0.90) slower" in row["torch"] and "inf" in row["torch"]
    assert "halo_tvm is slower than torch: 1.25 times its time" in text
    assert "torch-compile failed: no compiler" in text
    assert "20 rounds in turns, 3 runs a turn" in text and "90 % interval" in text
    assert HOST.cpu in text


@pytest.mark.parametrize("view", [terminal, markdown])
def test_other_views(view):
    validate, tune, many, profile = (view.render(result) for result in RESULTS[1:])
    assert "FAILED in 1 of 2 outputs" in validate and validate.count("FAILED") == 2
    assert (
        "1 of 2 tasks improved in 60 s" in tune and "no candidate was faster" in tune and "1.25 (1.20 to 1.30)" in tune
    )
    assert many.index("much") < many.index("little") < many.index("dead"), "the most time saved comes first"
    outcomes = {line.strip(" |").split()[0]: line for line in many.splitlines() if line.strip(" |")}
    assert "not reached" in outcomes["three"] and "nothing to tune" in outcomes["four"]
    assert "4 models, 1 FAILED" in many and "two FAILED: no file" in many and "FAILED with 2" in many
    assert "1.500" in many and "committed (ranked)" in many and "3 (3 timeout)" in many and "250" in many
    assert "0.62 (Spearman)" in many and "drifted by 3.4 %" in many and "started again: 1" in many
    assert "x" * 100 in many and max(len(line) for line in many.splitlines()) < 200, "long reasons are notes"
    assert profile.index("attention") < profile.index("linear"), "the largest share comes first"
    assert "90.0 %" in profile and "50.0" in profile, "share and time per call"
    assert "0.5000" in validate and "recorded" in validate


def test_markdown_tables_have_one_shape_and_escape_pipes():
    text = markdown.table(("a", "b"), [("x|y", "1"), ("z\nw", "2")])
    assert text.splitlines() == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |", "| z w | 2 |"]


def test_terminal_columns_are_aligned():
    lines = terminal.render(BENCH).splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line.strip()) == {"-", " "})
    assert len(lines[rule - 1]) == len(lines[rule])


@pytest.mark.parametrize("view", [terminal, markdown])
def test_the_engine_that_made_the_reference_is_named(view):
    named = dataclasses.replace(BENCH, reference="torch")
    assert "against the artifact's reference, made by torch" in view.render(named)
    assert "made by" not in view.render(BENCH), "results of earlier releases do not say it"


@pytest.mark.parametrize("view", [terminal, markdown])
def test_a_disturbed_measurement_says_so(view):
    assert "DISTURBED" not in view.render(dataclasses.replace(BENCH, other_cores=0.1))
    assert "DISTURBED: other processes kept 1.4 cores busy" in view.render(dataclasses.replace(BENCH, other_cores=1.4))
