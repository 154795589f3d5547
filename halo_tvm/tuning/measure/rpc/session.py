"""A session with a device: a free server is asked for, and held by a process of its own."""

from __future__ import annotations

import dataclasses
import time

from ....errors import EnvironmentProblem
from ....records.record import Fingerprint
from ....targets import Target
from ..child import Child, Gone, Trouble
from ..confined import arguments_of
from .device import Device, device_of
from .runner import CONNECT, LEAVE, PING
from .tracker import Tracker

_CONNECT_S = 20.0  # a server forks a process for a session
_CUDA_S = 40.0  # on a machine with many GPUs, until the first is there
_PING_S = 10.0
_LEAVE_S = 5.0


class Session:
    """At most one session at a time. Whoever asks must be ready for `Trouble`."""

    def __init__(
        self, address: tuple[str, int], key: str, *, wait_s: float, memory_bytes: int, file_bytes: int, gpu: bool
    ) -> None:
        """`gpu`: the device is asked for its GPU, which takes it some seconds."""
        self._tracker = Tracker(address)
        self._key = key
        self._wait_s = wait_s
        self._gpu = gpu
        self._child = Child("rpc.runner", arguments_of(memory_bytes, file_bytes, ()), threads=1)
        self._ends = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the server may end it; negative when there is none."""
        return self._ends - time.monotonic()

    def begin(self, lasting_s: float) -> Device:
        """Take a free device for so long; `EnvironmentProblem` when none takes a session in time."""
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                # Now, because a server that was granted waits for us a few seconds only: no start fits in.
                self._child.ask({"op": PING}, _PING_S)
                granted = self._tracker.request(self._key, max(1.0, deadline - time.monotonic()))
                request = {
                    "op": CONNECT,
                    "host": granted.host,
                    "port": granted.port,
                    "password": granted.password,
                    "session_s": int(lasting_s + 2 * _CONNECT_S),
                    "gpu": self._gpu,
                }
                answers = self._child.ask(request, _CONNECT_S + (_CUDA_S if self._gpu else 0.0))
                break
            except Trouble as trouble:  # the server died since the tracker heard of it
                if not isinstance(trouble, Gone):
                    self._child.close()
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        f"a device with key {self._key} was expected to take a session within {self._wait_s:.0f} s, "
                        f"but those that the tracker {self._tracker} names do not ({str(trouble)[:200]}): "
                        f"{self._tracker.free()}: look after the servers"
                    ) from trouble
        self._ends = time.monotonic() + lasting_s
        return device_of(answers)

    def ask(self, request: dict, timeout_s: float, heard: object = None) -> dict:
        """As `Child.ask`."""
        try:
            return self._child.ask(request, timeout_s, heard)
        finally:
            if self._child.pid is None:  # interrupted: the session ended with it
                self._ends = 0.0

    def is_alive(self) -> bool:
        """Whether the device answers."""
        try:
            self._child.ask({"op": PING}, _PING_S)
        except Trouble:
            return False
        return True

    def leave(self) -> None:
        """Give up a session in which nothing runs, or that is lost; what holds it goes on if it can."""
        try:
            self._child.ask({"op": LEAVE}, _LEAVE_S)
        except Trouble:
            self._child.close()
        self._ends = 0.0

    def end(self) -> None:
        """Give the device back, whatever it is doing."""
        self._child.close()
        self._ends = 0.0


def refuse_other_targets(device: Device, target: Target, key: str) -> None:
    """`EnvironmentProblem` when the device cannot run what is built for `target`."""
    refusal = device.refusal(target)
    if refusal:
        raise EnvironmentProblem(
            f"a device that runs {target.name} was expected under the key {key}, but {refusal}: "
            "correct --target or --device-key"
        )


def refuse_other_machines(found: Fingerprint, wanted: Fingerprint, key: str) -> None:
    """`EnvironmentProblem` when records of a device would be taken for those of another kind of machine."""
    if found == wanted:
        return
    have, want = dataclasses.asdict(found), dataclasses.asdict(wanted)
    differences = ", ".join(f"{name} {have[name]} instead of {want[name]}" for name in want if have[name] != want[name])
    raise EnvironmentProblem(
        f"devices of one kind were expected under the key {key}, but one has {differences}: give machines of another "
        "kind, or with other threads, a key of their own"
    )


def device_behind(address: tuple[str, int], key: str, *, gpu: bool) -> Device:
    """What a free device with that key says of itself, and of its `gpu` where one is needed."""
    session = Session(address, key, wait_s=60.0, memory_bytes=2 << 30, file_bytes=1 << 20, gpu=gpu)
    try:
        return session.begin(60.0)
    finally:
        session.end()
