"""Tensor data outside the parsed model: where it may lie, and how it is read.

A file is opened component by component without following links, checked by its descriptor, and read from that very
descriptor. It is read when a weight is needed, which may be long after the check: it must be the same file then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import UnsupportedModel
from ...model_names import BLOBS

_NO_LINKS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = _NO_LINKS | getattr(os, "O_DIRECTORY", 0)


@dataclass(frozen=True)
class DataFile:
    """A plain file below `folder`, as it was when it was checked."""

    folder: Path
    parts: tuple[str, ...]
    identity: tuple[int, ...]  # device, inode, size, time of the last change

    @property
    def size_bytes(self) -> int:
        return self.identity[2]

    def read(self, offset: int, size: int) -> np.ndarray:
        """`size` bytes at `offset`; `UnsupportedModel` when it is no longer the file that was checked."""
        out = np.empty(size, np.uint8)
        view, done = memoryview(out), 0
        try:
            with _opened(self.folder, self.parts) as descriptor:
                if _identity(os.fstat(descriptor)) != self.identity:
                    raise self._changed()
                while done < size:
                    count = os.preadv(descriptor, [view[done : done + (1 << 30)]], offset + done)
                    if count == 0:
                        raise self._changed()
                    done += count
        except OSError as reason:
            raise self._changed() from reason
        return out

    def _changed(self) -> UnsupportedModel:
        return UnsupportedModel(
            f"expected {self.parts[-1]} to stay as it is while its model is read, found another file in its place: "
            "import the model again"
        )


def locate(folder: Path, location: str, what: str) -> DataFile:
    """The plain file at `location` below `folder`; `UnsupportedModel` unless it truly lies there.
    `what` names the data."""
    parts = Path(location).parts
    if not parts or "\0" in location or Path(location).is_absolute() or ".." in parts or "\\" in location:
        raise UnsupportedModel(
            f"expected {what} inside the model's folder, found location {location[:200]!r}: do not use it"
        )
    folder, parts = _stored(folder, parts)
    try:
        with _opened(folder, parts) as descriptor:
            status = os.fstat(descriptor)
    except OSError as reason:
        if _has_link(folder, parts):
            raise UnsupportedModel(
                f"expected {what} in a plain file, found the link {location!r}: copy the file there"
            ) from None
        raise UnsupportedModel(
            f"expected {what} in {location[:200]!r}, found none readable ({reason.strerror}): download it again"
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise UnsupportedModel(
            f"expected {what} in a plain file, found a link or device {location!r}: copy the file there"
        )
    return DataFile(folder, parts, _identity(status))


def _stored(folder: Path, parts: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Where the hub's cache has the file that a link below snapshots/ leads to: in blobs/ beside it; else as given."""
    for below in (folder, *folder.parents):
        if below.name == "snapshots":
            blobs, place = below.parent / BLOBS, folder.joinpath(*parts).resolve()
            return (blobs, (place.name,)) if place.parent == blobs else (folder, parts)
    return folder, parts


def model_file(path: Path, status: os.stat_result) -> DataFile:
    """The model's own file, which the user named (so that it may be a link), opened as `status` tells."""
    place = path.resolve()
    return DataFile(place.parent, (place.name,), _identity(status))


@contextmanager
def _opened(folder: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """A descriptor of the file `parts` below `folder`; none of the parts may be a link."""
    held = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        for position, part in enumerate(parts):
            inner = os.open(part, _FOLDER if position < len(parts) - 1 else _NO_LINKS, dir_fd=held)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def _has_link(folder: Path, parts: tuple[str, ...]) -> bool:
    return any(os.path.islink(folder.joinpath(*parts[: n + 1])) for n in range(len(parts)))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
