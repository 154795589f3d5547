"""An engine that behaves as its argument says; runs as a worker process in tests."""

from __future__ import annotations

import os
import sys
import time

from halo_tvm.errors import MissingPackage
from halo_tvm.peers.protocol import LoadRequest, serve


class Fake:
    version = "1.2.3"

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.runs = 0

    def load(self, request: LoadRequest) -> None:
        if self.behaviour == "missing":
            raise MissingPackage("fakeengine", "the peer fake", "pip install fakeengine")
        if self.behaviour == "raises":
            raise ValueError("cannot read the model")
        if self.behaviour == "path":
            raise ValueError("cannot read /home/someone/models/model.bin")
        if self.behaviour == "noisy":
            print("a library prints to standard output")
            os.write(1, b"and native code too\n")
        self.options = request.options

    def prepare(self, inputs):
        x = inputs["x"]

        def run() -> None:
            self.runs += 1
            if self.behaviour == "crash" and self.runs > 3:
                sys.stderr.write("illegal instruction in kernel 7\n")
                sys.stderr.flush()
                os.abort()
            if self.behaviour == "hang" and self.runs > 3:
                time.sleep(3600)
            time.sleep(0.004 if self.behaviour == "slow" else 0.001)
            self.y = x * 2

        return run

    def outputs(self, inputs):
        y = inputs["x"] * 2
        return {"y": y + 0.5 if self.behaviour == "wrong" else y}


if __name__ == "__main__":
    if sys.argv[1] == "garbage":
        for _line in sys.stdin:
            print("this is not JSON", flush=True)
    serve(Fake(sys.argv[1]))
