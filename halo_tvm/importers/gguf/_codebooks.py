"""Formats whose numbers are looked up in codebooks, IQ1 to IQ3: the package `gguf` has the books."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import numpy as np

from ...errors import MissingPackage

_AT_ONCE = 64  # blocks in a row of the package, which takes few rows at a time


def books() -> ModuleType:
    """The package's module of number formats; `MissingPackage` without it."""
    try:
        return importlib.import_module("gguf.quants")
    except ImportError as missing:
        raise MissingPackage(
            "gguf", "a file with tensors of IQ1, IQ2 or IQ3", "pip install 'halo_tvm[gguf]'"
        ) from missing


def looked_up(code: int) -> Callable[[np.ndarray], np.ndarray]:
    """[blocks, size] bytes of the format of this number -> [blocks, 256] float32."""

    def floats(blocks: np.ndarray) -> np.ndarray:
        whole = len(blocks) // _AT_ONCE * _AT_ONCE
        parts = [blocks[:whole].reshape(whole // _AT_ONCE, -1), blocks[whole:]]
        package = books()
        kind = package.GGMLQuantizationType(code)
        found = [package.dequantize(part, kind).reshape(-1, 256) for part in parts if len(part)]
        return np.concatenate(found) if found else np.empty((0, 256), np.float32)

    return floats
