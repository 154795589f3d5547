"""Options of `halo-tvm operators`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._config import Config, option


@dataclass(frozen=True)
class OperatorsConfig(Config):
    """Operators, and how each is recognised, fused and scheduled."""

    announced: ClassVar[bool] = False
    json: bool = option(False, "print JSON")
