"""Runs that stop and go on: what is on the disk at any moment, and what a run that goes on does with it."""

import dataclasses
import io
import json
import math
import os
import random
import select
import signal
import time
import traceback

import landscape
import pytest
import toy_rules
import tvm
from children import fork
from landscape import DEFAULT, FakeLab, cost

from halo_tvm.ceilings import HostProfile, Peaks
from halo_tvm.ceilings.profile import RATES
from halo_tvm.config import TuneConfig
from halo_tvm.errors import UsageError
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records.home import host_profile
from halo_tvm.records.log import TuningLog
from halo_tvm.records.trials import Trials
from halo_tvm.records.verify import verify_file
from halo_tvm.report import tuned as r
from halo_tvm.targets import read_host
from halo_tvm.tuning import model as model_module
from halo_tvm.tuning import tuner as tuner_module
from halo_tvm.tuning.budget import Clock
from halo_tvm.tuning.measure.lab import Failure
from halo_tvm.tuning.model import tune_module
from halo_tvm.tuning.options import TuneOptions
from halo_tvm.tuning.progress import Progress
from halo_tvm.tuning.runs import Run, last_unfinished, new_id
from halo_tvm.tuning.search import outcome as ends
from halo_tvm.tuning.search.efforts import EFFORTS
from halo_tvm.tuning.task import Tasks
from halo_tvm.tuning.tuner import Tuner

TARGET = toy_rules.target()
FINGERPRINT = fingerprint_of(TARGET)
EFFORT = dataclasses.replace(EFFORTS["full"], most=64, confirm_rounds=8)


def tasks_of_counts(*counts, flat=()):
    made = [landscape.task(f"task{i}", count=c, scale=i + 1) for i, c in enumerate(counts)]
    return Tasks(tuple(made), ())


def tuner(log, tasks, *, lab=None, resume=False, budget_s=1e9, now=None, peaks=None, **more):
    options = TuneOptions(
        model="m",
        budget_s=budget_s,
        effort=EFFORT,
        directory=log,
        read=(log,),
        threads=2,
        memory_bytes=1 << 30,
        resume=resume,
        **more,
    )
    clock = Clock(budget_s, (lambda: now[0]) if now is not None else time.monotonic)
    progress = Progress(len(tasks.tasks), 9.0, io.StringIO())
    lab = lab or FakeLab(now=now)
    return Tuner(tasks, TARGET, FINGERPRINT, options, progress, lab=lab, clock=clock, peaks=peaks)


class Interrupting(FakeLab):
    """Ctrl-C in the middle of the n-th race."""

    def __init__(self, races, **more):
        super().__init__(**more)
        self.left = races

    def race(self, candidates, size, rounds, default_us):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().race(candidates, size, rounds, default_us)


def run_files(log):
    return list((log / FINGERPRINT.key / "runs").glob("*.json"))


def trials_of(log, task):
    return Trials.open([log], FINGERPRINT).of(task.key, task.rule.name, task.rule.version)


def test_a_run_that_ends_leaves_no_file(tmp_path):
    tasks = tasks_of_counts(1, 1)
    result = tuner(tmp_path, tasks).run()
    assert run_files(tmp_path) == [] and result.run and not result.resumed
    assert [t.outcome for t in result.tasks] == [r.IMPROVED, r.IMPROVED]
    assert all(t.ended and t.stages and t.stage for t in result.tasks)
    trials = trials_of(tmp_path, tasks.tasks[0])
    assert len(trials) == result.tasks[0].measured and {t.run for t in trials} == {result.run}
    assert {t.outcome for t in trials} == {"measured"} and all(t.family and t.extents and t.stage for t in trials)
    with pytest.raises(UsageError, match="--resume goes on with a run of m for .* leave --resume out"):
        tuner(tmp_path, tasks, resume=True)
    assert (tmp_path / FINGERPRINT.key / "cost_model-synthetic.json").is_file()


def test_what_is_known_is_not_measured_again(tmp_path):
    tasks = tasks_of_counts(5, 1)
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path, tasks, lab=Interrupting(60)).run()
    (path,) = run_files(tmp_path)
    state = json.loads(path.read_text())
    known = [t for task in tasks.tasks for t in trials_of(tmp_path, task)]
    assert state["trials"] == len(known) > 8 and state["elapsed_s"] > 0
    before = {(t.workload, json.dumps(t.decision, sort_keys=True)): t.speedup for t in known}
    lab = FakeLab(seed=1)
    run = tuner(tmp_path, tasks, lab=lab, resume=True)
    finished = {k for k, t in run._results.items()}
    result = run.run()
    assert result.resumed and result.run == state["id"] and run_files(tmp_path) == []
    again = [t for task in tasks.tasks for t in trials_of(tmp_path, task)][len(known) :]
    keys = [(t.workload, json.dumps(t.decision, sort_keys=True)) for t in again]
    assert again and not finished & {t.workload for t in again}
    # Of each task that goes on at most the best four are raced again.
    repeated = [k for k in keys if k in before]
    for workload in {w for w, _ in repeated}:
        assert 1 <= len([k for k in repeated if k[0] == workload]) <= 4
    assert repeated and all(before[k] > 1.0 for k in repeated)
    assert all(t.outcome == r.IMPROVED for t in result.tasks)


def test_the_time_before_counts(tmp_path):
    tasks, now = tasks_of_counts(1), [0.0]
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path, tasks, lab=Interrupting(30, now=now), budget_s=100.0, now=now).run()
    elapsed = json.loads(run_files(tmp_path)[0].read_text())["elapsed_s"]
    assert 0 < elapsed <= now[0]
    run = tuner(tmp_path, tasks, budget_s=elapsed + 0.001, now=now, resume=True)
    result = run.run()
    assert result.measured == 0 and result.seconds >= elapsed
    assert [t.outcome for t in result.tasks] == [r.UNTRIED]


def test_only_a_run_of_the_same_kind_goes_on(tmp_path):
    options = {"effort": "full", "seed": 0}
    Run(new_id(), "m", "s", "t", options).save(tmp_path)
    assert last_unfinished(tmp_path, "m", "s", "t", options).options == options
    assert last_unfinished(tmp_path, "m", "", "t", options).model == "m"
    with pytest.raises(UsageError, match="is of m"):
        last_unfinished(tmp_path, "n", "s", "t", options)
    with pytest.raises(UsageError, match="has another seed"):
        last_unfinished(tmp_path, "m", "s", "t", {**options, "seed": 1})
    with pytest.raises(UsageError, match="another version of the model"):
        last_unfinished(tmp_path, "m", "z", "t", options)
    with pytest.raises(UsageError, match="holds none with these options"):
        last_unfinished(tmp_path, "m", "s", "u", options)


def test_the_last_of_several_goes_on_and_damage_is_passed_over(tmp_path):
    runs = [Run(f"run-{i}", "m", "", "t", {}, elapsed_s=float(i)) for i in range(3)]
    for at, one in enumerate(runs):
        one.save(tmp_path)
        path = tmp_path / "t" / "runs" / f"run-{at}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "saved": [5.0, 9.0, 7.0][at]}))
    folder = tmp_path / "t" / "runs"
    good = json.loads((folder / "run-1.json").read_text())
    bad = [
        "{",
        "[]",
        "[" * 50_000,
        json.dumps({**good, "schema": 9}),
        json.dumps({**good, "id": "../../x"}),
        json.dumps({**good, "elapsed_s": -1}),
        json.dumps({**good, "finished": {"k": {"outcome": 1}}}),
        json.dumps({**good, "saved": "late"}),
        json.dumps({**good, "extra": 1}),
    ]
    finished = dataclasses.asdict(tuner(tmp_path / "other", tasks_of_counts(1)).run().tasks[0])
    wrong = {
        "speedup": "x",
        "weights": 3,
        "default_us": ["1"],
        "sizes": [1],
        "failures": {"crash": "1"},
        "note": None,
        "rank_correlation": "high",
        "seconds": 10**400,
        "best_us": [math.nan],
        "decision": [],
        "measured": 1.5,
        "stages": [{"name": "ranked"}],
        "count": True,
    }
    bad += [json.dumps({**good, "finished": {"k": {**finished, name: value}}}) for name, value in wrong.items()]
    for at, text in enumerate(bad):
        (folder / f"zbad-{at}.json").write_text(text)
    assert last_unfinished(tmp_path, "m", "", "t", {}).elapsed_s == 1.0
    for one in runs:
        one.remove(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        last_unfinished(tmp_path, "m", "", "t", {})


def test_a_run_that_is_still_going_is_left_alone(tmp_path):
    run = Run(new_id(), "m", "", "t", {})
    run.save(tmp_path)
    with run.hold(tmp_path):
        with pytest.raises(UsageError, match="is still going"):
            last_unfinished(tmp_path, "m", "", "t", {})
        with pytest.raises(UsageError, match="cannot be locked"), run.hold(tmp_path):
            pass
    assert last_unfinished(tmp_path, "m", "", "t", {}).id == run.id
    with run.hold(tmp_path):
        run.remove(tmp_path)
    assert list((tmp_path / "t" / "runs").iterdir()) == []


def test_a_run_of_another_machine_does_not_go_on(tmp_path):
    tasks = tasks_of_counts(1)
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path, tasks, lab=Interrupting(20)).run()
    options = tuner(tmp_path, tasks)._options
    here, there = options.deciding(FINGERPRINT), options.deciding(dataclasses.replace(FINGERPRINT, l3_bytes=1 << 20))
    assert last_unfinished(tmp_path, "m", "", FINGERPRINT.key, here)
    with pytest.raises(UsageError, match="has another machine"):
        last_unfinished(tmp_path, "m", "", FINGERPRINT.key, there)


class Dying(FakeLab):
    """The default dies in the races of one task, after the first batch."""

    def race(self, candidates, size, rounds, default_us):
        if self.task.key == "task0" and len(candidates) > 1 and len(self.taken) > 12:
            raise Failure("crash", "signal 11", 0)
        return super().race(candidates, size, rounds, default_us)


def test_a_task_whose_default_dies_leaves_nothing(tmp_path):
    """The run ends: no file of it stays, no candidate, and no trial is lost."""
    tasks, lab = tasks_of_counts(9, 1), Dying()
    result = tuner(tmp_path, tasks, lab=lab).run()
    failed, improved = result.tasks
    assert (failed.outcome, improved.outcome) == (r.FAILED, r.IMPROVED) and "the default failed" in failed.note
    assert lab.ids == {}
    assert list((tmp_path / FINGERPRINT.key / "runs").iterdir()) == []
    assert len(trials_of(tmp_path, tasks.tasks[0])) == failed.measured > 0


def test_the_defaults_take_a_share_of_what_is_left(tmp_path):
    """A run that goes on with a tenth of its budget does not spend three tenths of all of it on defaults."""
    now, tasks = [0.0], tasks_of_counts(*range(1, 9))
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path, tasks, lab=Interrupting(20, now=now), budget_s=100.0, now=now).run()
    (path,) = run_files(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "elapsed_s": 99.9}))
    lab = FakeLab(now=now)
    run = tuner(tmp_path, tasks, lab=lab, budget_s=100.0, now=now, resume=True)
    run.run()
    assert run._progress._before[0] == 99.9 and len(run._latency) < 3


def test_a_finished_task_comes_back_as_it_was(tmp_path):
    tasks = tasks_of_counts(1)
    finished = tuner(tmp_path, tasks).run().tasks[0]
    run = Run(new_id(), "m", "", "t", {}, finished={finished.key: finished})
    run.save(tmp_path)
    back = last_unfinished(tmp_path, "m", "", "t", {}).finished[finished.key]
    assert json.dumps(dataclasses.asdict(back)) == json.dumps(dataclasses.asdict(finished))


class InterruptedAtTheEnd(FakeLab):
    """Ctrl-C when the second candidate is put into its final form."""

    def final(self, candidate):
        super().final(candidate)
        if len(self.finals) == 2:
            raise KeyboardInterrupt


def test_what_only_the_budget_ended_goes_on(tmp_path):
    """Both tasks are cut off; the first is confirmed, the second is interrupted there. More time goes to both."""
    now = [0.0]
    with pytest.raises(KeyboardInterrupt):
        tuner(tmp_path, tasks_of_counts(2, 2), lab=InterruptedAtTheEnd(now=now), budget_s=4.0, now=now).run()
    assert json.loads(run_files(tmp_path)[0].read_text())["finished"] == {}
    result = tuner(tmp_path, tasks_of_counts(2, 2), lab=FakeLab(seed=1, now=now), now=now, resume=True).run()
    assert all(t.outcome == r.IMPROVED and t.ended != ends.BUDGET for t in result.tasks)


def test_time_goes_to_the_heavy_task_first(tmp_path):
    now, lab = [0.0], None
    lab = FakeLab(now=now)
    result = tuner(tmp_path, tasks_of_counts(1, 400), lab=lab, budget_s=3.0, now=now).run()
    light, heavy = result.tasks
    assert heavy.measured > 4 * light.measured and heavy.outcome == r.IMPROVED
    assert ends.BUDGET in {heavy.ended, light.ended} or light.outcome == r.UNTRIED


def test_a_task_at_its_roofline_gets_no_trials(tmp_path):
    (task,) = tasks_of_counts(1).tasks
    moved = 2 * 64 * 64 * 4.0  # bytes in and out
    us = math.sqrt(cost(DEFAULT, 32) * cost(DEFAULT, 128))
    gbps = moved / (us * 1e-6) / 1e9
    at_it = Peaks(2, 1e6, gbps, gbps, gbps, None, 0, 0, "")
    result = tuner(tmp_path, Tasks((task,), ()), peaks=at_it).run()
    (task_result,) = result.tasks
    assert task_result.ended == ends.ROOFLINE and task_result.measured == 0 and "roofline" in task_result.note
    assert task_result.roofline_us == pytest.approx((us, us))
    far = dataclasses.replace(at_it, l2_gbps=9e9, l3_gbps=9e9, dram_gbps=9e9)
    assert tuner(tmp_path / "far", Tasks((task,), ()), peaks=far).run().tasks[0].measured > 0


def test_a_run_here_reads_what_doctor_measured_here(tmp_path, monkeypatch):
    """As the command line starts it: the place is this machine, so the run makes the lab and may read the profile."""
    (task,) = tasks_of_counts(1).tasks
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    monkeypatch.setattr(tuner_module, "make_lab", lambda *_, **__: FakeLab())
    monkeypatch.setattr(model_module, "tasks_of", lambda *_: Tasks((task,), ()))
    config = TuneConfig(model="m", effort="quick", log=str(tmp_path / "log"))

    def tuned():
        return tune_module(tvm.IRModule(), TARGET, config, stream=io.StringIO())

    assert "halo-tvm doctor --measure" in tuned().notes[0]
    host, slow = read_host(), 1e-6  # so slow that every default is at its roofline
    rates = {TARGET.cores: dict.fromkeys(RATES, slow)}
    HostProfile(host.model, host.machine, "avx2", "", rates).save(host_profile())
    result = tuned()
    assert result.notes == () and result.tasks[0].ended == ends.ROOFLINE and result.tasks[0].roofline_us


def test_a_study_may_spoil_the_starts(tmp_path):
    tasks, lab = tasks_of_counts(1), FakeLab()
    spoiled = landscape.Point(2, 16, 8, 8, "rows")
    options = tuner(tmp_path, tasks)._options
    progress = Progress(1, 9.0, io.StringIO())
    (task,) = Tuner(tasks, TARGET, FINGERPRINT, options, progress, lab=lab, starts={"task0": spoiled}).run().tasks
    assert lab.taken[0] == spoiled and task.outcome == r.IMPROVED and task.stages[0].stage != "analytic"


def test_trials_are_shared_out_and_said(tmp_path):
    result = tuner(tmp_path, tasks_of_counts(9, 1), trials=10).run()
    assert result.measured == 10
    assert ends.TRIALS in {t.ended for t in result.tasks}


# A tuner that is killed

_PAUSE_S = 0.002


class Sleeping(FakeLab):
    """Takes a little real time, so that a kill finds it anywhere."""

    def take(self, candidate):
        time.sleep(_PAUSE_S)
        return super().take(candidate)

    def race(self, *arguments):
        time.sleep(_PAUSE_S)
        return super().race(*arguments)


def start(log, *, seed=0, resume=False, counts=(3, 2, 1)):
    """A process that tunes; says the key of each task whose winner has been committed. Returns (pid, pipe)."""
    reader, writer = os.pipe()
    pid = fork()
    if pid:
        os.close(writer)
        return pid, reader
    status = 1
    try:
        os.close(reader)
        real = tuner_module.commit

        def commit(directory, target, records):
            real(directory, target, records)
            said = "".join(f"{record.outcome} {record.workload} {record.run}\n" for record in records)
            os.write(writer, said.encode())

        tuner_module.commit = commit
        tuner(log, tasks_of_counts(*counts), lab=Sleeping(seed=seed), resume=resume, seed=0).run()
        status = 0
    except BaseException:
        traceback.print_exc()  # what ends a forked process is said nowhere else
        raise
    finally:
        os._exit(status)


def said(reader):
    """Everything that was written before the writer died."""
    data = b""
    while chunk := os.read(reader, 1 << 16):
        data += chunk
    os.close(reader)
    return data.decode().splitlines()


def kill_at_random(log, generator, resume):
    """(what was acknowledged, whether it ended by itself) of a process killed at a random moment."""
    pid, reader = start(log, seed=generator.randrange(1 << 30), resume=resume)
    # It has begun to write: the moment is random from there on.
    ready, _, _ = select.select([reader], [], [], 30.0)
    assert ready
    time.sleep(generator.random() * 1.2)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return said(reader), os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def lines_in(log):
    """(records, counts of lines that cannot be used) of a log: winners and trials."""
    trials = Trials.open([log], FINGERPRINT)
    winners = TuningLog.open([log], FINGERPRINT)
    return winners, trials, {**winners.report().refused, **trials.refused}


@pytest.mark.slow
def test_killed_at_many_moments(tmp_path):
    """No committed record is lost, nothing but a torn line is in the log, and the run goes on every time."""
    generator = random.Random(0)
    acknowledged, kills, resumed, ended = [], 0, 0, 0
    while kills < 25:
        unfinished = run_files(tmp_path)
        resumed += bool(unfinished)
        words, is_over = kill_at_random(tmp_path, generator, resume=bool(unfinished))
        acknowledged += words
        kills, ended = kills + (not is_over), ended + is_over
        for path in run_files(tmp_path):
            json.loads(path.read_text())
    winners, trials, refused = lines_in(tmp_path)
    assert set(refused) <= {"torn"} and sum(refused.values()) <= kills
    reports = [verify_file(path) for path in (tmp_path / FINGERPRINT.key).glob("*.jsonl")]
    assert len(reports) == 2 and all(report.damaged == 0 for report in reports), reports
    found = [line.split()[1] for line in acknowledged if line.startswith("improved")]
    for key in set(found):
        assert winners.best(key, "synthetic", 1) is not None
    # Some were withdrawn by later runs.
    assert sum(report.records for report in reports) >= len(found) > 0
    timed = sum(line.startswith("measured") for line in acknowledged)
    assert len(trials.latest("synthetic", 1, 1 << 20)) >= timed > 50
    assert resumed >= 12, (resumed, ended)
    if run_files(tmp_path):
        pid, reader = start(tmp_path, resume=True)
        said(reader)
        assert os.waitpid(pid, 0)[1] == 0
    assert run_files(tmp_path) == []


@pytest.mark.slow
def test_two_tuners_on_one_log(tmp_path):
    """Nothing of either is lost, and every line is whole."""
    started = [start(tmp_path, seed=seed) for seed in (1, 2)]
    acknowledged = [line for _, reader in started for line in said(reader)]
    assert [os.waitpid(pid, 0)[1] for pid, _ in started] == [0, 0]
    winners, trials, refused = lines_in(tmp_path)
    assert refused == {}
    assert len({line.split()[2] for line in acknowledged}) == 2
    assert sum(len(v) for v in winners._records.values()) == sum(w.startswith("improved") for w in acknowledged)
    assert len(trials.latest("synthetic", 1, 1 << 20)) == sum(line.startswith("measured") for line in acknowledged)
    assert run_files(tmp_path) == []
