"""A directory for the libraries of one run. What a killed tuner left behind goes when the next one starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "halo-tvm-libraries-"
_LOCK = "lock"


class Scratch:
    """A directory of our own, locked while this process lives. `close` removes it.

    Nobody can clean up behind a tuner that is killed, so every tuner removes directories of this user whose
    lock nobody holds. A lock ends with its process, whatever ends that.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.path / _LOCK).exists():
                return
            os.close(self._lock)  # another tuner took it for abandoned before it was locked

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            handle = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or just being made: its lock comes in a moment
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
