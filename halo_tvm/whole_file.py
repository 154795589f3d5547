"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # no POSIX system: nothing is locked there, and so nothing is swept
    fcntl = None

_SUFFIX = ".partial"


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file `path` by one that holds `data`, as `replaced` does."""
    with replaced(path) as file:
        file.write(data)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, under a temporary name beside `path`; behind the `with` it is synced and renamed.

    Readers see the old file or the new one. An error leaves the old one, and nothing else. What writers of this file
    left when they were killed is removed, where it may be.
    """
    _sweep(path)
    temporary, file = _held(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _held(path: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file beside `path` that nobody sweeps: its lock says that somebody is alive who writes it."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
        file = temporary.open("xb")
        if fcntl is None:
            return temporary, file
        with suppress(OSError):  # where files cannot be locked nobody can sweep them either
            fcntl.flock(file, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, file
        file.close()  # another process swept it before it was locked


def _sweep(path: Path) -> None:
    """Remove temporary files that no process holds; whatever cannot be listed, opened or removed stays."""
    if fcntl is None:
        return
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if name.startswith(f".{path.name}.") and name.endswith(_SUFFIX):
                with suppress(OSError), path.with_name(name).open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.with_name(name).unlink()
