"""The pool that a library brings along, and the short road of calls whose inputs are as kernels need them."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny

from halo_tvm.errors import InputError, UsageError
from halo_tvm.runtime import Module, load

CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture(scope="module")
def pool_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_threads(tmp_path_factory.mktemp("artifact") / "pool.halo", pool=True)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Module]:
    with load(tiny.write_busy(tmp_path_factory.mktemp("artifact") / "busy.halo"), threads=len(CPUS[:2])) as module:
        yield module


def threads_now() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_one_thread_is_the_caller(pool_artifact: Path) -> None:
    before = threads_now()
    with load(pool_artifact, threads=1) as module:
        assert set(module(np.zeros(64, np.int64)).tolist()) == {threading.get_native_id()}
        assert threads_now() <= before
    assert sorted(os.sched_getaffinity(0)) == CPUS


@two_cpus
def test_threads_are_the_library_s_own_and_end_at_once(pool_artifact: Path) -> None:
    before = threads_now()
    modules = [load(pool_artifact, threads=2) for _ in range(3)]
    assert not threads_now() - before
    for module in modules:
        module(np.zeros(64, np.int64))  # the first loop is offered to them
    assert len(threads_now() - before) == 3  # one beside the caller each
    for module in modules[:2]:
        module.close()
        module.close()
    assert len(threads_now() - before) == 1
    with pytest.raises(UsageError, match="expected an open module, found a closed one; load it again"):
        modules[0](np.zeros(64, np.int64))
    del module, modules
    gc.collect()
    assert not threads_now() - before


def test_every_element_is_computed_once_whatever_a_loop_costs(busy: Module) -> None:
    random = np.random.default_rng(0)
    small = [(9, 1)] * 300  # for long enough to have few pieces
    for size, rounds in [
        *small,
        (64, 20_000),
        *small,
        (1, 3),
        (1000, 1),
        (1000, 1),
        (7, 100_000),
        (7, 1),
        (2, 2),
        (100_000, 30),
        (3, 5),
    ] * 3:
        x = random.standard_normal(size, dtype=np.float32)
        expected = x.copy()
        for _ in range(min(rounds, 200)):  # it has converged by then
            expected = expected * np.float32(0.5) + np.float32(1)
        np.testing.assert_allclose(busy(x, np.array([rounds], np.float32)), expected, rtol=1e-6)


@two_cpus
def test_long_loops_run_on_all_threads_short_ones_on_the_caller(pool_artifact: Path, busy: Module) -> None:
    """What a loop costs is measured as it runs, so a machine with other work may mislead some calls, not all."""
    with load(pool_artifact, threads=2) as module:
        assert any(len(set(module(np.zeros(64, np.int64)).tolist())) == 1 for _ in range(500))  # microseconds

    def others_worked() -> bool:
        clock = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID), time.thread_time()
        busy(np.ones(64, np.float32), np.array([2_000_000], np.float32))
        spent = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) - clock[0], time.thread_time() - clock[1]
        return spent[0] > 1.3 * spent[1]

    assert any(others_worked() for _ in range(10))


def asleep(thread: str) -> bool:
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def pool_thread(module: Module, x: np.ndarray, rounds: np.ndarray) -> str:
    """The one thread of a module that has run nothing yet."""
    before = threads_now()
    for _ in range(2):
        module(x, rounds)
    (thread,) = threads_now() - before
    return thread


@two_cpus
def test_a_thread_is_woken_on_another_core_than_the_caller_s(tmp_path: Path) -> None:
    """On the caller's it would hold the call up until it has spun in vain."""
    x, rounds = np.ones(64, np.float32), np.array([20_000], np.float32)
    with load(tiny.write_busy(tmp_path / "busy.halo"), threads=2) as module:
        thread = pool_thread(module, x, rounds)
        try:
            for core in CPUS[:2] * 2:
                os.sched_setaffinity(0, {core})
                while not asleep(thread):
                    time.sleep(0.001)
                module(x, rounds)
                assert os.sched_getaffinity(int(thread)) == set(CPUS) - {core}
        finally:
            os.sched_setaffinity(0, CPUS)


@two_cpus
def test_a_thread_that_is_woken_too_late_waits_for_the_next_loop(tmp_path: Path) -> None:
    """Or many a call pays for waking it. A machine with other work puts some calls off for longer than it waits."""
    x = np.ones(64, np.float32)
    with load(tiny.write_busy(tmp_path / "busy.halo"), threads=2) as module:
        thread = pool_thread(module, x, np.array([20_000], np.float32))

        def times_asleep() -> int:
            status = Path(f"/proc/self/task/{thread}/status").read_text()
            return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

        slept = 0
        for rounds in [150, 200, 250] * 8:  # some 15 to 30 us
            time.sleep(0.005)
            before = times_asleep()
            for _ in range(100):
                module(x, np.array([rounds], np.float32))
            slept += times_asleep() - before
        assert slept < 240  # of 2,400 calls


def test_callers_queue_and_a_queued_run_keeps_its_place(busy: Module) -> None:
    rounds = np.array([50], np.float32)
    answers: dict[int, np.ndarray] = {}

    def ask(i: int) -> None:
        for _ in range(20):
            answers[i] = busy(np.full(i, i, np.float32), rounds)

    callers = [threading.Thread(target=ask, args=(i,)) for i in range(1, 7)]
    for caller in callers:
        caller.start()
    pending = busy.run_async(np.full(9, 2, np.float32), rounds)
    for caller in callers:
        caller.join()
    assert pending.result().shape == (9,)
    assert all(answers[i].shape == (i,) and np.allclose(answers[i], 2) for i in range(1, 7))


def test_known_inputs_take_the_short_road_and_others_their_sentence(artifact: Path) -> None:
    with load(artifact) as module:
        x, ids, scale = np.ones((2, tiny.K), np.float32), np.zeros(2, np.int64), np.ones((2, 1), np.float32)
        first = module(x, ids, scale)
        assert module._direct.run((x, ids, scale), {}) is not None
        assert module._direct.run((), {"scale": scale, "x": x, "ids": ids}) is not None
        again = module(x[:], ids.copy(), scale)
        assert all(np.array_equal(a, b) for a, b in zip(first, again))
        again[1][...] = 5  # the model hands x through: its output is the caller's own
        module(x * 2, ids, scale)
        assert (again[1] == 5).all() and (x == 1).all()
        strided = np.ones((2, 2 * tiny.K), np.float32)[:, ::2]
        assert np.array_equal(module(strided, ids, scale)[0], first[0])
        assert module._direct.run((np.ones((3, tiny.K), np.float32), ids, scale), {}) is None
        assert module._direct.run((x.astype(np.float64), ids, scale), {}) is None
        with pytest.raises(InputError, match="expected values from 0 to 99, found 100"):
            module(x, np.array([0, 100]), scale)
