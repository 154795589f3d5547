"""Options of `halo-tvm export`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _texts
from ._config import Config, option

ENGINES = ("portable", "onnxruntime")
NUMBERS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


@dataclass(frozen=True)
class ExportConfig(Config):
    """A model becomes an ONNX file, or a language model a GGUF file."""

    model: str = option(help=_texts.MODEL, positional=True, metavar="MODEL")
    output: str = option(
        help="the file to write: .gguf, else ONNX, whose weights lie beside it in <file>.data",
        short="o",
        metavar="FILE",
    )
    engine: str = option(
        "portable",
        "portable: operators of ONNX alone; onnxruntime: its own ones, too",
        spelled="for",
        metavar="ENGINE",
        choices=ENGINES,
    )
    numbers: str | None = option(
        None,
        "numbers of matrices (default: F32); of .gguf files all, of ONNX for onnxruntime Q8_0 and Q4_0",
        spelled="type",
        metavar="TYPE",
        choices=NUMBERS,
    )
    caches: bool = option(
        False, "a language model in steps: keys and values of earlier tokens come in, and go out with the new ones"
    )
    opset: int | None = option(None, "opset to write, 18 to 24 (default: that of an ONNX file, else 20)", metavar="N")
    shape: tuple[str, ...] = option((), _texts.RANGES, metavar="INPUT=DIMS")
    inputs: str | None = option(None, _texts.INPUTS, metavar="FILE")
    signature: str | None = option(None, _texts.SIGNATURE, metavar="NAME")
    trust_model: bool = option(False, _texts.TRUST)
    seed: int = option(0, "seed of the inputs that the error is measured on")
    threads: int | None = option(None, "threads of onnxruntime (default: its own choice)", metavar="N", env="threads")
