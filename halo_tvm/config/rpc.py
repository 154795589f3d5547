"""Options of `halo-tvm rpc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import UsageError
from . import _texts
from ._config import Config, option
from ._devices import check_device_key, parse_address


@dataclass(frozen=True)
class RpcConfig(Config):
    """A tracker of devices, or a server that offers this machine as one."""

    announced: ClassVar[bool] = False
    action: str = option(
        help="tracker: keeps the list of devices; server: offers this machine",
        positional=True,
        metavar="ACTION",
        choices=("tracker", "server"),
    )
    host: str = option(
        "127.0.0.1", "address to listen at; any but a loopback address needs --trust-network", metavar="ADDRESS"
    )
    port: int | None = option(
        None,
        "port to listen at (default: the first free one from 9190 for a tracker, from 9090 for a server)",
        metavar="PORT",
    )
    tracker: str | None = option(None, "server: the tracker to report to", metavar="HOST:PORT")
    device_key: str = option("halo", "server: the key under which the tracker lists this machine", metavar="KEY")
    trust_network: bool = option(False, "listen where other machines reach it: TVM's RPC runs any code its peer sends")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port is not None and not 0 < self.port < 1 << 16:
            raise UsageError(f"port must be a number from 1 to 65535, but is {self.port}: give a free one, e.g. 9190")
        check_device_key(self.device_key)
        if self.action == "tracker" and self.tracker:
            raise UsageError("--tracker belongs to a server, but a tracker was asked for: leave it out")
        if self.tracker is not None:
            parse_address(self.tracker, "--tracker")
