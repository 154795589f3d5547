"""Memory of runs behind a closed module: little is kept for the next one, much goes back to the operating system.

TVM's pool keeps the blocks of runs. Emptied into the C library's heap, a block is of no use to the next run that asks
for as much: glibc looks for the size and the alignment together, and takes new memory. A process that loaded and closed
modules for ever would grow by their activations each time. So the pool is emptied only where much may be in it, and the
heap is asked to give its free pages back.
"""

from __future__ import annotations

import ctypes
import os

import tvm_ffi

_KEPT_BYTES = 64 << 20
_least: int | None = None  # resident bytes of this process, the least since pools were emptied last


def opened() -> None:
    """To be called before a module's memory is taken."""
    global _least
    resident = _resident()
    _least = resident if _least is None or resident is None else min(_least, resident)


def closed(on_host: bool) -> None:
    """To be called behind the last run of a module: empties the pools of a GPU, and of the host if it grew by much."""
    global _least
    resident = _resident()
    if on_host and resident is not None and _least is not None and resident - _least < _KEPT_BYTES:
        return
    tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # of glibc
        trim(0)
    _least = _resident()


def _resident() -> int | None:
    """Bytes of memory that this process has; None where no Linux tells."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
