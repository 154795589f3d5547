"""What the confinement stops, tried from inside: the converter of kind "probe", for tests and for `doctor`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import UnsupportedModel
from ..imported import ImportedModel


def import_unrestricted(path: Path, options: dict[str, object]) -> ImportedModel:
    """Make `options["attempts"]`, names below with what each aims at; always `UnsupportedModel`: the answers."""
    answers = []
    for name, target in dict(options["attempts"]).items():
        try:
            ATTEMPTS[name](path, str(target))
            answers.append(f"{name}: done")
        except OSError as error:
            answers.append(f"{name}: refused ({error.strerror})")
    raise UnsupportedModel(", ".join(answers))


def _allocate(_path: Path, _target: str) -> None:
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


def _spin(_path: Path, _target: str) -> None:
    while True:
        time.sleep(0.01)


def _link(path: Path, _target: str) -> None:
    os.symlink(path, Path.cwd() / "link")


ATTEMPTS: dict[str, Callable[[Path, str], object]] = {
    "nothing": lambda path, _: path.read_bytes(),
    "write": lambda _, target: Path(target).write_bytes(b"x"),
    "write the model": lambda path, _: path.write_bytes(b"x"),
    "remove": lambda _, target: Path(target).unlink(),
    "chmod": lambda path, _: path.chmod(0o777),
    "touch": lambda path, _: os.utime(path),
    "read": lambda _, target: Path(target).read_bytes(),
    "list": lambda _, target: os.listdir(target),
    "symlink": _link,
    "write at home": lambda *_: (Path.cwd() / "file").write_bytes(b"x"),
    "socket": lambda *_: socket.socket(),
    "unix socket": lambda *_: socket.socket(socket.AF_UNIX),
    "program": lambda *_: subprocess.run([sys.executable, "-c", ""], check=False),
    "fork": lambda *_: os.fork(),
    "signal": lambda _, target: os.kill(int(target), signal.SIGTERM),
    "abort": lambda *_: os.abort(),
    "crash": lambda *_: ctypes.string_at(1),
    "memory": _allocate,
    "endless": _spin,
}
