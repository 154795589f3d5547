"""The parent's end of a peer: start its process, ask, and turn every way it can die into `PeerFailed`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

from ..errors import PeerFailed
from ..processes import Ended, Garbled, JsonProcess, Late, inherited_environment, seconds

LOAD_TIMEOUT_S = 600.0
TAIL = 400  # characters of standard error that go into a message


class Peer:
    """One engine's process. A context manager: leaving it ends the process."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._process = JsonProcess(command, environment={**inherited_environment(), **(environment or {})})

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
        """End the process."""
        self._process.close()

    def ask(self, command: str, timeout_s: float = LOAD_TIMEOUT_S, **fields: object) -> dict[str, object]:
        """Send one command and wait for its reply; `PeerFailed` for anything else than success."""
        try:
            self._process.send({"command": command, **fields})
            reply = self._process.receive(seconds(timeout_s))
            if "ok" not in reply:
                raise Garbled(json.dumps(reply).encode())
        except Late:
            self.close()
            raise PeerFailed(
                f"engine {self.name}: expected a reply to {command!r} within {timeout_s:g} s, found none: "
                "it was stopped; use a smaller --shape or fewer rounds"
            ) from None
        except Garbled as found:
            self.close()
            raise PeerFailed(
                f"engine {self.name}: expected a reply to {command!r}, found {found}: "
                "it prints to the protocol's channel; report this with the engine's version"
            ) from None
        except Ended as end:
            raise PeerFailed(
                f"engine {self.name}: expected a reply to {command!r}, but its process ended with {end.how}"
                + (f"; its last words: {end.last_words[-TAIL:]}" if end.last_words else "")
                + "; leave it out with another --vs, or repair its installation"
            ) from None
        if not reply["ok"]:
            raise PeerFailed(
                f"engine {self.name} could not {command}: {reply.get('error')}", missing=bool(reply.get("missing"))
            )
        return reply


def engine_command(engine: str) -> list[str]:
    """The command line that starts the worker of `engine`, a module of this package."""
    return [sys.executable, "-m", f"halo_tvm.peers.{engine}"]
