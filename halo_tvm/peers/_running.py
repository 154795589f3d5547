"""An engine's process while it takes its turns, and what becomes of it when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ..errors import PeerFailed
from .client import Peer
from .protocol import LoadRequest


@dataclass(kw_only=True)
class Running:
    """An engine, the process it has at present, and why it takes no turns. The failure of `ours` is raised."""

    ours: bool = False
    process: Peer | None = None
    version: str = ""
    note: str = ""
    failure: str | None = None
    missing: bool = False

    @property
    def peer(self) -> Peer:
        assert self.process is not None, "an engine that has failed is not asked"
        return self.process

    def attempt(self, step: Callable[[], object]) -> None:
        """Run one step of an engine that has not failed; its failure ends its part."""
        if self.failure is not None:
            return
        try:
            step()
        except PeerFailed as error:
            if self.ours:
                raise
            self.failure, self.missing = str(error), error.missing
            self.peer.close()

    def load(self, stack: ExitStack, name: str, command: Sequence[str], request: LoadRequest) -> dict[str, object]:
        """Start the process, which `stack` ends, and have it load; its reply."""
        self.process = stack.enter_context(Peer(name, command))
        reply = self.process.ask("load", request=request.to_json())
        self.version, self.note = str(reply["version"]), str(reply["note"])
        return reply


def check_installed(peers: Sequence[Running]) -> None:
    """`PeerFailed` where peers are asked for and none of them is installed."""
    if peers and all(peer.missing for peer in peers):
        raise PeerFailed("; ".join(str(peer.failure) for peer in peers), missing=True)
