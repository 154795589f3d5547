"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to a temporary name beside `path`, synced, then renamed: readers see the old file or the new one.

    What writers of this file left when they were killed is removed.
    """
    _sweep(path)
    temporary = path.with_name(f"{_stem(path)}{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _stem(path: Path) -> str:
    # the host's name, as a process number says nothing about the processes of another host with the same disk
    host = re.sub(r"[^\w-]", "-", platform.node())
    return f".{path.name}.{host}."


def _sweep(path: Path) -> None:
    stem = _stem(path)
    for name in os.listdir(path.parent):
        process = name.removeprefix(stem)
        if process != name and process.isdecimal() and not _is_running(int(process)):
            path.with_name(name).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's, or no process number: not ours to judge
    return True
