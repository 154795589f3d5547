"""Options of `halo-tvm profile`."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from . import _texts
from ._config import Config, option

ROWS = ("kernel", "operator", "layer")


@dataclass(frozen=True)
class ProfileConfig(Config):
    """An artifact's time, kernel by kernel, operator by operator or layer by layer."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    by: str = option("kernel", "what a row of the table is", metavar="WHAT", choices=ROWS)
    function: str = option("main", _texts.FUNCTION, metavar="NAME")
    shape: str | None = option(None, _texts.SIZES, metavar="NAME=SIZE")
    rounds: int = option(10, "runs to take the median of", metavar="N")
    measure: bool = option(True, "measure the host's peaks (10 s) where `doctor --measure` has not kept them")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs")
    json: str | None = option(None, _texts.JSON, metavar="FILE")
    markdown: str | None = option(None, _texts.MARKDOWN, metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, but are {self.rounds}: give a positive number")
