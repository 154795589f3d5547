"""Libraries of earlier builds, by what they were built from: an unchanged module is not compiled again.

An entry is a file named after its key: the SHA-256 of a library, then the library. It is written whole, so any number
of processes may share a directory; an entry that is damaged is removed, and built again. What was used the longest ago
goes first when the directory grows beyond its limit. A process looks through the directory when it first keeps a
library, and then after every share of the limit that it has written: thousands of small entries take longer to list
than one of them takes to write.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from .whole_file import write_whole

LIMIT = 1 << 30  # bytes
_SHARE = 64  # of the limit: so much more than it a process may write before it looks
_DIGEST = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)
_unseen: dict[Path, int] = {}  # bytes that this process has written to a directory since it looked through it


class ObjectCache:
    """A directory of about `limit` bytes; it need not exist yet, and what cannot be read or written is a miss."""

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self.directory = directory
        self.limit = limit

    def fetch(self, key: str, path: Path) -> bool:
        """Write the library that was kept under `key` to `path`; False, and no file, where there is none."""
        entry = self.directory / key
        try:
            data = entry.read_bytes()
            if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
                _log.warning("a damaged entry of the cache of builds is removed and built again: %s", entry)
                entry.unlink(missing_ok=True)
                return False
            os.utime(entry)
        except OSError:
            return False
        path.write_bytes(data[_DIGEST:])
        return True

    def keep(self, key: str, path: Path) -> None:
        """Keep a copy of the library `path` under `key`, and remove others until the limit holds."""
        library = path.read_bytes()
        if len(library) + _DIGEST > self.limit:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # its code runs: nobody else's to write
            write_whole(self.directory / key, hashlib.sha256(library).digest() + library)
            unseen = _unseen.get(self.directory, self.limit) + len(library)
            if unseen * _SHARE >= self.limit:
                self._evict()
                unseen = 0
            _unseen[self.directory] = unseen
        except OSError as reason:
            _log.warning("a build is not kept for the next one: %s", reason)

    def _evict(self) -> None:
        entries = []
        with os.scandir(self.directory) as found:
            for entry in found:
                with suppress(FileNotFoundError):  # another process was faster
                    status = entry.stat()
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
        surplus = sum(size for _, size, _ in entries) - self.limit
        for _, size, path in sorted(entries):
            if surplus <= 0:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            surplus -= size
