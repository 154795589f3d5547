"""Options of `halo-tvm bench`."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from . import _texts
from ._config import Config, option


@dataclass(frozen=True)
class BenchConfig(Config):
    """An artifact is timed, interleaved with other engines."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    vs: tuple[str, ...] = option(
        (),
        "engine to compare with, e.g. onnxruntime, openvino-int8, or another artifact (repeatable)",
        metavar="ENGINE",
    )
    reference: str | None = option(None, "the original model file, for engines that read it", metavar="FILE")
    shape: str | None = option(None, _texts.SIZES, metavar="NAME=SIZE")
    rounds: int = option(20, "interleaved rounds", metavar="N")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs")
    cache: str | None = option(
        None, "keep the files that engines read, and their errors, in DIR for the next time", metavar="DIR"
    )
    json: str | None = option(None, _texts.JSON, metavar="FILE")
    markdown: str | None = option(None, _texts.MARKDOWN, metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, but are {self.rounds}: give a positive number")
