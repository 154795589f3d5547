"""The files under a tuning log: appending under a lock, and reading what is whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import UsageError
from .record import Record

FILE = "records.jsonl"  # committed winners
TRIALS = "trials.jsonl"  # everything else that was tried


def append(directory: Path, target_key: str, records: Iterable[Record], file: str = FILE) -> Path:
    """Append `records` to `directory/<target_key>/<file>`, synced to the disk before it returns.

    Writers of other processes wait on the file's lock. A line that a killed writer left unfinished
    is closed first, so it spoils nothing but itself. Raises `UsageError` when the place is not writable.
    """
    folder = directory / target_key
    path = folder / file
    data = "".join(r.line() for r in records).encode()
    try:
        is_new = not path.exists()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise UsageError(
            f"a tuning log must be writable, but {str(path)!r} is not ({error.strerror}): "
            "choose another directory with --log, or set HALO_TVM_HOME"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        os.close(handle)  # releases the lock
    if is_new:
        _sync_directory(folder)
    return path


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of the non-empty lines of `path`, the torn last one included."""
    # newline: a carriage return in a damaged line does not begin another
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
