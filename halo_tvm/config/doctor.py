"""Options of `halo-tvm doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._config import Config, option


@dataclass(frozen=True)
class DoctorConfig(Config):
    """What this machine can build and run."""

    announced: ClassVar[bool] = False
    measure: bool = option(False, "measure FMA peak and read bandwidth (10 s), kept in host.json under $HALO_TVM_HOME")
    json: bool = option(False, "print JSON")
