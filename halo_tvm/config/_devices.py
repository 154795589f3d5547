"""Addresses and keys of devices, as options write them."""

from __future__ import annotations

import re

from ..errors import UsageError


def parse_address(text: str, option: str) -> tuple[str, int]:
    """`HOST:PORT`, an IPv6 address in brackets, as host and port; `UsageError` naming `option` for anything else."""
    host, _, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else "" if ":" in host else host
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,253}", host) or not (port.isascii() and port.isdecimal()):
        raise UsageError(
            f"{option} is written HOST:PORT, e.g. 127.0.0.1:9190 or [::1]:9190, but is {text[:80]!r}: correct it"
        )
    if len(port) > 5 or not 0 < int(port) < 1 << 16:
        raise UsageError(f"the port of {option} must be a number from 1 to 65535, but is {port[:20]}: correct it")
    return host, int(port)


def check_device_key(key: str) -> None:
    """`UsageError` for a key that TVM's tracker would take apart."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", key):
        raise UsageError(
            "a device key has 1 to 64 letters, digits, dots, dashes or underscores, "
            f"but is {key[:80]!r}: choose another"
        )
