"""Options of `halo-tvm export`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _texts
from ._config import Config, option

ENGINES = ("portable", "onnxruntime")


@dataclass(frozen=True)
class ExportConfig(Config):
    """A model becomes an ONNX file."""

    model: str = option(help=_texts.MODEL, positional=True, metavar="MODEL")
    output: str = option(help="the file to write; weights lie beside it in <file>.data", short="o", metavar="FILE")
    engine: str = option(
        "portable",
        "portable: operators of ONNX alone; onnxruntime: its own ones, too",
        spelled="for",
        metavar="ENGINE",
        choices=ENGINES,
    )
    opset: int | None = option(None, "opset to write, 18 to 24 (default: that of an ONNX file, else 20)", metavar="N")
    shape: tuple[str, ...] = option((), _texts.RANGES, metavar="INPUT=DIMS")
    inputs: str | None = option(None, _texts.INPUTS, metavar="FILE")
    signature: str | None = option(None, _texts.SIGNATURE, metavar="NAME")
    trust_model: bool = option(False, _texts.TRUST)
    seed: int = option(0, "seed of the inputs that the error is measured on")
    threads: int | None = option(None, "threads of onnxruntime (default: its own choice)", metavar="N", env="threads")
