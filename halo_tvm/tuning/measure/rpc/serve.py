"""A tracker, or a server that offers this machine, in this process: TVM's own, kept on loopback unless asked."""

from __future__ import annotations

import ctypes
import ipaddress
import json
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ....errors import EnvironmentProblem, MissingPackage, UsageError
from ....runtime.host import first_gpu
from ....targets import read_host
from ..scratch import Scratch

if TYPE_CHECKING:  # imports TVM
    from ..gpu import GpuClock

# What a server of ours answers, beside TVM's own functions.
DESCRIBE = "halo_tvm.rpc.describe"  # -> JSON
DESCRIBE_GPU = "halo_tvm.rpc.describe_gpu"  # -> JSON
TIME_ON_GPU = "halo_tvm.rpc.time_on_gpu"  # module, calls, warm, arguments of each call ... -> microseconds of one
_TRACKER_PORTS = range(9190, 9200)
_SERVER_PORTS = range(9090, 9200)
_LOOK_S = 0.2  # how soon a listener that a session took down is replaced
_LONGEST_REASON = 199  # a client believes no longer texts
_DESERTED_S = 2.0  # a session that can still end by itself does so before


def loopback_or_trusted(host: str, trust_network: bool) -> str:
    """The numeric address to listen at; `UsageError` when other machines reach it and nobody said they may."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host or "::", None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host must be an address of this machine, but {host[:80]!r} is none ({error}): "
            "leave it out for 127.0.0.1"
        ) from error
    open_to_others = sorted(address for address in found if not _is_loopback(address))
    if open_to_others and not trust_network:
        raise UsageError(
            f"only a loopback address is listened at, but --host {host[:80]} is {', '.join(open_to_others)}: TVM's RPC "
            "runs any code its peer sends, without asking who that is; reach it through ssh -L, or say --trust-network"
        )
    return min(found, key=lambda address: (":" in address, address))


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def serve_tracker(host: str, port: int | None, ready: Callable[[str], None]) -> None:
    """Run a tracker until interrupted. `ready` gets one line once it listens; `host` is numeric.

    `MissingPackage` without tornado, `EnvironmentProblem` when the port is taken.
    """
    try:
        from tvm.rpc.tracker import PopenTrackerServerState
    except ImportError as error:
        raise MissingPackage("tornado", "an RPC tracker", "pip install 'halo_tvm[rpc]'") from error

    state = _bound(lambda p: PopenTrackerServerState(host, p, p + 1, silent=True), host, port, _TRACKER_PORTS)
    ready(f"tracker at {shown(host, state.port)}")
    state.thread.join()
    raise EnvironmentProblem(
        f"the tracker at {shown(host, state.port)} should go on, but its loop ended: start it again"
    )


def serve_device(
    host: str,
    port: int | None,
    tracker: tuple[str, int] | None,
    key: str,
    ready: Callable[[str], None],
    threads: int | None = None,
) -> None:
    """Offer this machine until interrupted, one session at a time, each in a process of its own.

    A session that crashes ends TVM's listener; it is replaced here, at the same port. `threads` are those
    kernels run with. `EnvironmentProblem` when the port is taken or the tracker does not answer.
    """
    import tvm_ffi

    if tracker is not None:
        _check_tracker(host, tracker)
    threads = threads or read_host().cores
    tvm_ffi.register_global_func(DESCRIBE, lambda: _described(threads), override=True)
    tvm_ffi.register_global_func(DESCRIBE_GPU, _described_gpu, override=True)
    tvm_ffi.register_global_func(TIME_ON_GPU, _time_on_gpu, override=True)
    os.register_at_fork(after_in_child=_die_with_parent)
    threading.excepthook = _note_crash
    os.environ["TVM_NUM_THREADS"] = str(threads)  # noqa: TID251 - written for TVM, not read
    scratch = Scratch()
    previous, tempfile.tempdir = tempfile.tempdir, str(scratch.path)  # TVM leaves the files of a session that died
    home = os.getcwd()
    try:
        state = _listen(host, port, tracker, key)
        where = f"for tracker {shown(*tracker)}" if tracker else "without a tracker"
        ready(f"server at {shown(host, state.port)} with device key {key} {where}")
        deserted = Deserted(state.port)
        while True:
            state.thread.join(_LOOK_S)
            deserted.kill()
            if not state.thread.is_alive():
                state.sock.close()
                os.chdir(home)  # a session works in a directory of its own
                state = _listen(host, state.port, tracker, key)
    finally:
        for session in multiprocessing.active_children():
            session.kill()
        tempfile.tempdir = previous
        os.chdir(home)
        scratch.close()


def _listen(host: str, port: int | None, tracker: tuple[str, int] | None, key: str) -> object:
    from tvm.rpc.server import PopenRPCServerState

    def bind(p: int) -> object:
        return PopenRPCServerState(host, p, p + 1, tracker_addr=tracker, key=key, silent=True)

    return _bound(bind, host, port, _SERVER_PORTS)


class Deserted:
    """Sessions whose client is gone, but which hang in its code and do not notice."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._since: dict[int, float] = {}

    def kill(self) -> None:
        """End those that have been so for a while; call it again and again."""
        now = time.monotonic()
        for session in multiprocessing.active_children():
            if not self._is_deserted(session.pid):
                self._since.pop(session.pid, None)
            elif now - self._since.setdefault(session.pid, now) > _DESERTED_S:
                session.kill()

    def _is_deserted(self, pid: int | None) -> bool:
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:  # it ended meanwhile
            return False
        return any(c.laddr.port == self._port and c.status == psutil.CONN_CLOSE_WAIT for c in connections)


def _bound(bind: Callable[[int], object], host: str, port: int | None, ports: range) -> object:
    """What `bind` makes at `port`, or at the first free one of `ports`."""
    for candidate in [port] if port is not None else ports:
        try:
            return bind(candidate)
        except ValueError:  # TVM's word for a port in use
            continue
        except OSError as error:
            raise EnvironmentProblem(
                f"it should listen at {shown(host, candidate)}, but {error.strerror or error}: "
                "give another --host or --port"
            ) from error
    wanted = f"port {port}" if port is not None else f"a port from {ports[0]} to {ports[-1]}"
    raise EnvironmentProblem(f"{wanted} of {host} should be free, but is in use: end its owner or give another --port")


def _check_tracker(host: str, tracker: tuple[str, int]) -> None:
    """A tracker elsewhere would send peers to an address where nobody listens."""
    from .tracker import Tracker

    peer = Tracker(tracker).peer()
    if _is_loopback(host) and not _is_loopback(peer):
        raise UsageError(
            f"the tracker at {shown(*tracker)} is another machine, but the server would listen at {host} only: "
            "give --host with an address that is reached from there, and --trust-network"
        )


def shown(host: str, port: int) -> str:
    """`host:port` as `--rpc` takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _described(threads: int) -> str:
    """What this machine is, for whoever measures on it; asked in a session's process."""
    host = read_host()
    facts = {name: getattr(host, name) for name in ("machine", "model", "l1_bytes", "l2_bytes", "l3_bytes")}
    return json.dumps({**facts, "cores": threads, "flags": sorted(host.flags)})


def _described_gpu() -> str:
    """The GPU that a session's process measures on. CUDA does not survive a fork: the server itself never starts it."""
    try:
        gpu = first_gpu()
    except EnvironmentProblem as error:
        return json.dumps({"without": str(error)[:_LONGEST_REASON]})
    return json.dumps({name: getattr(gpu, name) for name in ("arch", "multiprocessors", "l2_bytes")})


def _time_on_gpu(module: object, calls: int, warm: bool, *arguments: object) -> float:
    from ..build import NAME

    each = len(arguments) // calls
    sets = [arguments[at * each : (at + 1) * each] for at in range(calls)]
    return _clock().timed_us(module[NAME], sets, warm=warm)  # type: ignore[index]


@cache
def _clock() -> GpuClock:
    """Of a session's process."""
    from ..gpu import GpuClock

    return GpuClock()


def _note_crash(caught: threading.ExceptHookArgs) -> None:
    """In the place of a traceback of TVM's listener."""
    logging.getLogger(__name__).warning("a session crashed (%s): listening again", caught.exc_value)


def _die_with_parent() -> None:
    """A session whose server was killed must not go on holding its client."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    if Path("/proc/self").exists():
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
