"""What a library brings along: code in C++ that is linked into every library for a CPU.

`parallel_launch.cc`: code that TVM generates launches its parallel loops through a pointer, into which the loader
writes TVM's own pool. That pool belongs to the calling thread, binds it to a core, is as large as the whole process's
and lives until the thread ends. A session wants the opposite: its own number of threads, whoever calls, gone when it is
closed. So it asks the library for a pool of its own and uses it around every call; who calls without asking has TVM's.

`tensors.cc` checks the tensors that enter a library (`argument_checks.py`) and makes views of their rows
(`passes/tile_batch.py`); `tile_registers.cc` asks for AMX's registers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..targets import Target

SOURCE = Path(__file__).with_name("parallel_launch.cc")
_TENSORS = Path(__file__).with_name("tensors.cc")
_TILES = Path(__file__).with_name("tile_registers.cc")
POOL, USE, END, DENSE, ROWS = "halo_pool", "halo_use", "halo_end", "halo_dense", "halo_rows"  # see the sources


def sources(target: Target) -> tuple[Path, ...]:
    """What is linked into every library for `target`, in C++."""
    return (*((SOURCE, _TENSORS) if target.spec.own_launcher else ()), *((_TILES,) if target.isa.tiles else ()))
