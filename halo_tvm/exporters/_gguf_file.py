"""The container of a GGUF file, version 3, written tensor by tensor.

References
    the GGUF specification (github.com/ggml-org/ggml/blob/master/docs/gguf.md)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

Value = str | bool | int | float

_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING = 4, 6, 7, 8


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file: `shape` in NumPy's order, `code` of its number format, `load` gives its bytes."""

    name: str
    shape: tuple[int, ...]
    code: int
    size_bytes: int
    load: Callable[[], np.ndarray]


def write_file(path: Path, metadata: Mapping[str, Value], tensors: Iterable[StoredTensor]) -> None:
    """The file of `metadata` and `tensors`, of which one at a time is in memory."""
    tensors = tuple(tensors)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_text(key) + _value(value))
        offset = 0
        for tensor in tensors:
            sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
            file.write(_text(tensor.name) + sizes + struct.pack("<IQ", tensor.code, offset))
            offset += tensor.size_bytes + -tensor.size_bytes % _ALIGNMENT
        _align(file)
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.load())
            assert data.nbytes == tensor.size_bytes, f"{tensor.name} has {data.nbytes} bytes, not {tensor.size_bytes}"
            file.write(data.tobytes())
            _align(file)


def _align(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGNMENT))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<I", _STRING) + _text(value)
