"""Whole runs on a toy rule: winners, failures by class, interruption, and records found by another process."""

import dataclasses
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy_rules
import tvm
from children import children_of, heeding_interrupts
from landscape import FakeLab

from halo_tvm.config import TuneConfig
from halo_tvm.errors import EnvironmentProblem, NoValidTrial
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records import Fingerprint, Trials, TuningLog
from halo_tvm.records.log import commit
from halo_tvm.records.record import MEASURED
from halo_tvm.records.workload import workload_key
from halo_tvm.report import schema
from halo_tvm.report import tuned as r
from halo_tvm.tuning import progress as progress_module
from halo_tvm.tuning import tuner as tuner_module
from halo_tvm.tuning.defaults import latencies, timed_sizes
from halo_tvm.tuning.measure import make_lab
from halo_tvm.tuning.measure.lab import Failure, LabOptions
from halo_tvm.tuning.model import options_of, tune_module
from halo_tvm.tuning.result import why_kept
from halo_tvm.tuning.search.outcome import Confirmed
from halo_tvm.tuning.task import tasks_of
from halo_tvm.tuning.tuner import Tuner

D = toy_rules.Decision
# The default walks down the columns, which costs many times more than along the rows from 32 rows on.
SLOW, FAST = D("slow", 1), D("plain", 1)
ROWS = {"rows": (256, 512)}
COLUMNS = 1024


@pytest.fixture
def space(monkeypatch):
    def choose(*decisions):
        monkeypatch.setattr(toy_rules.Toy, "decisions", decisions)

    choose(SLOW, FAST)
    return choose


def tune(tmp_path, *, timeout_s=20.0, memory_bytes=2 << 30, functions=None, **changes):
    config = TuneConfig(**{"model": "toy", "budget": "60s", "effort": "quick", "log": str(tmp_path / "log"), **changes})
    mod = tvm.IRModule(functions or {"f": toy_rules.function(COLUMNS)})
    target = toy_rules.target()
    options = options_of(config, target, ("toy_rules",))
    options = dataclasses.replace(options, timeout_s=timeout_s, memory_bytes=memory_bytes)
    stream = io.StringIO()
    tasks = tasks_of(mod, target, ROWS)
    run = Tuner(
        tasks,
        target,
        fingerprint_of(target),
        options,
        progress_module.Progress(len(tasks.tasks), options.budget_s, stream),
    )
    return run, stream


def test_a_winner_is_committed_and_found_in_another_process(tmp_path, space):
    space(SLOW, FAST, D("vector", 8))
    run, stream = tune(tmp_path)
    result = run.run()
    (task,) = result.tasks
    assert task.outcome == r.IMPROVED and task.speedup_low > 1.0, str(result)
    assert task.decision["mode"] in ("plain", "vector")
    assert "task 1/1" in stream.getvalue() and "1 of 1 tasks improved" in str(result)
    assert result.measured == 2 and schema.from_json(json.loads(json.dumps(schema.to_json(result)))) == result
    path = tmp_path / "log" / "llvm-x86_64-avx2" / "records.jsonl"
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert line["outcome"] == "improved" and len(line["candidate_us"]) == len(line["sizes"]) == 2
    assert all(len(row) == 12 for row in line["candidate_us"] + line["default_us"])
    code = (
        "import sys, toy_rules; from pathlib import Path\n"
        "from halo_tvm.records import TuningLog; from halo_tvm.records.workload import workload_key\n"
        "from halo_tvm.lookup import fingerprint_of\n"
        "log = TuningLog.open([Path(sys.argv[1])], fingerprint_of(toy_rules.target()))\n"
        f"print(log.best(workload_key(toy_rules.function({COLUMNS})), 'toy', 1).decision['mode'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))},
    )
    assert found.stdout.strip() == task.decision["mode"]


@pytest.mark.slow
def test_a_slower_candidate_is_not_committed(tmp_path, space):
    space(FAST, SLOW)
    result = tune(tmp_path)[0].run()
    assert [t.outcome for t in result.tasks] == [r.KEPT]
    assert result.tasks[0].measured == 1
    assert "nothing improved" in str(result)
    assert [path.name for path in (tmp_path / "log").rglob("*.jsonl")] == ["trials.jsonl"]


@pytest.mark.slow
def test_a_winner_of_before_that_loses_now_is_withdrawn(tmp_path, space):
    """Its record claims much; what was measured here counts, for look-up as well."""
    space(FAST, SLOW)
    run, _ = tune(tmp_path)
    (task,) = run._tasks.tasks
    lucky = Confirmed(SLOW, ((9.0,),) * 2, ((1.0,),) * 2, 9.0, 8.0, 10.0)
    commit(tmp_path / "log", run._fingerprint, [run._recorder.winner(task, lucky)])

    def used():
        return TuningLog.open([tmp_path / "log"], run._fingerprint).best(task.key, "toy", 1)

    assert used().decision["mode"] == "slow"
    untouched = tune(tmp_path, budget="1s")[0].result
    assert untouched.tasks[0].note.endswith("; the record of an earlier run stands")
    result = tune(tmp_path)[0].run()
    assert result.tasks[0].outcome == r.KEPT and "record" not in result.tasks[0].note
    assert used() is None


FAILING = {
    "wrong": "wrong_result",
    "crash": "crash",
    "abort": "crash",
    "greedy": "out_of_memory",
    "decline": "declined",
    "raise": "build_error",
}


@pytest.mark.slow
def test_failures_have_a_class_and_the_run_goes_on(tmp_path, space):
    space(SLOW, *(D(mode, 1) for mode in FAILING), FAST)
    result = tune(tmp_path)[0].run()
    (task,) = result.tasks
    assert task.failures == {"wrong_result": 1, "crash": 2, "out_of_memory": 1, "declined": 1, "build_error": 1}, str(
        result
    )
    assert task.outcome == r.IMPROVED and task.decision["mode"] == "plain"
    trials = Trials.open([tmp_path / "log"], fingerprint_of(toy_rules.target())).of(task.key, "toy", 1)
    failed = [t for t in trials if t.outcome != MEASURED]
    assert {f.decision["mode"]: f.outcome for f in failed} == FAILING and all(f.message for f in failed)
    assert result.worker_restarts == 2


@pytest.mark.slow
def test_a_hang_is_a_timeout(tmp_path, space):
    space(SLOW, D("hang", 1), FAST)
    result = tune(tmp_path, timeout_s=5.0)[0].run()
    (task,) = result.tasks
    assert task.failures == {"timeout": 1} and task.outcome == r.IMPROVED
    assert result.worker_restarts == 1


@pytest.mark.slow
def test_what_crashed_before_is_not_tried_again(tmp_path, space):
    space(SLOW, D("crash", 1), D("wrong", 1), FAST)
    tune(tmp_path)[0].run()
    (task,) = tune(tmp_path)[0].run().tasks
    assert task.failures == {"crash": 1}, "a second try; what was wrong has none"
    result = tune(tmp_path)[0].run()
    (task,) = result.tasks
    assert task.failures == {} and task.measured == 1 and "2 decisions that failed" in str(result.notes)
    assert result.lookup["hits"] == 1


@pytest.mark.slow
def test_all_failing_is_an_error(tmp_path, space):
    space(FAST, D("wrong", 1), D("raise", 1))
    with pytest.raises(NoValidTrial, match="1 build_error, 1 wrong_result") as caught:
        tune(tmp_path)[0].run()
    assert caught.value.exit_code == 4


@pytest.mark.slow
def test_a_wrong_default_is_found(tmp_path, space):
    space(D("wrong", 1), FAST)
    with pytest.raises(NoValidTrial, match="the default differs from the unscheduled function"):
        tune(tmp_path)[0].run()


def test_effort_none_measures_nothing(tmp_path, space):
    result = tune(tmp_path, effort="none")[0].run()
    assert [t.outcome for t in result.tasks] == [r.UNTRIED] and result.measured == 0


@pytest.mark.slow
def test_trials_are_a_limit(tmp_path, space):
    space(FAST, *(D("vector", 1 << i) for i in range(5)))
    result = tune(tmp_path, trials=2, functions={"f": toy_rules.function(64), "g": toy_rules.function(128)})[0].run()
    assert result.measured == 2
    assert [t.outcome for t in result.tasks].count(r.UNTRIED) == 1


@pytest.mark.slow
def test_interruption_keeps_what_is_committed(tmp_path, space, monkeypatch):
    commits = []
    real = tuner_module.commit

    def commit(directory, target, records):
        path = real(directory, target, records)
        if any(record.outcome == "improved" for record in records):
            commits.append(path)
            raise KeyboardInterrupt

    monkeypatch.setattr(tuner_module, "commit", commit)
    run, _ = tune(tmp_path, functions={"f": toy_rules.function(COLUMNS), "g": toy_rules.function(COLUMNS // 2)})
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert len(commits) == 1 and len(commits[0].read_text().splitlines()) == 1
    assert run.result.interrupted and [t.outcome for t in run.result.tasks].count(r.UNTRIED) >= 1
    assert "interrupted" in run.result.summary()


@pytest.mark.parametrize(
    ("ending", "after"), [(signal.SIGKILL, 0.5), pytest.param(signal.SIGINT, 0.2, marks=pytest.mark.sweep)]
)
@pytest.mark.slow
def test_a_tuner_that_is_ended(tmp_path, space, ending, after):
    """No committed record is lost, no worker stays, and the next run uses the log."""
    code = (
        "import sys, tvm, toy_rules\n"
        "from halo_tvm.config import TuneConfig\n"
        "from halo_tvm.tuning.model import tune_module\n"
        "D = toy_rules.Decision\n"
        "toy_rules.Toy.decisions = (D('slow', 1), D('plain', 1), D('vector', 8))\n"
        "functions = {f'f{i}': toy_rules.function(512 + 16 * i) for i in range(12)}\n"
        "print('ready', flush=True)\n"
        "tune_module(tvm.IRModule(functions), toy_rules.target(),\n"
        "    TuneConfig(model='toy', budget='60s', effort='quick', log=sys.argv[1]), {'rows': (256, 512)}, "
        "modules=('toy_rules',))\n"
    )
    with heeding_interrupts():
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "log")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))},
        )
    process.stdout.readline()
    said = ""
    while "task 2/12" not in said:  # the first task is done
        line = process.stderr.readline()
        assert line, (process.wait(), said)
        said += line
    time.sleep(after)
    workers = children_of(process.pid)
    assert workers
    process.send_signal(ending)
    said += process.stderr.read()
    process.wait()
    for _ in range(100):
        if not any(map(is_running, workers)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, workers))
    if ending == signal.SIGINT:
        assert "KeyboardInterrupt" in said and ", interrupted" in said
    improved = said.count(": improved:")
    log = TuningLog.open([tmp_path / "log"], fingerprint_of(toy_rules.target()))
    report = log.report()
    assert report.usable >= improved and set(report.refused) <= {"torn"}
    result = tune(tmp_path)[0].run()
    assert result.measured


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_targets_that_do_not_run_here(space):
    from halo_tvm.targets import TARGETS, Target
    from halo_tvm.tuning.place import check_runs_here

    def here(name):
        check_runs_here(Target(TARGETS[name], TARGETS[name].isas[0], 1))

    with pytest.raises(EnvironmentProblem, match="needs a GPU that runs it.* --rpc .* --build-only .*halo-tvm compile"):
        here("cuda")
    elsewhere = "arm" if TARGETS["x86"].runs_on & {platform.machine()} else "x86"
    with pytest.raises(EnvironmentProblem, match="needs a CPU target that runs here"):
        here(elsewhere)


def test_sizes_that_take_long_are_not_timed():
    (task,) = tasks_of(tvm.IRModule({"f": toy_rules.function(64)}), toy_rules.target(), {}).tasks

    class HeavyLab(FakeLab):
        def race(self, ids, size, rounds, default_us):
            return {i: [20_000.0 * (size + 1)] * rounds for i in ids}

    default_us = latencies(HeavyLab(speed=lambda d, size: 1.0), task)
    assert default_us == [20_000.0, 40_000.0]
    short = timed_sizes(task, default_us)
    assert [s.dims for s in short.sizes] == [(1,), (8,)] and sum(s.weight for s in short.sizes) == 1


@pytest.mark.slow
def test_the_worker_survives_its_own_death(space):
    (task,) = tasks_of(tvm.IRModule({"f": toy_rules.function(64)}), toy_rules.target(), ROWS).tasks
    options = LabOptions(threads=2, memory_bytes=2 << 30, modules=("toy_rules",))
    with make_lab(toy_rules.target(), options, seed=0, l3_bytes=0) as worker:
        worker.open(task)
        kept, crashing = worker.order([FAST, D("crash", 1)])
        worker.take(kept)
        with pytest.raises(Failure) as caught:
            worker.take(crashing)
        assert caught.value.kind == "crash" and "signal 11" in str(caught.value)
        samples = worker.race([0, kept], 0, 3, 10.0)
        assert len(samples[kept]) == 3 and all(us > 0 for us in samples[kept])
        assert worker.restarts == 1


@pytest.mark.slow
def test_a_module_as_the_command_line_tunes_it(tmp_path, space):
    config = TuneConfig(model="toy", budget="30s", effort="quick", log=str(tmp_path))
    stream = io.StringIO()
    mod = tvm.IRModule({"f": toy_rules.function(COLUMNS)})
    result = tune_module(mod, toy_rules.target(), config, ROWS, modules=("toy_rules",), stream=stream)
    assert result.target == "llvm-x86_64-avx2" and result.log == str(tmp_path)
    assert workload_key(mod["f"]) == result.tasks[0].key
    assert isinstance(fingerprint_of(toy_rules.target()), Fingerprint)


@pytest.mark.parametrize(
    ("speedup", "words"), [(0.662, r"was slower when it was confirmed \(0.662x\)"), (1.02, "1.020x is not certain")]
)
def test_why_a_default_is_kept(speedup, words):
    assert re.search(words, why_kept(None, Confirmed(None, (), (), speedup, 0.6, 1.1)))
