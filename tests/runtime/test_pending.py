"""Runs that are queued: outputs, order, errors, and what is refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tiny

from halo_tvm.errors import InputError, UsageError
from halo_tvm.runtime import Module, Pending, load
from halo_tvm.runtime.tensors import aligned_empty


def given(value: float, batch: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.full((batch, tiny.K), value, np.float32), "ids": np.zeros(batch, np.int64)}


def busy(module: Module) -> threading.Event:
    """The module's thread waits until the event is set, or for half a minute."""
    begun, release = threading.Event(), threading.Event()

    def task() -> None:
        begun.set()
        release.wait(30)

    threading.Thread(target=lambda: module._session.call(task), daemon=True).start()
    assert begun.wait(30)
    return release


def test_outputs_are_those_of_the_call_and_nobody_waits_before(module: Module) -> None:
    release = busy(module)
    pending = [module.run_async(**given(i)) for i in (1.0, 2.0, 3.0)]
    assert all(isinstance(p, Pending) for p in pending)
    with pytest.raises(TimeoutError, match="within 0.01 s, and goes on: ask again"):
        pending[2].result(0.01)
    assert not any(p.done for p in pending)
    release.set()
    found = pending[2].result(60)
    assert all(p.done for p in pending), "runs are done in the order they were queued"
    for p, value in zip(pending, (1.0, 2.0, 3.0)):
        for a, b in zip(p.result(), module(**given(value)), strict=True):
            np.testing.assert_array_equal(a, b)
    assert pending[2].result()[0] is found[0], "asked again, it gives the same"


def test_many_threads_may_ask(module: Module) -> None:
    release = busy(module)
    pending, found = module.run_async(**given(1.0)), []
    threads = [threading.Thread(target=lambda: found.append(pending.result(60)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and all(f is found[0] for f in found)


def test_one_who_waits_for_ever_keeps_nobody_from_a_timeout(module: Module) -> None:
    release = busy(module)
    pending = module.run_async(**given(1.0))
    threading.Thread(target=pending.result, daemon=True).start()
    with pytest.raises(TimeoutError):
        pending.result(0.1)
    release.set()
    assert pending.result(60) is pending.result(60)


def test_wrong_inputs_are_refused_at_once(module: Module) -> None:
    with pytest.raises(InputError, match="input 'x': expected size 64 in axis 1"):
        module.run_async(x=np.zeros((2, 3), np.float32), ids=np.zeros(2, np.int64))


def test_an_output_that_is_an_input_is_a_copy(module: Module) -> None:
    arrays = given(1.0)
    _, x, _ = module.run_async(**arrays).result(60)
    arrays["x"][...] = 7.0
    assert (x == 1.0).all()


def test_an_input_may_change_as_soon_as_the_run_is_done(module: Module) -> None:
    arrays = {name: aligned_empty(a.shape, a.dtype) for name, a in given(1.0).items()}  # the run reads them in place
    arrays["x"][...], arrays["ids"][...] = 1.0, 0
    pending = module.run_async(**arrays)
    while not pending.done:
        time.sleep(0.001)
    arrays["x"][...] = 7.0
    assert (pending.result()[1] == 1.0).all()


def test_what_a_run_raises_is_raised_where_it_is_asked_for(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("match_cast error: shapes do not fit (3 vs. 4)")

    monkeypatch.setattr(module._session, "_main", fails)
    pending = module.run_async(**given(1.0))
    for _ in range(2):
        with pytest.raises(InputError, match="found 3 where the model needs 4"):
            pending.result(60)
    assert pending.done


def test_after_close_nothing_is_queued_and_what_was_is_done(artifact: Path) -> None:
    with load(artifact) as opened:
        pending = opened.run_async(**given(1.0))
    assert pending.done and pending.result()[0].shape == (2, tiny.N)
    with pytest.raises(UsageError, match="found a closed one"):
        opened.run_async(**given(1.0))
