"""The tuner's side of one measurement process: start it, ask it, pause it, watch it, hear its last words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...errors import EnvironmentProblem
from ...processes import Ended, Garbled, JsonProcess, Late, python_path
from . import protocol as p

_START_S = 120.0  # importing TVM on a loaded machine
_REAPING_S = 60.0  # until a process that was killed has ended
_STOPPING_S = 0.2  # until a process that was told to stop has stopped
_MEMORY_WORDS = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError")


class Trouble(p.Failed):
    """Control flow: the process said that a request failed, or it is gone."""


class Gone(Trouble):
    """The process ended or was ended; the next request starts another."""


class Child:
    """A process that runs one module of this package. One thread asks; any thread may pause or end it."""

    def __init__(self, module: str, arguments: Sequence[str], *, threads: int) -> None:
        self._module = module
        self._arguments = tuple(arguments)
        self._threads = threads
        self._process: JsonProcess | None = None
        self._greeted = False
        self._lock = threading.Lock()  # over what pausing and starting both touch
        self._pause_wanted = False
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Begin to start the process, if there is none; the first request waits for it."""
        if self._process is not None:
            return
        self._greeted = False
        environment = {
            **os.environ,  # noqa: TID251 - handed on
            "TVM_NUM_THREADS": str(self._threads),
            "TVM_BIND_THREADS": "0",
            "PYTHONPATH": python_path(sys.path),
        }
        command = [sys.executable, "-m", f"{__package__}.{self._module}", str(os.getpid()), *self._arguments]
        with self._lock:
            # Apart: Ctrl-C reaches the tuner only, and a pause reaches the linker too.
            self._process = _outlived(partial(JsonProcess, command, environment=environment, apart=True))
            self.starts += 1
            if self._pause_wanted:
                self._signal(signal.SIGSTOP)

    def ask(self, request: dict, timeout_s: float, heard: Callable[[dict], None] | None = None) -> dict:
        """The reply to one request. `heard` gets the notes before it.

        `Trouble` when the process says that the request failed, `Gone` when it died or did not answer within
        `timeout_s` (not counting pauses) and was ended. An interruption ends it too: its reply would answer the
        next request.
        """
        try:
            return self._asked(request, timeout_s, heard)
        except Trouble:
            raise
        except BaseException:
            self.close()
            raise

    def _asked(self, request: dict, timeout_s: float, heard: Callable[[dict], None] | None) -> dict:
        self.start()
        self._greet()
        try:
            self._process.send(request)
        except Ended as end:
            raise self._gone(end) from None
        left = self._stopwatch(timeout_s)
        while True:
            message = self._read(left, timeout_s)
            if message.get("ok"):
                return message
            if "error" in message:
                raise Trouble(message["error"], message["message"])
            if heard is not None:
                heard(message)

    def pause(self) -> None:
        """Stop the process and its children, now and whenever it starts, until `resume`."""
        with self._lock:
            self._pause_wanted = True
            self._paused_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def await_pause(self) -> None:
        """Return when the process has stopped, which takes as long as a system call it is in."""
        deadline = time.monotonic() + _STOPPING_S
        while (pid := self.pid) is not None and _state(pid) not in "TtZX" and time.monotonic() < deadline:
            time.sleep(0.0001)

    def resume(self) -> None:
        """Go on; nothing when it is not paused."""
        with self._lock:
            self._signal(signal.SIGCONT)
            if self._paused_at is not None:
                self._paused_s += time.monotonic() - self._paused_at
            self._pause_wanted, self._paused_at = False, None

    def kill(self) -> None:
        """End the process at once, from any thread; whoever waits for an answer gets `Gone`."""
        with self._lock:
            self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End the process and free what belongs to it; for the thread that asks."""
        self.kill()
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            try:
                process.close(_REAPING_S)
            except subprocess.TimeoutExpired:
                raise EnvironmentProblem(
                    f"a measurement process was expected to end within {_REAPING_S:.0f} s of being killed, but it "
                    "hangs in the system: look at what drives its device (nvidia-smi, dmesg)"
                ) from None

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    def _greet(self) -> None:
        if self._greeted:
            return
        try:
            self._read(self._stopwatch(_START_S), _START_S)
        except Gone as trouble:
            raise EnvironmentProblem(
                f"a measurement process was expected to start, but it ended before its first answer: {trouble}: "
                "run `halo-tvm doctor` to check this installation"
            ) from trouble
        self._greeted = True

    def _stopwatch(self, timeout_s: float) -> Callable[[], float]:
        """Seconds left of `timeout_s`; it stands still while the process is paused."""

        def run() -> float:
            with self._lock:
                now = time.monotonic()
                return now - self._paused_s - (0.0 if self._paused_at is None else now - self._paused_at)

        began = run()
        return lambda: timeout_s - (run() - began)

    def _read(self, left: Callable[[], float], timeout_s: float) -> dict[str, object]:
        try:
            return self._process.receive(left)
        except Late:
            self.close()
            raise Gone(p.TIMEOUT, f"no answer within {timeout_s:.0f} s") from None
        except Garbled as found:
            self.close()
            raise Gone(p.CRASH, f"the {self._module} answered {found}") from None
        except Ended as end:
            raise self._gone(end) from None

    def _gone(self, end: Ended) -> Gone:
        """Why the process ended, from its exit status and its last words."""
        self.close()
        # Nobody but the kernel's out-of-memory killer sends our child a SIGKILL while we wait for it.
        memory = end.code == -signal.SIGKILL or any(word in end.last_words for word in _MEMORY_WORDS)
        kind = p.OUT_OF_MEMORY if memory else p.FILE_TOO_LARGE if end.code == -signal.SIGXFSZ else p.CRASH
        return Gone(kind, f"the {self._module} ended with {end.how}: {end.last_words[-300:]}")


def _outlived(start: Callable[[], JsonProcess]) -> JsonProcess:
    """What `start` gives, started by a thread that lives until that process has ended.

    The signal that ends the process with the tuner (`confined`) is sent when the *thread* that started it ends. That
    of the caller may end long before: a lab that explores is kept between calls, whichever thread makes them.
    """
    started: Future[JsonProcess] = Future()

    def keep() -> None:
        try:
            process = start()
        except BaseException as error:  # noqa: BLE001 - a thread boundary: raised again in the caller
            started.set_exception(error)
            return
        pid = process.pid
        started.set_result(process)
        del process  # it belongs to the caller
        with suppress(ChildProcessError):  # it has ended, and somebody knows
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=keep, name="halo-tvm-child", daemon=True).start()
    return started.result()


def _state(pid: int) -> str:
    """The letter of the state a process is in; X when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
