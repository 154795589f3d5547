"""What a run came to: when it is an error."""

import pytest

from halo_tvm.config import TuneConfig
from halo_tvm.errors import NoValidTrial
from halo_tvm.report import tuned as r
from halo_tvm.report.host import describe_host
from halo_tvm.tuning.result import next_steps, refuse_without_trial


def task(outcome, note, *, measured=0, failures=None, ended=""):
    return r.TaskResult(
        note, note, "toy", 1, outcome, (), (), (), {}, 1.0, 1.0, 1.0, measured, failures or {}, 0.0, note, ended=ended
    )


def refuse(*tasks):
    refuse_without_trial(r.TuneResult("m", "t", describe_host(), "log", tasks))


def test_a_run_in_which_every_trial_failed():
    failed = task(r.FAILED, "it crashed", failures={"crash": 2, "build_error": 1})
    with pytest.raises(NoValidTrial, match=r"failed \(1 build_error, 2 crash\): it crashed: run `halo-tvm doctor`"):
        refuse(failed, task(r.UNTRIED, "the budget ended before it"))
    with pytest.raises(NoValidTrial, match=r"\(no task could be opened\): a; b: "):
        refuse(task(r.FAILED, "a"), task(r.FAILED, "b"))


def test_a_run_that_says_something():
    refuse()
    refuse(task(r.FAILED, "it crashed", failures={"crash": 2}), task(r.KEPT, "", measured=1))
    refuse(task(r.FAILED, "the default failed"), task(r.UNTRIED, "the budget ended before it"))
    refuse(task(r.KEPT, "it is within 3% of its roofline"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"precision": "bf16"}, " --precision bf16"),
        ({"precision": "fp16", "force_precision": True}, " --precision fp16 --force-precision"),
        (
            {"shape": ("x=1x8", "y=2"), "opt_level": "2", "disable": ("fuse",), "kv": "int8", "function": ("decode",)},
            " --shape x=1x8 --shape y=2 --opt-level 2 --kv int8 --function decode --disable fuse",
        ),
        ({"slots": 4, "budget": "1m", "config": "halo.toml"}, " --slots 4"),
    ],
)
def test_the_next_command_finds_the_records(options, words):
    improved = r.TuneResult("m", "t", describe_host(), "log", (task(r.IMPROVED, ""),))
    assert next_steps(improved, TuneConfig(model=("gpt2",), **options)) == [
        f"next: halo-tvm compile --model gpt2{words}"
    ]


def test_tasks_that_were_not_reached_ask_for_a_larger_budget():
    half = r.TuneResult("m", "t", describe_host(), "log", (task(r.KEPT, ""), task(r.UNTRIED, "")))
    assert next_steps(half, TuneConfig(model="m")) == ["1 of 2 tasks were not reached: give a larger --budget than 10m"]
    assert next_steps(half, TuneConfig(model="m", trials=3)) == []


def test_a_budget_that_measures_nothing_asks_for_a_larger_one():
    def steps(*tasks):
        return next_steps(r.TuneResult("m", "t", describe_host(), "log", tasks), TuneConfig(model="m", budget="30s"))

    over, untried = task(r.KEPT, "", ended="budget"), task(r.UNTRIED, "")
    said = ["the budget ended before a candidate was measured: give a larger --budget than 30s"]
    assert steps(over) == steps(over, untried) == said
    assert steps(task(r.KEPT, "", measured=1, ended="budget")) == steps(task(r.KEPT, "", ended="roofline")) == []
