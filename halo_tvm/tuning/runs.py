"""Runs on disk: what a tuning run had reached, so that `--resume` goes on after a kill.

`<log>/<target-key>/runs/<id>.json` is replaced after every batch and removed at a normal end. Its trials are
in the log, under the run's id. Whoever works on a run holds a lock on `<id>.lock`, which ends with the process.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ..codec import Must, parse_file, plain, read
from ..errors import UsageError
from ..records.home import unwritable_log
from ..report.tuned import TaskResult
from .saved import write_json

SCHEMA = 1
_FOLDER = "runs"
_LARGEST_BYTES = 64 << 20
Count = Annotated[int, Must(lambda n: n >= 0, "a number of trials")]
Seconds = Annotated[float, Must(lambda s: 0 <= s < 1e12, "seconds")]


@dataclass(frozen=True)
class Run:
    """One run. `options` are those that must be equal for another to go on with it."""

    id: str
    model: str
    source: str  # a hash of the model, "" when it is not known
    target: str
    options: Mapping[str, object]
    elapsed_s: Seconds = 0.0
    trials: Count = 0
    finished: Mapping[str, TaskResult] = field(default_factory=dict)  # by task key

    def save(self, directory: Path) -> None:
        """Write the run's file; a reader sees this state or the one before."""
        body = {"schema": SCHEMA, **plain(self), "saved": time.time()}
        with _writable(self._path(directory)):
            write_json(self._path(directory), body)

    def remove(self, directory: Path) -> None:
        """The run has ended: there is nothing to go on with."""
        self._path(directory).unlink(missing_ok=True)

    @contextmanager
    def hold(self, directory: Path) -> Iterator[None]:
        """Nobody else goes on with this run meanwhile; `UsageError` when somebody does."""
        path = _lock_of(self._path(directory))
        with _writable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a", encoding="utf-8")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(
                    f"the run {self.id} was expected to be nobody's, but {str(path)!r} cannot be locked "
                    f"({error.strerror}): wait until the process that works on it has ended, or begin a new run"
                ) from error
            try:
                yield
            finally:
                if not self._path(directory).exists():
                    path.unlink(missing_ok=True)

    def _path(self, directory: Path) -> Path:
        return directory / self.target / _FOLDER / f"{self.id}.json"


def new_id() -> str:
    """Sorts by time, and differs between runs that begin in the same second."""
    return time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + secrets.token_hex(4)


def last_unfinished(directory: Path, model: str, source: str, target: str, options: Mapping[str, object]) -> Run:
    """The run to go on with: the latest of this model, target and options that did not end.

    `UsageError` when there is none, naming the runs of this target that differ, and in what.
    """
    found: list[tuple[float, Run]] = []
    others: list[str] = []
    wanted = json.loads(json.dumps(dict(options)))
    for path in sorted((directory / target / _FOLDER).glob("*.json")):
        try:
            saved, run = _read(path)
        except ValueError as error:
            others.append(f"{path.name} cannot be read ({error})")
            continue
        differs = [name for name in sorted({*wanted, *run.options}) if wanted.get(name) != run.options.get(name)]
        if run.model != model:
            others.append(f"{run.id} is of {run.model}")
        elif source and run.source and run.source != source:
            others.append(f"{run.id} is of another version of the model")
        elif differs or run.target != target:
            others.append(f"{run.id} has another {', '.join(differs) or 'target'}")
        elif _is_held(_lock_of(path)):
            others.append(f"{run.id} is still going")
        else:
            found.append((saved, run))
    if not found:
        seen = f" ({'; '.join(others[-3:])})" if others else ""
        raise UsageError(
            f"--resume goes on with a run of {model} for {target} that did not end, but "
            f"{str(directory / target / _FOLDER)!r} holds none with these options{seen}: leave --resume out to begin "
            "a new run, or repeat the options of the old one"
        )
    return max(found, key=lambda entry: entry[0])[1]


def _read(path: Path) -> tuple[float, Run]:
    """(when it was saved, the run); `ValueError` for a file that is none."""
    body = parse_file(path, _LARGEST_BYTES)
    if not isinstance(body, dict) or body.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    saved, run = read(Seconds, body.pop("saved", None), "saved"), read(Run, body)
    if not re.fullmatch(r"[0-9A-Za-z-]{1,60}", run.id) or path.name != f"{run.id}.json":
        raise ValueError("its id is not its name")
    return saved, run


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable_log(path, error.strerror or str(error)) from error


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


def _is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    if not path.exists():
        return False
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
