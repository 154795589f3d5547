"""Options of `halo-tvm targets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._config import Config, option


@dataclass(frozen=True)
class TargetsConfig(Config):
    """Targets, and whether this machine can build and run each."""

    announced: ClassVar[bool] = False
    json: bool = option(False, "print JSON")
