"""The files under a tuning log: appending under a lock, and reading what is whole."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..whole_file import write_whole
from .home import unwritable_log
from .record import LONGEST, Record

FILE = "records.jsonl"  # committed winners
TRIALS = "trials.jsonl"  # everything else that was tried
_BUFFER = 1 << 20
_TAIL_BYTES = 32 << 20  # some ten thousand lines


def append(directory: Path, target_key: str, records: Iterable[Record], file: str = FILE) -> Path:
    """Append `records` to `directory/<target_key>/<file>`, synced to the disk before it returns.

    Writers of other processes wait on the file's lock. A line that a killed writer left unfinished
    is closed first, so it spoils nothing but itself. Raises `UsageError` when the place is not writable or full.
    """
    path = directory / target_key / file
    with _locked(path) as handle:
        _write(handle, "".join(r.line() for r in records).encode())
    return path


def append_new(path: Path, texts: Iterable[bytes]) -> int:
    """Append those of the lines `texts` (without line ends) that `path` does not have yet; returns their number.

    Reading and writing happen under the lock. Whole lines are written, in order: of a writer that is killed
    in between those before stay, and doing the same again adds the rest.
    """
    with _locked(path) as handle:
        known = {_digest(line.data) for line in lines(path)}
        new: list[bytes] = []
        for text in texts:
            digest = _digest(text)
            if digest not in known:
                known.add(digest)
                new.append(text.strip() + b"\n")
        _write(handle, b"".join(new))
    return len(new)


def replace_file(path: Path, change: Callable[[list[Line]], bytes]) -> None:
    """Write `path` anew as what `change` makes of its lines, whole or not at all, while other writers wait."""
    with _locked(path):
        data = change(list(lines(path)))
        write_whole(path, data)
        _sync_directory(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """`path`, made if need be, open for appending and locked; `UsageError` when it cannot be, or not be written."""
    handle = -1
    try:
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _open_locked(path)
        yield handle
        if is_new:
            _sync_directory(path.parent)
    except OSError as error:
        raise unwritable_log(path, error.strerror or str(error)) from error
    finally:
        if handle >= 0:
            os.close(handle)  # releases the lock


def _open_locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is no file")
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # another process replaced the file while we waited


def _write(handle: int, data: bytes) -> None:
    size = os.fstat(handle).st_size
    if data and size and os.pread(handle, 1, size - 1) != b"\n":
        data = b"\n" + data
    while data:
        data = data[os.write(handle, data) :]
    os.fsync(handle)


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line.strip()).digest()


def files_of(directory: Path) -> list[Path]:
    """The files of the log in `directory`, by target key; also those of the right name that are no files."""
    return sorted(path for path in directory.glob("*/*.jsonl") if path.name in (FILE, TRIALS))


class Line(NamedTuple):
    """A line of a file; `data` ends after `record.LONGEST` bytes and a few when it is longer than any record."""

    number: int  # from 1
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


def lines(path: Path) -> Iterator[Line]:
    """The non-empty lines of `path`, the torn last one included; raises `OSError`, also when it is no file."""
    if not path.is_file():  # a pipe would keep us waiting
        raise OSError(errno.EINVAL, "it is no file" if path.exists() else "there is no such file")
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


def last_lines(path: Path) -> Iterator[bytes]:
    """The whole lines in the last `_TAIL_BYTES` of `path`, the last first; none of what is no readable file."""
    try:
        if not path.is_file():
            return
        with open(path, "rb") as file:
            beginning = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(max(0, beginning - 1))
            if beginning:
                file.readline()  # the end of the line before, or one that is cut
            found = file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return
    yield from (line for line in reversed(found) if line)


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
