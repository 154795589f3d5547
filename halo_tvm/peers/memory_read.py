"""A read of as many bytes as a step of a language model reads, as an engine that takes its turns."""

from __future__ import annotations

import time

from ..ceilings.measure import reader
from ..targets import resolve, usable_cpus
from .protocol import answer_all


class _Worker:
    def execute(self, message: dict[str, object]) -> dict[str, object]:
        """`load` with `threads` and `size_bytes`, then `read` so many `times`: the seconds of one."""
        if message["command"] == "load":
            import tvm  # noqa: F401 - brings the pool of threads

            from ..runtime.runner import configure_threads

            threads = int(str(message["threads"]))
            configure_threads(threads, usable_cpus())
            wanted = int(str(message["size_bytes"]))
            self.read, made = reader(resolve("cpu", cores=threads), threads, wanted)
            self.scale = wanted / made
            return {}
        if message["command"] == "read":
            times = int(str(message["times"]))
            self.read(1)
            start = time.perf_counter()
            self.read(times)
            return {"seconds": (time.perf_counter() - start) / times * self.scale}
        raise AssertionError(f"unknown command {message['command']!r}")


if __name__ == "__main__":
    answer_all(_Worker().execute)
