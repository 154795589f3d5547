"""Options of `halo-tvm report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from . import _texts
from ._config import Config, option

FORMATS = (".html", ".md", ".json")
_MOST = 2  # before and after


@dataclass(frozen=True)
class ReportConfig(Config):
    """One artifact, or two side by side, in one file: time, memory, accuracy, kernels, fusion, schedules."""

    inputs: tuple[str, ...] = option(
        (),
        "artifact directories, before and after, or results written with --json",
        positional=True,
        metavar="INPUT",
        split=False,
    )
    output: str = option(
        "report.html", "file to write: .html, .md, or .json to render later", short="o", metavar="FILE"
    )
    shape: str | None = option(None, _texts.SIZES, metavar="NAME=SIZE")
    rounds: int = option(10, "interleaved rounds of the timing, and runs of each profile", metavar="N")
    time: bool = option(True, "time and profile the artifacts; without, only what their manifests say")
    measure: bool = option(True, "measure the host's peaks (10 s) where `doctor --measure` has not kept them")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs")

    def __post_init__(self) -> None:
        super().__post_init__()
        artifacts = [name for name in self.inputs if not name.endswith(".json")]
        if not self.inputs or len(artifacts) > _MOST:
            raise UsageError(
                f"one artifact, or two to compare, or results written with --json were expected, but "
                f"{len(artifacts)} artifacts of {len(self.inputs)} inputs were given: name what to report on"
            )
        if Path(self.output).suffix not in FORMATS:
            raise UsageError(
                f"a report is written as {', '.join(FORMATS)}, but {self.output} was named: correct --output"
            )
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, but are {self.rounds}: give a positive number")
