"""Whether the machine stays the same while it measures: a fixed kernel timed before every race."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import tvm

from ...ceilings.kernels import ACCUMULATORS, fma_kernel
from ...targets import Target
from .build import build

_STEPS = 60_000  # of 12 multiply-adds each: 0.2 to 0.4 ms
_CALLS = 4
_OFF = 0.15  # a race whose reference is this far from the run's median is repeated
_ENOUGH = 3  # references that make a median
_FEW, _SHARE = 2, 8  # races that may be repeated: so many, and one in eight


class Reference:
    """The kernel, in the runner: multiply-adds in registers on all threads, the same in every race of a run."""

    def __init__(self, target: Target, threads: int) -> None:
        lanes = target.lanes_f32
        self._module = build(fma_kernel(threads, lanes), target)
        self._kernel = self._module["main"]
        self._out = tvm.runtime.tensor(np.ones((threads, ACCUMULATORS, lanes), "float32"))

    def time_us(self) -> float:
        """Microseconds of a call: the best of a few, behind one that wakes the threads."""
        self._kernel(self._out, 1)
        best = float("inf")
        for _ in range(_CALLS):
            start = time.perf_counter()
            self._kernel(self._out, _STEPS)
            best = min(best, time.perf_counter() - start)
        return best * 1e6


class Drift:
    """The tuner's account of it."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self.repeated = 0

    def repeats(self, reference_us: float) -> bool:
        """Whether a race with this reference should be repeated; counted when it should.

        Not on a machine that is never itself: there the noise is what there is to measure in.
        """
        if len(self._seen) < _ENOUGH or self.repeated >= _FEW + len(self._seen) // _SHARE:
            return False
        if abs(reference_us / median(self._seen) - 1.0) <= _OFF:
            return False
        self.repeated += 1
        return True

    def note(self, reference_us: float) -> None:
        self._seen.append(reference_us)

    @property
    def largest(self) -> float:
        """The largest relative distance of a reference from their median: 0.1 means ten percent."""
        if not self._seen:
            return 0.0
        middle = median(self._seen)
        return max(abs(us / middle - 1.0) for us in self._seen)
