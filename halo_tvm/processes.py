"""A process that is asked in lines of JSON: started, heard within a time, ended, and its last words kept.

    with JsonProcess([sys.executable, "-m", "package.worker"]) as process:
        process.send({"command": "load"})
        reply = process.receive(seconds(60))

What silence, a death and a line that is no JSON object mean, the caller knows: here they are three exceptions.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_LAST_WORDS = 2000  # bytes of standard error that are kept


class ProcessTrouble(Exception):
    """Control flow: no answer came."""


class Ended(ProcessTrouble):
    """The process is gone: its exit status (a signal's number, negated) and the end of its standard error."""

    def __init__(self, code: int, last_words: str) -> None:
        self.code, self.last_words = code, last_words
        self.how = f"signal {-code}" if code < 0 else f"exit code {code}"
        super().__init__(f"{self.how}: {last_words}" if last_words else self.how)


class Late(ProcessTrouble):
    """No line came in time; the process may still be at work."""


class Garbled(ProcessTrouble):
    """A line that is no JSON object, or one without an end; `line` is what was found."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        super().__init__(repr(line[:80]))


def python_path(places: Iterable[str]) -> str:
    """PYTHONPATH of a child that finds this very package, installed or not, and then what is in `places`."""
    package = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(dict.fromkeys(filter(None, (package, *places))))


def inherited_environment() -> dict[str, str]:
    """This process's variables for a child that finds this very package, installed or not."""
    inherited = os.environ  # noqa: TID251 - handed on
    return {**inherited, "PYTHONPATH": python_path([inherited.get("PYTHONPATH", "")])}


def line_to_parent() -> Callable[[Mapping[str, object]], None]:
    """In the process itself: what sends a message. From here on, what libraries print goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Mapping[str, object]) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    return send


def die_with(parent: int) -> None:
    """In the process itself: from here on it is killed when the thread of `parent` that started it has ended.

    `parent` is a process; where it has ended already, this one exits. Nothing happens on other systems than Linux.
    """
    if sys.platform != "linux":
        return
    set_death_signal = 1  # PR_SET_PDEATHSIG; SIGKILL also ends a process that is stopped
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        sys.exit(1)


def seconds(limit: float) -> Callable[[], float]:
    """A clock for `receive`: what is left of `limit` seconds from now."""
    deadline = time.monotonic() + limit
    return lambda: deadline - time.monotonic()


class JsonProcess:
    """One running process. One thread asks; any thread may `signal` it.

    Parameters
    ----------
    environment
        all of its variables; None hands on this process's own
    apart
        in a session of its own: Ctrl-C does not reach it, and signals reach all that it started
    line_bytes
        the longest line that is read
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        apart: bool = False,
        line_bytes: int = 64 << 20,
    ) -> None:
        self._apart, self._line_bytes, self._unread = apart, line_bytes, b""
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=directory,
            env=None if environment is None else dict(environment),
            start_new_session=apart,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> JsonProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, message: Mapping[str, object]) -> None:
        """One line to the process; `Ended` when it reads no more."""
        try:
            self._requests.write(json.dumps(message).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self, left: Callable[[], float]) -> dict[str, object]:
        """The next line, an object. `left()` says how many seconds it may still take, and is asked again before time
        is up: a clock may stand still.

        `Ended`, `Late` and `Garbled` otherwise.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._unread and len(self._unread) < self._line_bytes:
                if not selector.select(max(0.0, left())):
                    if left() > 0:
                        continue
                    raise Late
                chunk = os.read(self._replies.fileno(), 1 << 16)
                if not chunk:
                    raise self._ended()
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Garbled(line)
        return message

    def signal(self, number: int) -> None:
        """Send a signal, to the whole group of a process that stands apart; nothing when it has ended."""
        if self._process.returncode is not None:
            return
        if not self._apart:
            self._process.send_signal(number)
            return
        try:
            os.killpg(self._process.pid, number)  # it leads its group as soon as it runs: until then there is none
        except ProcessLookupError:
            self._process.send_signal(number)

    def close(self, limit: float | None = None) -> None:
        """Kill the process, wait until it has ended and free what belongs to it.

        `subprocess.TimeoutExpired` when it still hangs in the system after `limit` seconds.
        """
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait(limit)
        for stream in (self._requests, self._replies, self._errors):
            try:
                stream.close()
            except BrokenPipeError:
                pass  # it died with bytes unread; there is nobody left to send them to

    def _ended(self) -> Ended:
        code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_WORDS))
        return Ended(code, self._errors.read().decode(errors="replace").strip())
