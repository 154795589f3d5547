"""State between calls: what one call leaves, the next one finds, whichever thread asks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from halo_tvm.artifact import FunctionSpec, TensorSpec
from halo_tvm.runtime.state import KeptState

X, TOTAL = TensorSpec("x", (2,), "float32"), TensorSpec("total", (2,), "float32")
SPEC = FunctionSpec(inputs=(X, TOTAL), outputs=(TensorSpec("y", (2,), "float32"), TOTAL), state=("total",))


def running_sum(given: Mapping[str, object]) -> Sequence[np.ndarray]:
    before = np.asarray(given.get("total", np.zeros(2, np.float32)))
    time.sleep(1e-5)  # another thread may read the same sum meanwhile, if it is let
    after = before + given["x"]
    return after, after


def test_eight_threads_lose_no_update() -> None:
    kept = KeptState(SPEC)

    def caller(_: int) -> list[float]:
        one = np.ones(2, np.float32)
        return [float(kept.call((), {"x": one}, running_sum)[0][0]) for _ in range(40)]

    with ThreadPoolExecutor(8) as pool:
        sums = [list(found) for found in pool.map(caller, range(8))]
    assert sorted(total for found in sums for total in found) == list(range(1, 321))
    assert all(found == sorted(found) for found in sums)
    (last,) = kept.call((), {"x": np.zeros(2, np.float32)}, running_sum)
    assert list(last) == [320, 320]
