"""The process's own side: it dies with the tuner, keeps to limits, and answers requests, whatever they provoke."""

from __future__ import annotations

import errno
import importlib
import json
import resource
import sys
from collections.abc import Callable, Sequence

from ...errors import Declined
from ...processes import die_with, line_to_parent
from . import protocol as p

Say = Callable[[dict], None]
Answer = Callable[[dict, Say], dict]

_OUT_OF_MEMORY = ("bad_alloc", "out of memory", "cannot allocate memory", "memoryerror")
_TOO_LARGE = ("file too large", "file size limit")


def arguments_of(memory_bytes: int, file_bytes: int, modules: Sequence[str]) -> list[str]:
    """The command line that `serve` reads, behind the number of the tuner's process; no bytes of memory: no limit."""
    return [str(memory_bytes), str(file_bytes), *modules]


def serve(make: Callable[[], tuple[Answer, str]]) -> int:
    """Run a measurement process until its input ends or the tuner dies.

    `make` gives the function that answers requests, and the error class of what it raises unexpectedly. The
    command line: process number of the tuner, bytes of memory, bytes of a file, then modules to import
    (rules that no entry point names).
    """
    die_with(int(sys.argv[1]))
    # Whatever a kernel, LLVM or the linker prints must not end up among the replies.
    say = line_to_parent()

    from ...plugins import load_plugins

    load_plugins()
    for module in sys.argv[4:]:
        importlib.import_module(module)
    answer, otherwise = make()
    _limit(int(sys.argv[2]), int(sys.argv[3]))
    say({"ok": True})
    for line in sys.stdin:
        try:
            reply = {"ok": True, **answer(json.loads(line), say)}
        except p.Failed as failed:
            reply = {"error": failed.kind, "message": str(failed)}
        except Declined as declined:
            reply = {"error": p.DECLINED, "message": str(declined)}
        except Exception as error:  # noqa: BLE001 - the process boundary: whatever a candidate raises is its failure
            message = f"{type(error).__name__}: {str(error)[-400:]}"
            reply = {"error": _kind(error, otherwise), "message": message}
        say(reply)
    return 0


def _kind(error: Exception, otherwise: str) -> str:
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(word in text for word in _OUT_OF_MEMORY):
        return p.OUT_OF_MEMORY
    if getattr(error, "errno", None) == errno.EFBIG or any(word in text for word in _TOO_LARGE):
        return p.FILE_TOO_LARGE
    return otherwise


def _limit(memory_bytes: int, file_bytes: int) -> None:
    """Let data grow by so much from here; what is mapped already (TVM's libraries) does not count."""
    if memory_bytes:
        with open("/proc/self/status", encoding="ascii") as status:
            data = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (data + memory_bytes, data + memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
