"""Options of `halo-tvm inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._config import Config, option


@dataclass(frozen=True)
class InspectConfig(Config):
    """What an artifact is, read from its manifest."""

    announced: ClassVar[bool] = False
    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    json: bool = option(False, "print the manifest as JSON")
