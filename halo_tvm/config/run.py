"""Options of `halo-tvm run`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _texts
from ._config import Config, option


@dataclass(frozen=True)
class RunConfig(Config):
    """An artifact is run once."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    input: tuple[str, ...] = option(
        (),
        "an input's values: NAME=FILE.npy, or FILE.npz with several (repeatable); others are seeded random",
        metavar="NAME=FILE",
    )
    output: str | None = option(None, "write the outputs to FILE.npz", short="o", metavar="FILE")
    shape: str | None = option(None, _texts.SIZES, metavar="NAME=SIZE")
    seed: int = option(0, "seed of inputs that are not given")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
