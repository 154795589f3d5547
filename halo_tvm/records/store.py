"""The files under a tuning log: appending under a lock, and reading what is whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from .record import LONGEST, Record

FILE = "records.jsonl"  # committed winners
TRIALS = "trials.jsonl"  # everything else that was tried
_BUFFER = 1 << 20


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
        if not is_new and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")
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


class Line(NamedTuple):
    """A line of a file; `data` ends after `record.LONGEST` bytes and a few when it is longer than any record."""

    number: int  # from 1
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


def lines(path: Path) -> Iterator[Line]:
    """The non-empty lines of `path`, the torn last one included; raises `OSError`."""
    with open(path, "rb", buffering=_BUFFER) as file:
        number = offset = 0
        while data := file.readline(LONGEST + 2):
            number, length, end = number + 1, len(data), data
            while len(end) > LONGEST and not end.endswith(b"\n"):
                end = file.readline(LONGEST + 2)
                length += len(end)
            if not data.isspace():
                yield Line(number, offset, data)
            offset += length


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
