"""Measuring on devices of a TVM RPC tracker: the lab, what a device says of itself, and serving this machine."""

from __future__ import annotations

from ....records.record import Fingerprint
from ....targets import Target
from ..lab import LabOptions
from .device import Device
from .lab import RpcLab
from .session import device_behind, refuse_other_targets

__all__ = ["Device", "RpcLab", "device_behind", "make_rpc_lab", "refuse_other_targets"]


def make_rpc_lab(
    target: Target,
    options: LabOptions,
    address: tuple[str, int],
    key: str,
    *,
    seed: int,
    wait_s: float = 60.0,
    session_s: float = 600.0,
    fingerprint: Fingerprint | None = None,
) -> RpcLab:
    """A lab whose candidates run on devices that the tracker at `address` knows under `key`.

    `wait_s` is how long to wait for a free device; after `session_s` a server ends a session that hangs, and
    the lab takes another in time. `options.threads` is not used: a device runs with the threads of its server.
    A device with another `fingerprint` is refused; None: other than the first one's.
    """
    return RpcLab(target, options, address, key, seed=seed, wait_s=wait_s, session_s=session_s, fingerprint=fingerprint)
