"""What a search needs of whatever measures: candidates are ordered, built somewhere, and raced against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..task import Task
from .protocol import Failed


@dataclass(frozen=True)
class LabOptions:
    """How a lab measures."""

    threads: int  # kernels run on
    memory_bytes: int  # the process that times may take; those that build get a part of it
    timeout_s: float = 20.0  # for one candidate's build, one check, and on top of a race's expected time
    modules: tuple[str, ...] = ()  # imported by its processes: they register further rules
    vector_math: bool = True  # as the pass of that name is on or off in `compile`
    cold_cache: bool = True  # weights come from memory, as in a model; else every call finds them in the caches
    file_bytes: int = 256 << 20  # the largest file a process may write
    builders: int | None = None  # processes; None: as many as cores, up to a limit


class Failure(Failed):
    """Control flow: a candidate failed; `kind` is its error class, `blamed` its id (None: the whole task)."""

    def __init__(self, kind: str, message: str, blamed: int | None = None) -> None:
        super().__init__(kind, message)
        self.blamed = blamed


class Lab(Protocol):
    """A place that measures; a context manager. Candidate 0 (`protocol.DEFAULT_ID`) is every task's default.

    A candidate is ordered with its decision, built meanwhile, then taken: checked and run once. Ids count up
    and belong to the open task. Every method but `prepare` and `order` may raise `Failure`.
    """

    @property
    def restarts(self) -> int:
        """Processes that had to be started again."""
        ...

    def __enter__(self) -> Lab: ...

    def __exit__(self, *error: object) -> None: ...

    def prepare(self, tasks: Sequence[Task]) -> None:
        """`tasks` will be opened, probably in this order: a lab may begin to build their defaults."""
        ...

    def open(self, task: Task, *, compare: bool = True) -> float:
        """Make `task` the current one. Returns the default's first time in us at its heaviest size.

        A task that was open before comes back with its candidates. Without `compare` nothing is checked,
        and the time is that at the lightest size.
        """
        ...

    def order(self, decisions: Sequence[object]) -> list[int]:
        """Begin to build candidates of the open task, in this order; returns their ids at once."""
        ...

    def take(self, candidate: int) -> float:
        """Wait for a candidate that was ordered; it is checked and run once. Returns that time in us.

        `Failure` with `protocol.SLOWER` when it is not worth timing.
        """
        ...

    def race(self, candidates: Sequence[int], size: int, rounds: int, default_us: float) -> dict[int, list[float]]:
        """Samples in us of each candidate at the size of that index, taken in turns."""
        ...

    def final(self, candidate: int) -> None:
        """Put the form that ships in the place of a candidate built for racing, and check its results.

        A racing candidate may be code for the timed sizes only; what is confirmed and committed is not. The
        results are compared with the unscheduled function's at odd sizes (`Task.checked`).
        """
        ...

    def drift(self) -> float | None:
        """The largest relative change within the run of a fixed kernel that is timed before every race, if one is."""
        ...

    def drop(self, candidates: Sequence[int]) -> None:
        """Forget candidates, built or not."""
        ...
