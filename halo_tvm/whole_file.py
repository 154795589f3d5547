"""Files that are replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

_SUFFIX = ".partial"


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to a temporary name beside `path`, synced, then renamed: readers see the old file or the new one.

    What writers of this file left when they were killed is removed, where it may be.
    """
    _sweep(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # somebody is alive who writes it
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove temporary files that no process holds; whatever cannot be listed, opened or removed stays."""
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if name.startswith(f".{path.name}.") and name.endswith(_SUFFIX):
                with suppress(OSError), path.with_name(name).open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.with_name(name).unlink()
