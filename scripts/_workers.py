"""Cases of a conformance suite in worker processes: one that crashes or hangs costs its case and no other."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import sys
import time
from collections.abc import Callable, Iterator, Sequence

Run = Callable[[str], object]


def run_all(
    names: Sequence[str], make: Callable[..., Run], arguments: tuple[object, ...], *, jobs: int, limit_s: float = 120
) -> Iterator[tuple[str, object, str]]:
    """(name, result, "") of every case in the order in which they end, or (name, None, how its process ended).

    `make(*arguments)` is called once in each worker and gives the function that runs a case by its name.
    """
    context = multiprocessing.get_context("spawn")
    todo = list(reversed(names))
    workers: dict[object, tuple[object, str, float]] = {}

    def start() -> None:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, make, arguments), daemon=True)
        process.start()
        there.close()
        give(here, process)

    def give(pipe, process) -> None:
        if todo:
            name = todo.pop()
            pipe.send(name)
            workers[pipe] = (process, name, time.monotonic() + limit_s)
        else:
            pipe.close()

    for _ in range(min(jobs, len(names))):
        start()
    done = 0
    while workers:
        first = min(deadline for _, _, deadline in workers.values())
        ready = multiprocessing.connection.wait(list(workers), timeout=max(first - time.monotonic(), 0))
        late = [pipe for pipe, (_, _, deadline) in workers.items() if deadline <= time.monotonic()]
        for pipe in ready or late:
            process, name, _ = workers.pop(pipe)
            try:
                if not ready:
                    raise EOFError(f"no answer within {limit_s:.0f} s")
                result = pipe.recv()
            except (EOFError, OSError) as reason:
                process.kill()
                process.join()
                yield name, None, str(reason) or f"exit code {process.exitcode}"
                if todo:
                    start()
            else:
                yield name, result, ""
                give(pipe, process)
            done += 1
            if sys.stderr.isatty() or done % 200 == 0:
                print(f"{done} of {len(names)}", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr)


def _work(pipe, make: Callable[..., Run], arguments: tuple[object, ...]) -> None:
    """One worker: names in, results out."""
    import warnings

    warnings.filterwarnings("ignore")
    run = make(*arguments)
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(run(name))
