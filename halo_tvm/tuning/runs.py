"""Runs on disk: what a tuning run had reached, so that `--resume` goes on after a kill.

`<log>/<target-key>/runs/<id>.json` is replaced after every batch and removed at a normal end. Its trials are
in the log, under the run's id. Whoever works on a run holds a lock on `<id>.lock`, which ends with the process.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

from ..errors import UsageError
from .result import TaskResult
from .saved import write_json

SCHEMA = 1
_FOLDER = "runs"
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Run:
    """One run. `options` are those that must be equal for another to go on with it."""

    id: str
    model: str
    source: str  # a hash of the model, "" when it is not known
    target: str
    options: Mapping[str, object]
    elapsed_s: float = 0.0
    trials: int = 0
    finished: Mapping[str, TaskResult] = field(default_factory=dict)  # by task key

    def save(self, directory: Path) -> None:
        """Write the run's file; a reader sees this state or the one before."""
        body = {"schema": SCHEMA, **dataclasses.asdict(self), "saved": time.time()}
        write_json(self._path(directory), body)

    def remove(self, directory: Path) -> None:
        """The run has ended: there is nothing to go on with."""
        self._path(directory).unlink(missing_ok=True)

    @contextmanager
    def hold(self, directory: Path) -> Iterator[None]:
        """Nobody else goes on with this run meanwhile; `UsageError` when somebody does."""
        path = _lock_of(self._path(directory))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
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
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is too large")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError("it is no JSON") from error
    if not isinstance(body, dict) or body.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    saved = body.pop("saved", None)
    kinds = {"id": str, "model": str, "source": str, "target": str, "options": dict, "trials": int, "finished": dict}
    numbers = (saved, body.get("elapsed_s"))
    if set(body) != {*kinds, "elapsed_s"} or any(type(body[name]) is not kind for name, kind in kinds.items()):
        raise ValueError("its fields are not those of a run")
    if any(type(n) not in (int, float) or not 0 <= n < 1e12 for n in numbers) or body["trials"] < 0:
        raise ValueError("its times are none")
    if not re.fullmatch(r"[0-9A-Za-z-]{1,60}", body["id"]) or path.name != f"{body['id']}.json":
        raise ValueError("its id is not its name")
    finished = {key: _task(value) for key, value in body.pop("finished").items()}
    return float(saved), Run(**body, finished=finished)


def _task(body: object) -> TaskResult:
    """The result of a finished task, its lists as tuples again."""
    names = {f.name for f in dataclasses.fields(TaskResult)}
    if not isinstance(body, dict) or set(body) != names:
        raise ValueError("a task's fields are not those of this release")
    return TaskResult(**{name: _as(kind, body[name], name) for name, kind in get_type_hints(TaskResult).items()})


def _as(kind: object, value: object, name: str) -> object:
    """`value` of JSON as what a field of the type `kind` holds; `ValueError` for anything else."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list):
        return tuple(_as(parts[0], v, name) for v in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _as(parts[1], v, name) for key, v in value.items()}
    if origin is UnionType:
        return None if value is None and NoneType in parts else _as(parts[0], value, name)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        if set(value) == set(hints):
            return kind(**{field: _as(hint, value[field], f"{name}.{field}") for field, hint in hints.items()})
    # Comparing also leaves out NaN, and integers that no float holds.
    if kind is object or (type(value) is kind and kind is not float):
        return value
    if kind is float and type(value) in (int, float) and -1e300 < value < 1e300:
        return value
    raise ValueError(f"{name} of a task is {type(value).__name__}")


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
