"""Timing on the first GPU that this process sees, by its own events; see docs/measurement.md.

    one call           what a first one costs
    fills of memory    longer than the host needs to launch what follows, and nothing of it is left in the caches
    event              calls, one behind the other        event
A kernel of some microseconds takes less time than its launch: a clock around the calls would show the host's pace.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import tvm

from ...runtime.host import first_gpu, load_cuda_runtime
from . import protocol as p
from .bench import Bench
from .build import NAME
from .inputs import Arguments

MOST_QUEUED = 64  # calls between two events: a GPU takes some hundreds of launches before it has the host wait
_FILLED_BYTES = 256 << 20  # more than the last cache of any level
_LAUNCH_US = 10.0  # of one call from Python, generously
_REFERENCES = 5


class GpuClock:
    """Two events, and memory to fill. `EnvironmentProblem` where there is no GPU or no runtime for it."""

    def __init__(self) -> None:
        self._cudart = load_cuda_runtime()
        self._cudart.cudaGetErrorString.restype = ctypes.c_char_p
        self._begin, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (self._begin, self._end):
            self._checked("cudaEventCreate", ctypes.byref(event))
        self._filled = tvm.runtime.empty((_FILLED_BYTES,), "uint8", tvm.cuda(0))
        self._address = ctypes.c_void_p(self._filled.data_ptr())
        self._fill_us = math.inf
        self.time_us()

    def time_us(self) -> float:
        """Microseconds of one fill, the best of a few: the same work whatever is measured (`drift.Drift`)."""
        best = math.inf
        for _ in range(_REFERENCES):
            self._checked("cudaEventRecord", self._begin, None)
            self._fill(1)
            best = min(best, self._since_begin())
        self._fill_us = min(self._fill_us, best)  # clocks of a GPU that had nothing to do are low at first
        return best

    def timed_us(self, function: Callable[..., object], sets: Sequence[Sequence[object]], *, warm: bool) -> float:
        """Microseconds of a call, the mean of calls with each of `sets`, at most `MOST_QUEUED`.

        What a first call costs (code is loaded, a workspace grows) is before the fills. The first call that counts
        finds nothing of its arguments in the caches, unless `warm`: then one more that does not count goes before it.
        """
        assert 0 < len(sets) <= MOST_QUEUED, f"{len(sets)} calls"
        function(*sets[0])
        self._fill(math.ceil((len(sets) + warm) * _LAUNCH_US / max(self._fill_us, 1.0)))
        if warm:
            function(*sets[0])
        self._checked("cudaEventRecord", self._begin, None)
        for values in sets:
            function(*values)
        return self._since_begin() / len(sets)

    def free_bytes(self) -> int:
        """Of the GPU's memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._checked("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def _fill(self, times: int) -> None:
        for _ in range(times):
            self._checked("cudaMemsetAsync", self._address, 0, ctypes.c_size_t(_FILLED_BYTES), None)

    def _since_begin(self) -> float:
        """Microseconds from the first event to when all that was queued behind it is done."""
        self._checked("cudaEventRecord", self._end, None)
        self._checked("cudaEventSynchronize", self._end)
        ms = ctypes.c_float()
        self._checked("cudaEventElapsedTime", ctypes.byref(ms), self._begin, self._end)
        return ms.value * 1e3

    def _checked(self, name: str, *arguments: object) -> None:
        code = getattr(self._cudart, name)(*arguments)
        if code:
            said = self._cudart.cudaGetErrorString(code).decode()
            raise p.Failed(p.RUN_ERROR, f"{name} says {said!r} (error {code})")


class GpuBench(Bench):
    """A bench whose libraries run on the GPU; arguments lie there."""

    def __init__(self, request: dict, clock: GpuClock) -> None:
        self._clock = clock
        # A GPU of another kind than the level's device may have a larger cache.
        l2_bytes = max(request["l3_bytes"], first_gpu().l2_bytes) if request["l3_bytes"] else 0
        super().__init__({**request, "l3_bytes": l2_bytes}, tvm.cuda(0), MOST_QUEUED)

    def _once(self, module: tvm.runtime.Module, arguments: Arguments) -> float:
        return self._turn(module, arguments, 1)

    def _turn(self, module: tvm.runtime.Module, arguments: Arguments, number: int) -> float:
        sets = list(arguments.turns(min(number, MOST_QUEUED)))
        return self._clock.timed_us(module[NAME], sets, warm=not arguments.is_cold)
