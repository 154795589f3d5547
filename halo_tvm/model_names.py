"""What `--model` may name, known without TVM: it takes seconds to import, and a misspelled name none to refuse."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import UnknownName, UsageError

# `jax.export` names no suffix; the content tells which of the kinds a file is.
STABLEHLO = (".jax", ".jaxexport", ".jax_export", ".stablehlo", ".mlir", ".mlirbc")
HDF5 = (".h5", ".hdf5")
TORCHSCRIPT = (".pt", ".pth", ".ts", ".jit")
# Of files that are models.
SUFFIXES = (".onnx", ".gguf", ".keras", *HDF5, *TORCHSCRIPT, ".pt2", ".tflite", *STABLEHLO)
# The names of `models.PRESETS`.
BUILT_IN = (
    *("gpt2", "gpt2-last", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large", "mlp"),
    *(f"{name}{part}" for name in ("t5-small", "t5-base") for part in ("", "-cross", "-decoder")),
    *(f"flan-{name}{part}" for name in ("t5-small", "t5-base") for part in ("", "-cross", "-decoder")),
)
BLOBS = "blobs"  # where the hub's cache keeps files, beside the snapshots that link to them
_ON_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(name: str) -> bool:
    """Whether `name` can only be `org/name` of the hub: no file here has it, nor lies beside."""
    path = Path(name)
    return bool(_ON_HUB.fullmatch(name)) and path.suffix not in SUFFIXES and not path.parent.exists()


def is_missing(model: str) -> bool:
    """Whether `model` can name nothing; False where only the hub, or a closer look, can say."""
    names = [name for name in (model, model.rpartition(":")[0]) if name]
    return model not in BUILT_IN and not any(Path(name).exists() or is_hub_name(name) for name in names)


def unknown(model: str) -> UsageError:
    """The sentence about a name that nobody knows."""
    if "/" in model or Path(model).suffix:
        return UsageError(f"expected a model file or directory, found nothing at {model!r}: check the path")
    return UnknownName(
        "model", model, BUILT_IN, "(or give an .onnx file or a directory with config.json and safetensors)"
    )


def refuse_unspeakable(path: str, option: str) -> None:
    """`UsageError` for bytes that are no UTF-8: onnxruntime and torch open no such name, and JSON does not take it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"expected a path in UTF-8, found {path!r}, where \\udc.. stands for a byte that is none: "
            f"rename the file or folder that {option} names"
        ) from None


def place_of(path: Path) -> Path:
    """Where a model's file lies, with its data beside it: links are followed, but those of the hub's cache.

    There both are links to blobs, whose names are digests.
    """
    real = path.resolve()
    return path.parent.resolve() / path.name if path.is_symlink() and real.parent.name == BLOBS else real
