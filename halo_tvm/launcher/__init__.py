"""The threads that a library brings along: `parallel_launch.cc` is linked into every library for a CPU.

Code that TVM generates launches its parallel loops through a pointer, into which the loader writes TVM's own pool.
That pool belongs to the calling thread, binds it to a core, is as large as the whole process's and lives until the
thread ends. A session wants the opposite: its own number of threads, whoever calls, gone when it is closed. So it
asks the library for a pool of its own and uses it around every call; who calls without asking has TVM's.
"""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("parallel_launch.cc")
POOL, USE, END = "halo_pool", "halo_use", "halo_end"  # see the source
