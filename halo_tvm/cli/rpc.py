"""Keep a list of devices to measure on (tracker), or offer this machine as one (server), until Ctrl-C.

Both are TVM's own, which run any code their peer sends. They listen at a loopback address only; another
one needs --trust-network. Ctrl-C ends them with exit code 130, as every interrupted command.
"""

from __future__ import annotations

from ..config import RpcConfig, parse_address

CONFIG = RpcConfig


def run(config: RpcConfig) -> int:
    """Serve until interrupted; one line says where."""
    from ..tuning.measure.rpc.serve import loopback_or_trusted, serve_device, serve_tracker

    host = loopback_or_trusted(config.host, config.trust_network)
    if config.action == "tracker":
        serve_tracker(host, config.port, _say)
    else:
        tracker = parse_address(config.tracker, "--tracker") if config.tracker else None
        serve_device(host, config.port, tracker, config.device_key, _say, config.threads)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
