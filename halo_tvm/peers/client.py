"""The parent's end of a peer: start its process, ask, and turn every way it can die into `PeerFailed`."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ..errors import PeerFailed

LOAD_TIMEOUT_S = 600.0
TAIL = 400  # characters of standard error that go into a message


class Peer:
    """One engine's process. A context manager: leaving it ends the process."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**worker_environment(), **(environment or {})},
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process: politely, then by force."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # the process died with bytes unread; there is nobody left to send them to

    def ask(self, command: str, timeout_s: float = LOAD_TIMEOUT_S, **fields: object) -> dict[str, object]:
        """Send one command and wait for its reply; `PeerFailed` for anything else than success."""
        line = json.dumps({"command": command, **fields}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died(command)
        raw = self._line(command, time.monotonic() + timeout_s, timeout_s)
        try:
            reply = json.loads(raw)
        except ValueError:
            reply = None
        if not isinstance(reply, dict) or "ok" not in reply:
            self.close()
            raise PeerFailed(
                f"engine {self.name}: expected a reply to {command!r}, found {raw[:80]!r}: "
                "it prints to the protocol's channel; report this with the engine's version"
            )
        if not reply["ok"]:
            raise PeerFailed(
                f"engine {self.name} could not {command}: {reply.get('error')}", missing=bool(reply.get("missing"))
            )
        return reply

    def _line(self, command: str, deadline: float, timeout_s: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise PeerFailed(
                        f"engine {self.name}: expected a reply to {command!r} within {timeout_s:g} s, found none: "
                        "it was stopped; use a smaller --shape or fewer rounds"
                    )
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    self._died(command)
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self, command: str) -> None:
        code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - TAIL))
        tail = self._errors.read().decode(errors="replace").strip()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise PeerFailed(
            f"engine {self.name}: expected a reply to {command!r}, but its process ended with {how}"
            + (f"; its last words: {tail}" if tail else "")
            + "; leave it out with another --vs, or repair its installation"
        )


def worker_environment() -> dict[str, str]:
    """The environment of a worker: it finds this very package, installed or not."""
    package = str(Path(__file__).resolve().parents[2])
    inherited = os.environ  # noqa: TID251 - handed on
    return {**inherited, "PYTHONPATH": os.pathsep.join([package, *filter(None, [inherited.get("PYTHONPATH")])])}


def engine_command(engine: str) -> list[str]:
    """The command line that starts the worker of `engine`, a module of this package."""
    return [sys.executable, "-m", f"halo_tvm.peers.{engine}"]
