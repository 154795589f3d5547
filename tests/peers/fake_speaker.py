"""A speaker that behaves as its argument says; runs as a worker process in tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from halo_tvm.errors import MissingPackage
from halo_tvm.peers.protocol import LoadRequest
from halo_tvm.peers.speaking import serve_speaker


class Fake:
    version = "1.2.3"
    note = ""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.length = 0

    def load(self, request: LoadRequest) -> None:
        if self.behaviour == "missing":
            raise MissingPackage("llama_cpp", "the peer llama-cpp", "pip install llama-cpp-python")
        self.note = Path(request.model).read_bytes()[:4].decode()
        self.context = int(request.options["context"])

    def truncate(self, count: int) -> None:
        assert count <= self.length, "more tokens than were read"
        self.length = count

    def read(self, ids: Sequence[int]) -> int:
        if self.behaviour == "breaks":
            raise ValueError("cannot read")
        self.length += len(ids)
        assert self.length <= self.context
        return ids[-1]


if __name__ == "__main__":
    serve_speaker(Fake(sys.argv[1]))
