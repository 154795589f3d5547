"""Trackers and servers of `halo-tvm rpc` as processes of a test."""

import os
import select
import socket
import subprocess
import sys
import time

import psutil
from children import heeding_interrupts

from halo_tvm.tuning.measure.rpc.tracker import Tracker

START_S = 120.0
KEY = "toy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    """`halo-tvm rpc ...` as a process, up when this exists; `changes` are of its environment."""

    def __init__(self, *words: str, **changes: str) -> None:
        with heeding_interrupts():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "halo_tvm", "rpc", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "HALO_TVM_NUM_THREADS": "1",
                    **changes,
                },
                start_new_session=True,
            )

    def ready(self) -> str:
        """The line it says when it listens."""
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        assert ready, "it did not start"
        return self.process.stdout.readline().decode()

    def sessions(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """SIGKILL to the server alone, and what became of its sessions."""
        sessions = self.sessions() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        _, alive = psutil.wait_procs(sessions, timeout=10)
        assert not alive, "a session outlives its server"


class Farm:
    """A tracker, and servers that can be killed; `changes` are of the servers' environment."""

    def __init__(self, **changes: str) -> None:
        self._changes = changes
        self.address = ("127.0.0.1", free_port())
        self.tracker = Served("tracker", "--port", str(self.address[1]))
        self.servers: list[Served] = []
        self.tracker_said = self.tracker.ready()

    @property
    def option(self) -> str:
        return "{}:{}".format(*self.address)

    def grow(self, count: int) -> None:
        """At least so many servers, all of them listed."""
        new = [
            Served("server", "--port", str(free_port()), "--tracker", self.option, "--device-key", KEY, **self._changes)
            for _ in range(count - len(self.servers))
        ]
        self.said = [server.ready() for server in new]
        self.servers += new
        wait_for(lambda: f"{len(self.servers)} of key '{KEY}'" in Tracker(self.address).free())

    def kill_busy(self) -> None:
        """Kill the server that has a session."""
        (busy,) = [server for server in self.servers if server.sessions()]
        self.servers.remove(busy)
        busy.kill()

    def close(self) -> None:
        for served in (*self.servers, self.tracker):
            served.kill()


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
