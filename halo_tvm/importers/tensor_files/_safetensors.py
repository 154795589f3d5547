"""safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ...errors import UnsupportedModel
from ._file import TensorFile

_FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}  # of ml_dtypes


class SafeTensorsFile(TensorFile):
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with safe_open(path, framework="numpy") as tensors:
                self.shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}
        except (SafetensorError, OSError) as reason:
            raise self._refused(reason) from reason

    def read(self, name: str) -> np.ndarray:
        try:
            with safe_open(self._path, framework="numpy") as tensors:
                narrow = _FLOAT8.get(tensors.get_slice(name).get_dtype())
                found: np.ndarray = tensors.get_tensor(name) if narrow is None else self._float8(name, narrow)
                return found
        except (SafetensorError, OSError) as reason:
            raise self._refused(reason) from reason

    def _refused(self, reason: object) -> UnsupportedModel:
        return UnsupportedModel(
            f"expected a readable safetensors file, found {reason} in {self._path.name}: download the model again"
        )

    def _float8(self, name: str, dtype: str) -> np.ndarray:
        """A tensor of floats of eight bits, which safetensors itself does not hand to NumPy."""
        import ml_dtypes  # a dependency of TVM

        with self._path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            about = json.loads(stream.read(length))[name]  # `safe_open` has checked it
            begin, end = about["data_offsets"]
            stream.seek(8 + length + begin)
            return np.frombuffer(stream.read(end - begin), getattr(ml_dtypes, dtype)).reshape(about["shape"])
