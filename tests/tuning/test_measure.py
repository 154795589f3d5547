"""The lab of this machine: overlap, blame, limits, pauses, racing forms, and nothing left behind."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import lab_rules
import numpy as np
import pytest
import toy_rules
import tvm

from halo_tvm.tuning.measure import make_lab
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.measure.child import Child, _state
from halo_tvm.tuning.measure.confined import arguments_of
from halo_tvm.tuning.measure.drift import Drift
from halo_tvm.tuning.measure.inputs import Weights
from halo_tvm.tuning.measure.lab import Failure, LabOptions
from halo_tvm.tuning.measure.runner import Runner
from halo_tvm.tuning.measure.scratch import Scratch

D = lab_rules.Decision
MODULES = ("toy_rules", "lab_rules")


def options(**changes):
    return LabOptions(**{"threads": 2, "memory_bytes": 2 << 30, "modules": MODULES, "builders": 2, **changes})


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """One for the tests that leave it alive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(lab_rules.MEETING, str(tmp_path_factory.mktemp("meeting")))
        with make_lab(toy_rules.target(), options(timeout_s=30.0, file_bytes=8 << 20), seed=0, l3_bytes=0) as lab:
            yield lab


def kind_of(call, *arguments):
    """(error class, blamed id) of a call that fails."""
    with pytest.raises(Failure) as caught:
        call(*arguments)
    return caught.value.kind, caught.value.blamed


@pytest.mark.slow
def test_builders_work_at_the_same_time(pool):
    pool.open(lab_rules.task(16))
    ids = pool.order([D("meets", i) for i in range(6)])
    for candidate in ids:
        assert pool.take(candidate) > 0
    builders = {pool._state.candidates[i].library.builder for i in ids}
    assert len(builders) == 2 and builders == set(pool.pids[:2])


@pytest.mark.slow
def test_defaults_are_built_ahead(pool):
    """At the same time, and what is opened first does not wait for the others."""
    for file in Path(os.environ[lab_rules.MEETING]).iterdir():
        file.unlink()
    tasks = [dataclasses.replace(lab_rules.task(columns), default=D("meets")) for columns in (120, 128, 136, 144)]
    with pool._builders.held():  # the first two are begun and do not go on
        pool.prepare(tasks)
        last = pool._states[tasks[-1].key]
        ahead = last.ahead
        job = pool._default_job(last)
        assert ahead.result.cancelled() and job.priority < ahead.priority
    for task in reversed(tasks):
        assert pool.open(task) > 0
    job.discard()


@pytest.mark.slow
def test_a_crash_while_building_is_one_candidates_fault(pool):
    pool.open(lab_rules.task(24))
    before = pool.restarts
    good, crashing, other = pool.order([D("plain"), D("crash"), D("complete")])
    assert kind_of(pool.take, crashing) == (p.CRASH, crashing)
    assert pool.take(good) > 0 and pool.take(other) > 0
    (again,) = pool.order([D("plain", 1)])
    assert pool.take(again) > 0
    samples = pool.race([p.DEFAULT_ID, good, other, again], 0, 3, 10.0)
    assert {i: len(us) for i, us in samples.items()} == {0: 3, good: 3, other: 3, again: 3}
    assert pool.restarts == before + 1


@pytest.mark.slow
def test_a_crash_while_running_is_one_candidates_fault(pool):
    pool.open(lab_rules.task(40))
    before = pool.restarts
    good, aborting, later = pool.order([D("plain"), D("aborts"), D("plain", 1)])
    pool.take(good)
    assert kind_of(pool.take, aborting) == (p.CRASH, aborting)
    assert pool.take(later) > 0
    assert set(pool.race([p.DEFAULT_ID, good, later], 1, 2, 10.0)) == {0, good, later}
    assert pool.restarts == before + 1
    pool._runner.kill()
    assert kind_of(pool.race, [p.DEFAULT_ID, good], 0, 2, 10.0)[0] in (p.CRASH, p.OUT_OF_MEMORY)
    assert set(pool.race([p.DEFAULT_ID, good, later], 0, 2, 10.0)) == {0, good, later}


@pytest.mark.parametrize(
    ("mode", "kind"), [("greedy", p.OUT_OF_MEMORY), ("writes", p.FILE_TOO_LARGE), ("wrong", p.WRONG_RESULT)]
)
def test_failures_have_a_class(pool, mode, kind):
    pool.open(lab_rules.task(56))
    (candidate,) = pool.order([D(mode)])
    assert kind_of(pool.take, candidate) == (kind, candidate)


def test_processes_are_limited(pool):
    pool.open(lab_rules.task(16))
    for pid in pool.pids:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max core file size"] == "0"
        assert limits["Max file size"] == str(8 << 20)
        assert int(limits["Max data size"]) < 16 << 30


def states(pool):
    return [_state(pid) for pid in pool._builders.pids]


@pytest.mark.parametrize("shared", [True, False])
def test_builders_stand_still_while_a_race_runs(pool, monkeypatch, shared):
    pool.open(lab_rules.task(16))
    pool.order([D("plain", i) for i in range(4)])
    seen = {}
    ask = pool._runner.ask

    def watched(request, *arguments):
        seen[request["op"]] = states(pool)
        return ask(request, *arguments)

    monkeypatch.setattr(pool, "_shares_cores", shared)
    monkeypatch.setattr(pool._runner, "ask", watched)
    pool.race([p.DEFAULT_ID], 2, 2, 10.0)
    assert [state == "T" for state in seen[p.RACE]] == [shared, shared]
    assert "T" not in states(pool)


def test_builders_go_on_after_a_race_that_fails(pool, monkeypatch):
    pool.open(lab_rules.task(16))
    monkeypatch.setattr(pool, "_shares_cores", True)
    with pytest.raises(Failure):
        pool.race([p.DEFAULT_ID], 99, 2, 10.0)
    assert "T" not in states(pool)
    (candidate,) = pool.order([D("plain")])
    assert pool.take(candidate) > 0


def test_a_task_comes_back_with_its_candidates(pool, monkeypatch):
    first, second = lab_rules.task(72), lab_rules.task(80)
    pool.open(first)
    (kept,) = pool.order([D("plain")])
    pool.take(kept)
    pool.open(second)
    asked = []
    ask = pool._runner.ask
    monkeypatch.setattr(pool._runner, "ask", lambda request, *rest: asked.append(request["op"]) or ask(request, *rest))
    pool.open(first)
    assert asked == []
    assert set(pool.race([p.DEFAULT_ID, kept], 0, 2, 10.0)) == {0, kept}


def test_racing_forms_are_raced_against_the_racing_default(pool, monkeypatch):
    pool.open(lab_rules.task(88))
    special, complete = pool.order([D("plain", 1), D("complete")])
    pool.take(special)
    pool.take(complete)
    raced = []
    monkeypatch.setattr(pool._drift, "repeats", lambda _: False)
    ask = pool._runner.ask
    monkeypatch.setattr(pool._runner, "ask", lambda request, *rest: raced.append(request) or ask(request, *rest))
    pool.race([p.DEFAULT_ID, special], 0, 2, 10.0)
    pool.race([p.DEFAULT_ID, special, complete], 0, 2, 10.0)
    pool.race([p.DEFAULT_ID, complete], 0, 2, 10.0)
    pool.race([p.DEFAULT_ID], 0, 2, 10.0)
    pool.final(complete)  # nothing to do: it is complete
    pool.race([p.DEFAULT_ID, complete], 0, 2, 10.0)
    pool.final(special)
    pool.race([p.DEFAULT_ID, special], 0, 2, 10.0)
    labels = [request["labels"] for request in raced if request["op"] == p.RACE]
    assert labels == [
        ["0-racing", f"{special}-racing"],
        ["0-racing", f"{special}-racing", f"{complete}-racing"],
        ["0-racing", f"{complete}-racing"],
        ["0-full"],
        ["0-full", f"{complete}-racing"],
        ["0-full", f"{special}-full"],
    ]


def test_a_default_without_a_racing_form_races_as_it_is(pool):
    pool.open(dataclasses.replace(lab_rules.task(112), default=D("complete")))
    (special,) = pool.order([D("plain")])
    pool.take(special)
    assert set(pool.race([p.DEFAULT_ID, special], 0, 2, 10.0)) == {0, special}


def test_what_is_wrong_at_odd_sizes_does_not_ship(pool):
    """The heart of racing forms: a decision that is right where it is timed, and nowhere else."""
    pool.open(lab_rules.task(96))
    (candidate,) = pool.order([D("wrong_tail")])
    pool.take(candidate)
    assert pool._state.candidates[candidate].library.special
    pool.race([p.DEFAULT_ID, candidate], 0, 2, 10.0)
    assert kind_of(pool.final, candidate) == (p.WRONG_RESULT, candidate)
    assert candidate not in pool._state.candidates


def test_dropped_candidates_leave_no_files(pool):
    pool.open(lab_rules.task(104))
    ids = pool.order([D("plain", i) for i in range(3)])
    for candidate in ids:
        pool.take(candidate)
    paths = [pool._state.candidates[i].library.path for i in ids]
    assert all(path.exists() for path in paths)
    pool.drop(ids)
    assert not any(path.exists() for path in paths)
    assert not list(pool._scratch.path.glob("*.o"))


@pytest.mark.parametrize("disturbed", [1, 2])
def test_what_looks_hopeless_gets_a_second_look(pool, monkeypatch, disturbed):
    """A long call is a single shot, which other work may meet; twice is no accident."""
    pool.open(lab_rules.task(104))
    (candidate,) = pool.order([D("plain", 7)])
    pool.take(pool.order([D("plain", 8)])[0])  # all of the default's first times are known
    ask, left = pool._runner.ask, [disturbed]

    def slow_at_first(request, *rest):
        reply = ask(request, *rest)
        if request["op"] != p.PROBE:
            return reply
        left[0] -= 1
        return {**reply, "us": 1e9 if left[0] >= 0 else 0.001}

    monkeypatch.setattr(pool._runner, "ask", slow_at_first)
    if disturbed == 1:
        assert pool.take(candidate) == 0.001
        assert candidate in pool._state.candidates
    else:
        assert kind_of(pool.take, candidate) == (p.SLOWER, candidate)
        assert candidate not in pool._state.candidates


@pytest.mark.slow
def test_dropping_when_the_runner_is_gone(pool):
    """It has forgotten everything: nobody's failure."""
    pool.open(lab_rules.task(104))
    ids = pool.order([D("plain", i) for i in range(2)])
    for candidate in ids:
        pool.take(candidate)
    pool._runner.kill()
    pool.drop(ids[:1])
    assert set(pool.race([p.DEFAULT_ID, ids[1]], 0, 2, 10.0)) == {0, ids[1]}


@pytest.mark.slow
def test_an_interruption_does_not_shift_replies(pool, monkeypatch):
    """The reply to what was interrupted must not answer the next request."""
    pool.open(lab_rules.task(104))
    (candidate,) = pool.order([D("plain")])
    pool.take(candidate)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool._runner, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.race([p.DEFAULT_ID], 0, 2, 10.0)
    samples = pool.race([p.DEFAULT_ID, candidate], 0, 3, 10.0)
    assert {i: len(us) for i, us in samples.items()} == {0: 3, candidate: 3}


def test_an_interruption_while_builders_are_being_held(pool, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(pool._builders._children[1], "pause", interrupted)
    with pytest.raises(KeyboardInterrupt), pool._builders.held():
        pass
    assert "T" not in states(pool)


def test_a_race_on_another_machine_is_repeated_once(pool, monkeypatch):
    pool.open(lab_rules.task(16))
    references = iter([100.0, 102.0, 98.0, 130.0, 140.0])
    ask = pool._runner.ask

    def at_speed(request, *arguments):
        reply = ask(request, *arguments)
        return {**reply, "reference_us": next(references)} if request["op"] == p.RACE else reply

    monkeypatch.setattr(pool._runner, "ask", at_speed)
    monkeypatch.setattr(pool, "_drift", Drift())
    for _ in range(4):
        pool.race([p.DEFAULT_ID], 0, 2, 10.0)
    assert pool._drift.repeated == 1 and next(references, None) is None
    assert pool.drift() == pytest.approx(140 / 101 - 1)


def test_a_machine_that_is_never_itself_is_measured_as_it_is():
    drift = Drift()
    for i in range(80):
        us = 100.0 if i % 2 else 300.0
        drift.repeats(us)
        drift.note(us)
    assert 2 < drift.repeated <= 2 + 80 // 8


@pytest.mark.slow
def test_hanging_candidates_run_into_the_watchdog():
    with make_lab(toy_rules.target(), options(timeout_s=6.0), seed=0, l3_bytes=0) as lab:
        lab.open(lab_rules.task(16))
        hanging, good, waiting = lab.order([D("hang"), D("plain"), D("waits")])
        assert lab.take(good) > 0  # the other builder built it meanwhile
        assert kind_of(lab.take, hanging) == (p.TIMEOUT, hanging)
        assert kind_of(lab.take, waiting) == (p.TIMEOUT, waiting)
        assert len(lab.race([p.DEFAULT_ID, good], 0, 2, 10.0)[good]) == 2
        pids, directory = lab.pids, lab._scratch.path
        assert len(list(directory.glob("*.so"))) > 1
    assert not directory.exists() and not any(map(is_running, pids))


@pytest.mark.slow
def test_a_pause_before_the_start_holds_the_process():
    child = Child("builder", arguments_of(1 << 30, 1 << 20, ()), threads=1)
    try:
        child.pause()
        child.start()
        child.await_pause()
        assert _state(child.pid) == "T"
        child.resume()
        with pytest.raises(Exception, match="no such request"):
            child.ask({"op": "nonsense"}, 30.0)
    finally:
        child.close()
    assert child.pid is None


def test_a_process_outlives_the_thread_that_asked_for_it() -> None:
    child = Child("builder", arguments_of(1 << 30, 1 << 20, ()), threads=1)
    thread = threading.Thread(target=lambda: (child.start(), child._greet()))
    thread.start()
    thread.join()
    try:
        pid = child.pid
        time.sleep(0.2)  # a signal needs no more
        assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    finally:
        child.close()
    assert not Path(f"/proc/{pid}").exists()


def test_time_in_a_pause_does_not_count(monkeypatch):
    child = Child("builder", (), threads=1)
    now = [100.0]
    monkeypatch.setattr("halo_tvm.tuning.measure.child.time.monotonic", lambda: now[0])
    left = child._stopwatch(10.0)
    now[0] += 4
    child.pause()
    now[0] += 1000
    assert left() == 6
    child.resume()
    now[0] += 1
    assert left() == 5


KILLED = """
import sys, time, toy_rules, lab_rules
from halo_tvm.targets import TARGETS
from halo_tvm.tuning.measure import make_lab
from halo_tvm.tuning.measure.drift import Drift
from halo_tvm.tuning.measure.inputs import Weights
from halo_tvm.tuning.measure.lab import LabOptions
lab = make_lab(toy_rules.target(), LabOptions(2, 2 << 30, modules=("toy_rules", "lab_rules"), builders=2),
               seed=0, l3_bytes=0)
lab.open(lab_rules.task(16))
lab.order([lab_rules.Decision("hang", i) for i in range(4)])
time.sleep(0.2)
if sys.argv[1] == "held":
    for child in lab._builders._children:
        child.pause()
        child.await_pause()
print(lab._scratch.path, *lab.pids, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["held", pytest.param("busy", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_killed_tuner_leaves_nothing(how, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path)),
        "TMPDIR": str(tmp_path),
    }
    process = subprocess.Popen([sys.executable, "-c", KILLED, how], stdout=subprocess.PIPE, text=True, env=environment)
    directory, *pids = process.stdout.readline().split()
    assert len(pids) == 3 and all(is_running(int(pid)) for pid in pids)
    if how == "held":
        assert [_state(int(pid)) for pid in pids[:2]] == ["T", "T"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(200):
        if not any(is_running(int(pid)) for pid in pids):
            break
        time.sleep(0.05)
    assert not any(is_running(int(pid)) for pid in pids)
    # Nobody is left who could clean up: the next run does.
    code = "from halo_tvm.tuning.measure.scratch import Scratch; Scratch().close()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not Path(directory).exists() and list(tmp_path.iterdir()) == []


def test_the_scratch_directory_of_a_living_tuner_stays(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = Scratch()
    (first.path / "1.so").touch()
    second = Scratch()
    assert (first.path / "1.so").exists() and second.path != first.path
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def is_running(pid):
    return _state(pid) not in "XZ"


def test_warm_means_one_copy_of_the_weights():
    func = toy_rules.function(64, rows=8)
    cold, warm = (Weights(func, (0,), 0, l3_bytes) for l3_bytes in (1 << 14, 0))
    assert len(warm.sets) == 1 and len(cold.sets) == 16
    assert cold.bytes == 16 * warm.bytes == 2 * (1 << 14)
    np.testing.assert_array_equal(cold.sets[0][0].numpy(), cold.sets[-1][0].numpy())
    lab = make_lab(toy_rules.target(), options(cold_cache=False), seed=0, l3_bytes=1 << 20)
    assert lab._l3_bytes == 0
    lab.close()


def test_tasks_make_room_for_each_other():
    """The least recently used goes when arguments take more than half of the memory."""
    tasks = [lab_rules.task(columns) for columns in (64, 72, 80)]
    target = {"target": toy_rules.target().name, "cores": 2}
    common = {"op": p.OPEN, "seed": 0, "l3_bytes": 0, "weights": (), "sizes": [[4096]], "outputs": (1,), **target}
    requests = [{**common, "key": t.key, "ir": tvm.ir.save_json(tvm.IRModule({"main": t.func}))} for t in tasks]
    size = 4096 * 64 * 4 * 2
    runner = Runner(memory_bytes=5 * size)

    def opened(request):
        evicted = runner.answer(request, None)["evicted"]
        runner._benches._open[request["key"]]._at((4096,))  # as the first call does
        return evicted

    first, second, third = (t.key for t in tasks)
    assert [opened(r) for r in requests] == [[], [], []]
    assert opened(requests[0]) == []  # it is there
    assert list(runner._benches._open) == [second, third, first]
    assert opened({**requests[1], "key": "fourth"}) == [second]
    with pytest.raises(AssertionError, match="opened first"):
        runner.answer({"op": p.PROBE, "key": second}, None)
