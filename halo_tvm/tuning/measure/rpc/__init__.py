"""Measuring on devices of a TVM RPC tracker: the lab, what a device says of itself, and serving this machine."""

from __future__ import annotations

from .device import Device
from .lab import RpcLab
from .session import device_behind, refuse_other_targets

__all__ = ["Device", "RpcLab", "device_behind", "refuse_other_targets"]
