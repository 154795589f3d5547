"""MetaSchedule's search over the spaces of our rules, its records in our log, and reading its database."""

import io
import json
import math
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_rules
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from halo_tvm.config import TuneConfig
from halo_tvm.errors import NoValidTrial
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records import TuningLog
from halo_tvm.records.import_metaschedule import read_workloads, records_of
from halo_tvm.records.record import IMPROVED, MEASURED
from halo_tvm.records.trials import Trials
from halo_tvm.tuning import recording
from halo_tvm.tuning import result as r
from halo_tvm.tuning.budget import Clock
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.measure.lab import Failure
from halo_tvm.tuning.metaschedule import proposals as proposing
from halo_tvm.tuning.metaschedule import search, tune_tasks
from halo_tvm.tuning.metaschedule.proposals import proposals
from halo_tvm.tuning.metaschedule.space import Space
from halo_tvm.tuning.model import options_of
from halo_tvm.tuning.progress import Progress
from halo_tvm.tuning.task import tasks_of

D = toy_rules.Decision
# 24 combinations of mode and lanes, of which a quarter do not exist. What a mode is called means nothing here.
MODES = ("plain", "vector", "slow", "wide", "narrow", "odd")
SPACE = tuple(D(mode, lanes) for i, mode in enumerate(MODES) for lanes in (1, 2, 3, 4) if i * lanes % 2 == 0)
BEST = D("narrow", 3)
DEFAULT = SPACE[0]
ROWS = {"rows": (256, 512)}


def cost(decision: D) -> float:
    """The closer to BEST in each field, the faster."""
    return 10.0 + 5 * abs(MODES.index(decision.mode) - 4) + 3 * abs(decision.lanes - 3)


class FakeLab:
    """A lab that knows what everything costs; `fails` says which decisions fail, and how."""

    restarts = 0

    def __init__(self, fails=None, default_cost=cost(DEFAULT)) -> None:
        self.fails = fails or {}
        self.default_cost = default_cost
        self.decisions: dict[int, object] = {p.DEFAULT_ID: DEFAULT}
        self.dropped: set[int] = set()
        self.finals: list[int] = []

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None: ...

    def prepare(self, tasks) -> None:
        self.prepared = [task.key for task in tasks]

    def open(self, task, *, compare=True) -> float:
        return cost(DEFAULT)

    def order(self, decisions: Sequence[object]) -> list[int]:
        ids = list(range(len(self.decisions), len(self.decisions) + len(decisions)))
        self.decisions.update(zip(ids, decisions))
        return ids

    def take(self, candidate: int) -> float:
        decision = self.decisions[candidate]
        kind = self.fails(decision) if callable(self.fails) else self.fails.get(decision)
        if kind:
            raise Failure(kind, f"{decision} fails", candidate)
        return cost(decision)

    def race(self, candidates, size, rounds, default_us):
        assert not self.dropped & set(candidates), "a dropped candidate is raced"
        costs = {i: cost(self.decisions[i]) if i else self.default_cost for i in candidates}
        return {i: [cost * (size + 1)] * rounds for i, cost in costs.items()}

    def final(self, candidate: int) -> None:
        self.finals.append(candidate)

    def drop(self, candidates) -> None:
        self.dropped |= set(candidates)


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setattr(toy_rules.Toy, "decisions", SPACE)
    return tasks_of(tvm.IRModule({"f": toy_rules.function(1024)}), toy_rules.target(), ROWS)


def tune(tasks, tmp_path, lab=None, **changes):
    config = TuneConfig(**{"model": "toy", "budget": "60s", "effort": "full", "log": str(tmp_path / "log"), **changes})
    target, stream = toy_rules.target(), io.StringIO()
    progress = Progress(len(tasks.tasks), 60.0, stream)
    return tune_tasks(tasks, target, options_of(config, target, ("toy_rules",)), progress, lab or FakeLab()), stream


def test_the_whole_space_is_found_and_nothing_else(tasks):
    (task,) = tasks.tasks
    assert Space(task, {}).product > len(task.space), "some combinations must be no decision"
    trials = list(search(task, toy_rules.target(), trials=1000, budget_s=60, seed=0, lab=FakeLab()))
    found = [trial.decision for trial in trials]
    assert set(found) == set(SPACE) and len(found) == len(SPACE)
    assert min(trials, key=lambda t: t.us).decision == BEST
    # weighted geometric mean over sizes of weight one half: cost and twice the cost
    assert trials[0].us == pytest.approx(cost(found[0]) * math.sqrt(2))
    assert [t.seconds for t in trials] == sorted(t.seconds for t in trials)


def test_a_seed_repeats_a_search_and_another_one_does_not(tasks):
    def order(seed):
        (task,) = tasks.tasks
        return [t.decision for t in search(task, toy_rules.target(), trials=12, budget_s=60, seed=seed, lab=FakeLab())]

    first = order(3)
    assert len(first) == 12 and order(3) == first and order(4) != first


@pytest.mark.parametrize("strategy", ["replay-trace", "replay-func"])
def test_strategies_that_only_replay(tasks, strategy):
    (task,) = tasks.tasks
    lab = FakeLab()
    found = [
        t.decision for t in search(task, toy_rules.target(), trials=9, budget_s=60, seed=0, strategy=strategy, lab=lab)
    ]
    assert found and set(found) <= set(SPACE) and len(set(found)) == len(found)


def test_the_cost_model_learns_from_the_decisions(tasks, monkeypatch):
    """Trained on some of the space, it ranks the rest: its own extractor would see one and the same loop nest."""
    monkeypatch.setattr(proposing, "_BATCH", 8)
    monkeypatch.setattr(proposing, "_WARM", 8)
    made = []
    original = proposing._model
    monkeypatch.setattr(proposing, "_model", lambda space: made.append(original(space)) or made[-1])
    (task,) = tasks.tasks
    list(search(task, toy_rules.target(), trials=18, budget_s=60, seed=0, lab=FakeLab()))
    assert made[0].data_size == 18 and made[0].booster is not None


def test_a_run_commits_the_best_and_every_trial(tasks, tmp_path):
    lab = FakeLab({D("wide", 2): p.DECLINED, D("slow", 1): p.SLOWER})
    result, stream = tune(tasks, tmp_path, lab)
    (task,) = result.tasks
    assert result.engine == "metaschedule" and task.outcome == r.IMPROVED and task.stage == "metaschedule"
    assert task.decision == {"mode": BEST.mode, "lanes": BEST.lanes}
    assert task.measured == len(SPACE) - 1 and task.failures == {p.DECLINED: 1}
    assert "task 1/1" in stream.getvalue() and lab.prepared == [task.key]
    assert [lab.decisions[i] for i in lab.finals] == [BEST], "what ships is confirmed, not what raced"
    fingerprint = fingerprint_of(toy_rules.target())
    record = TuningLog.open([tmp_path / "log"], fingerprint).best(task.key, "toy", 1)
    assert record is not None and dict(record.decision) == task.decision
    assert (record.outcome, record.stage, record.run) == (IMPROVED, "metaschedule", result.run)
    assert record.speedup_low > 1.0
    trials = Trials.open([tmp_path / "log"], fingerprint).of(task.key, "toy", 1)
    outcomes = sorted(t.outcome for t in trials)
    # what was too slow to be timed is no failure, and has no time either
    assert outcomes == sorted([p.DECLINED] + [MEASURED] * (len(SPACE) - 2))


@pytest.mark.slow
def test_real_processes_find_and_commit_the_fast_one(monkeypatch, tmp_path):
    monkeypatch.setattr(toy_rules.Toy, "decisions", (D("slow", 1), D("plain", 1), D("decline", 1), D("wrong", 1)))
    target = toy_rules.target()
    tasks = tasks_of(tvm.IRModule({"f": toy_rules.function(1024)}), target, ROWS)
    config = TuneConfig(model="toy", budget="120s", effort="full", log=str(tmp_path / "log"))
    progress = Progress(1, 120.0, io.StringIO())
    result = tune_tasks(tasks, target, options_of(config, target, ("toy_rules",)), progress)
    (task,) = result.tasks
    assert task.outcome == r.IMPROVED and task.decision == {"mode": "plain", "lanes": 1}, str(result)
    assert task.failures == {p.DECLINED: 1, p.WRONG_RESULT: 1}
    record = TuningLog.open([tmp_path / "log"], fingerprint_of(target)).best(task.key, "toy", 1)
    assert record is not None and dict(record.decision) == task.decision and record.stage == "metaschedule"


def test_trials_are_limited_and_the_default_may_stand(tasks, tmp_path):
    result, _ = tune(tasks, tmp_path, FakeLab(default_cost=1.0), trials=10)
    (task,) = result.tasks
    assert task.outcome == r.KEPT and task.measured == 10 and "not certain" in task.note
    assert not (tmp_path / "log" / toy_rules.target().key / "records.jsonl").exists()


def test_a_clock_that_is_over_ends_the_search(tasks):
    (task,) = tasks.tasks
    now = [0.0]
    clock, seen = Clock(5.0, lambda: now[0]), 0
    for _ in proposals(task, toy_rules.target(), FakeLab(), [30.0, 60.0], clock, trials=100, seed=0):
        seen, now[0] = seen + 1, now[0] + 2.0
    assert seen == proposing.TOGETHER


def test_nothing_that_works_is_said(tasks, tmp_path):
    with pytest.raises(NoValidTrial, match="crash"):
        tune(tasks, tmp_path, FakeLab(lambda d: p.CRASH))


def test_an_interruption_keeps_what_was_measured(tasks, tmp_path):
    target = toy_rules.target()
    lab = FakeLab()
    original = lab.take

    def take(candidate):
        if len(lab.dropped) >= 3:
            raise KeyboardInterrupt
        return original(candidate)

    lab.take = take
    with pytest.raises(KeyboardInterrupt):
        tune(tasks, tmp_path, lab)
    trials = Trials.open([tmp_path / "log"], fingerprint_of(target)).latest("toy", 1, 99)
    assert len(trials) >= 4 and {t.outcome for t in trials} == {MEASURED}


def test_trials_are_written_as_they_come(tasks, tmp_path, monkeypatch):
    """What a kill can cost is one race; each trial has the time at which it was made."""
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    monkeypatch.setattr(recording, "datetime", SimpleNamespace(now=lambda tz: now[0]))
    lab, on_disk = FakeLab(), []
    path = tmp_path / "log" / toy_rules.target().key / "trials.jsonl"
    race = lab.race

    def timed(candidates, size, rounds, default_us):
        if size == 0:
            now[0] += timedelta(minutes=1)
            on_disk.append(len(path.read_bytes().splitlines()) if path.exists() else 0)
        return race(candidates, size, rounds, default_us)

    lab.race = timed
    tune(tasks, tmp_path, lab)
    # the default's own race, then batches of TOGETHER, then the confirmation
    assert on_disk == [0, *range(0, len(SPACE), proposing.TOGETHER), len(SPACE)]
    trials = Trials.open([tmp_path / "log"], fingerprint_of(toy_rules.target())).latest("toy", 1, 99)
    minutes = [t.timestamp[14:16] for t in trials]
    assert len(set(minutes)) == -(-len(SPACE) // proposing.TOGETHER) and minutes == sorted(minutes)


def test_a_best_that_fails_as_it_ships_is_a_failure_too(tasks, tmp_path):
    lab = FakeLab()

    def final(candidate):
        raise Failure(p.WRONG_RESULT, "it differs", candidate)

    lab.final = final
    result, _ = tune(tasks, tmp_path, lab)
    (task,) = result.tasks
    assert task.outcome == r.KEPT and task.failures == {p.WRONG_RESULT: 1} and task.measured == len(SPACE) - 1
    trials = Trials.open([tmp_path / "log"], fingerprint_of(toy_rules.target())).of(task.key, "toy", 1)
    assert [dict(t.decision) for t in trials if t.outcome == p.WRONG_RESULT] == [{"mode": BEST.mode, "lanes": 3}]


def test_ctrl_c_within_tvm_comes_out_as_one():
    # Where tests run in the background of a shell, the signal is ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), proposing._interrupt_waits():
            signal.raise_signal(signal.SIGINT)
            reached = True
        assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def database_of(tmp_path) -> Path:
    return next((tmp_path / "log").glob("*/metaschedule/*/database_workload.json")).parent


def files_of(folder: Path) -> tuple[Path, Path]:
    return folder / "database_workload.json", folder / "database_tuning_record.json"


@pytest.mark.slow
def test_its_database_comes_back_as_the_same_trials(tasks, tmp_path):
    result, _ = tune(tasks, tmp_path, FakeLab({D("wide", 2): p.DECLINED}))
    folder = database_of(tmp_path)
    records, skipped = records_of(*files_of(folder))
    assert not skipped and {(x.decision["mode"], x.decision["lanes"]) for x in records} == {
        (d.mode, d.lanes) for d in SPACE if d != D("wide", 2)
    }
    trials = Trials.open([tmp_path / "log"], fingerprint_of(toy_rules.target())).of(result.tasks[0].key, "toy", 1)
    written = {json.dumps(dict(t.decision), sort_keys=True): t for t in trials if t.outcome == MEASURED}
    for record in records:
        same = written[json.dumps(dict(record.decision), sort_keys=True)]
        assert record.outcome == MEASURED and record.speedup == pytest.approx(same.speedup, rel=1e-3)
        for name in ("workload", "family", "extents", "rule", "rule_version", "target", "sizes", "stage", "run"):
            assert getattr(record, name) == getattr(same, name), name
    # MetaSchedule reads it, too
    assert len(ms.database.JSONDatabase(work_dir=str(folder))) == len(records)


def plain_database(folder: Path) -> None:
    """A trace of schedule primitives, as MetaSchedule's own space gives."""
    func = toy_rules.function(64, rows=16).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    schedule = s_tir.Schedule(mod)
    loops = schedule.get_loops(schedule.get_sblock("toy"))
    schedule.parallel(loops[0])
    database = ms.database.JSONDatabase(work_dir=str(folder))
    workload = database.commit_workload(mod)
    target = tvm.target.Target("llvm")
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1e-3], target, None))


def test_traces_of_its_own_space_are_skipped_with_the_reason(tmp_path):
    plain_database(tmp_path)
    records, skipped = records_of(*files_of(tmp_path))
    assert not records and len(skipped) == 1 and "list of schedule primitives" in skipped[0]


@pytest.mark.slow
def test_hostile_records_become_reasons(tasks, tmp_path):
    tune(tasks, tmp_path)
    workloads, tuned = files_of(database_of(tmp_path))
    lines = tuned.read_text().splitlines()
    good = json.loads(lines[0])

    def altered(change) -> str:
        value = json.loads(lines[0])
        change(value)
        return json.dumps(value)

    def header(**fields) -> str:
        def change(value):
            step = next(s for s in value[1][0][0] if s[2] == ["halo.space"])
            step[1][1] = '"' + json.dumps({**json.loads(step[1][1][1:-1]), **fields}) + '"'

        return altered(change)

    bad = [
        lines[0][: len(lines[0]) // 2],
        "",
        "\x00\xff\xfe",
        "[" * 100_000,
        "3",
        "[]",
        "[[], []]",
        '["0", 1]',
        "null",
        altered(lambda v: v.__setitem__(0, 17)),
        altered(lambda v: v.__setitem__(0, -1)),
        altered(lambda v: v.__setitem__(0, True)),
        altered(lambda v: v[1].__setitem__(1, [1e10])),
        altered(lambda v: v[1].__setitem__(1, [])),
        altered(lambda v: v[1].__setitem__(1, ["fast"])),
        altered(lambda v: v[1][0].__setitem__(1, [])),
        altered(lambda v: v[1][0].__setitem__(1, [[i, 99] for i in range(20)])),
        altered(lambda v: v[1][0].__setitem__(0, [["Annotate", 1, 2, 3]])),
        header(values={"mode": [json.loads("[" * 500 + "]" * 500)], "lanes": [1]}),
        header(seed=10**400),
        header(values={"mode": [], "lanes": []}),
        header(values=3),
        header(target={}),
        header(target={"isa": "x"}),
        header(rule_version="1"),
        header(sizes=[1]),
        header(sizes=7),
        header(default_us="x"),
        header(default_us=1e308),
    ]
    tuned.write_text("\n".join([*bad, json.dumps(good)]), errors="surrogateescape")
    records, skipped = records_of(workloads, tuned)
    # the empty line is none
    assert len(records) == 1 and len(skipped) == len(bad) - 1, "\n".join(skipped)
    assert all("Traceback" not in reason and reason.isprintable() for reason in skipped)


@pytest.mark.slow
def test_hostile_workloads_end_a_process_of_their_own(tasks, tmp_path):
    tune(tasks, tmp_path)
    workloads, tuned = files_of(database_of(tmp_path))
    good = workloads.read_text().strip()
    shape, module = json.loads(good)
    texts = {
        0: good,
        1: good[: len(good) // 2],
        2: "[1, 2]",
        3: json.dumps([shape, module[:1000]]),
        4: json.dumps([shape, "AAAA" * 100]),
        5: json.dumps(["0", module]),
        6: good,
    }
    known = read_workloads(texts)
    assert set(known) == set(texts)
    assert known[0] == known[6] and isinstance(known[0], dict) and known[0]["readable"].startswith("toy[rows,1024]")
    assert all(isinstance(known[i], str) for i in range(1, 5)), known
    workloads.write_bytes(b"\x89\x00\xff" * 50)
    records, skipped = records_of(workloads, tuned)
    assert not records and len(skipped) == len(tuned.read_text().splitlines())
