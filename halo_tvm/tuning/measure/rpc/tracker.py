"""What a tuner asks TVM's tracker: who is free, and a device. Its answers are data of a stranger."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ....errors import EnvironmentProblem

_CONNECT_S = 10.0
_ANSWER_S = 10.0
_MOST_BYTES = 1 << 20  # of one answer; TVM's tracker takes no longer messages either
_MOST_SHOWN = 8
# Of TVM's tracker protocol (tvm.rpc.base).
_MAGIC = struct.pack("<i", 0x2F271)
_SUCCESS, _REQUEST, _SUMMARY = 0, 4, 6


@dataclass(frozen=True)
class Granted:
    """A server that waits for us, and the word it lets us in by."""

    host: str
    port: int
    password: str


class Tracker:
    """One tracker. Every method connects anew; `EnvironmentProblem` when it is not there or is no tracker."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def __str__(self) -> str:
        host, port = self._address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def peer(self) -> str:
        """The numeric address it answered from."""
        with self._connected() as connection:
            return str(connection.getpeername()[0])

    def request(self, key: str, wait_s: float) -> Granted:
        """A free server of `key`; `EnvironmentProblem` when none comes free within `wait_s`."""
        with self._connected() as connection:
            try:
                _send(connection, [_REQUEST, key, "", 1])
                answer = _receive(connection, time.monotonic() + wait_s)
            except TimeoutError:
                answer = None
            except (OSError, ValueError) as error:
                raise self._nonsense(error) from error
        if answer is None:
            raise EnvironmentProblem(
                f"a device with key {key} was expected at the tracker {self} within {wait_s:.0f} s, "
                f"but none came free: {self.free()}: start `halo-tvm rpc server --tracker {self} --device-key {key}`, "
                "or correct --device-key"
            )
        return self._granted(answer)

    def free(self) -> str:
        """Which servers are free, in words."""
        with self._connected() as connection:
            try:
                _send(connection, [_SUMMARY])
                answer = _receive(connection, time.monotonic() + _ANSWER_S)
            except (OSError, ValueError) as error:
                raise self._nonsense(error) from error
        match answer:
            case [code, {"queue_info": dict(queues)}] if code == _SUCCESS:
                return _free_servers(queues)
        raise self._nonsense("no summary")

    def _granted(self, answer: object) -> Granted:
        match answer:
            case [code, [str(host), int(port), str(password)]] if code == _SUCCESS:
                plain = host.isascii() and host.isprintable() and 0 < len(host) < 254 and " " not in host
                # Words after a blank are options of the session.
                secret = (
                    password.isascii() and password.isprintable() and 0 < len(password) < 200 and " " not in password
                )
                if plain and secret and 0 < port < 1 << 16:
                    return Granted(host, port, password)
        raise self._nonsense("no server")

    def _connected(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, timeout=_CONNECT_S)
        except (OSError, UnicodeError) as error:
            raise EnvironmentProblem(
                f"an RPC tracker was expected at {self}, but {error}: start `halo-tvm rpc tracker`, or correct --rpc"
            ) from error
        try:
            connection.sendall(_MAGIC)
            if _exactly(connection, len(_MAGIC), time.monotonic() + _ANSWER_S) != _MAGIC:
                raise ValueError("another protocol is spoken there")
        except (OSError, ValueError) as error:
            connection.close()
            raise self._nonsense(error) from error
        return connection

    def _nonsense(self, what: object) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"an RPC tracker was expected at {self}, but what answers there is none ({str(what)[:100]}): "
            "correct --rpc, or start `halo-tvm rpc tracker` again"
        )


def _free_servers(queues: Mapping[object, object]) -> str:
    counts = []
    for key, queue in sorted(queues.items(), key=lambda item: str(item[0])):
        free = queue.get("free") if isinstance(queue, dict) else None
        if isinstance(free, int) and free > 0:
            counts.append(f"{free} of key {str(key)[:64]!r}")
    more = f" and {len(counts) - _MOST_SHOWN} more keys" if len(counts) > _MOST_SHOWN else ""
    return "free servers: " + (", ".join(counts[:_MOST_SHOWN]) + more if counts else "none")


def _send(connection: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    connection.sendall(struct.pack("<i", len(data)) + data)


def _receive(connection: socket.socket, deadline: float) -> object:
    """One JSON value; `TimeoutError`, another `OSError`, or `ValueError` for what is none."""
    (size,) = struct.unpack("<i", _exactly(connection, 4, deadline))
    if not 0 < size <= _MOST_BYTES:
        raise ValueError(f"an answer of {size} bytes")
    data = _exactly(connection, size, deadline)
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("an answer nested too deeply") from error


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data
