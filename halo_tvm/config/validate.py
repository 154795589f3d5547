"""Options of `halo-tvm validate`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _texts
from ._config import Config, option


@dataclass(frozen=True)
class ValidateConfig(Config):
    """An artifact's outputs are compared with its reference."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    reference: str | None = option(
        None, "the original model file or directory, evaluated again, or an .npz of inputs and outputs", metavar="FILE"
    )
    text: str | None = option(
        None,
        "text that a language model and its original (--reference) read instead of the shipped one",
        metavar="FILE",
    )
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs of an original that is evaluated again")
    json: str | None = option(None, _texts.JSON, metavar="FILE")
    markdown: str | None = option(None, _texts.MARKDOWN, metavar="FILE")
