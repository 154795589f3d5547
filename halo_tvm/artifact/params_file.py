"""params.bin: a safetensors container whose tensors all start at multiples of 64 bytes.

Layout
    8 bytes   length of the header, little endian
    header    JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}}, padded with spaces to 64 bytes
    data      tensors in header order; a gap is a tensor of its own, `__pad_<i>__` (uint8, zeros)
The format allows no holes between tensors, hence the explicit padding tensors; any safetensors reader
opens the file. The header follows from shapes and dtypes alone, so tensors are written one by one
and only one is in memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol, TypeGuard

import numpy as np

from ..errors import ArtifactCorrupt, UnsupportedModel

ALIGNMENT = 64
HEADER_LIMIT_BYTES = 100 << 20  # the format's own limit
_PAD, _METADATA = "__pad_", "__metadata__"
# dtype -> (name in the container, bytes per element)
DTYPES: dict[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
_NAMES = {code: dtype for dtype, (code, _) in DTYPES.items()}


class Writer(Protocol):
    def write(self, data: bytes | memoryview, /) -> object: ...


@dataclass(frozen=True)
class ParamHeader:
    """What is known of a tensor before it exists."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class ParamEntry:
    """A tensor in the file; `offset` is counted from the start of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    size_bytes: int


def write_params(file: Writer, headers: Sequence[ParamHeader], tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the container; `tensors` come in the order of `headers` and are consumed one at a time."""
    file.write(_encode_header(headers))
    stream = iter(tensors)
    for i, header in enumerate(headers):
        name, tensor = next(stream, (None, None))
        assert tensor is not None and name == header.name, f"parameter {i} is {name!r}, its header says {header.name!r}"
        assert tensor.shape == header.shape and str(tensor.dtype) == header.dtype, (
            f"parameter {name} is {tensor.dtype}{list(tensor.shape)}, "
            f"its header says {header.dtype}{list(header.shape)}"
        )
        # a flat byte view: memoryview knows neither bfloat16 nor 0-d arrays
        file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        file.write(bytes(_gap(header.size_bytes)) if i + 1 < len(headers) else b"")
    assert next(stream, None) is None, f"more parameters than the {len(headers)} headers"


def _gap(size_bytes: int) -> int:
    return -size_bytes % ALIGNMENT


def _encode_header(headers: Sequence[ParamHeader]) -> bytes:
    table: dict[str, object] = {}
    begin = 0
    for i, header in enumerate(headers):
        if header.name == _METADATA or header.name.startswith(_PAD):
            raise UnsupportedModel(
                f"expected names of weights other than those of their file, found {header.name[:80]!r}: rename it"
            )
        assert header.name not in table, f"parameter {header.name!r} occurs twice"
        assert header.dtype in DTYPES, (
            f"parameter {header.name!r} has dtype {header.dtype}, known are {', '.join(DTYPES)}"
        )
        end = begin + header.size_bytes
        table[header.name] = {
            "dtype": DTYPES[header.dtype][0],
            "shape": list(header.shape),
            "data_offsets": [begin, end],
        }
        gap = _gap(end)
        if gap and i + 1 < len(headers):
            table[f"{_PAD}{i}__"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
        begin = end + gap
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * _gap(8 + len(text))
    return struct.pack("<Q", len(text)) + text


def read_params_header(path: Path) -> dict[str, ParamEntry]:
    """As `params_header_of` the file at `path`."""
    with path.open("rb") as file:
        return params_header_of(file)


def params_header_of(file: BinaryIO) -> dict[str, ParamEntry]:
    """Entries by name, padding left out; every offset is checked against shape, dtype and file size.

    Raises
    ------
    ArtifactCorrupt
        a file that is no such container
    """
    path = Path(file.name)
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
    if length > min(HEADER_LIMIT_BYTES, size - 8):
        _corrupt(path, "a header inside the file", f"a header of {length} bytes in a file of {size}")
    raw = file.read(length)
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        _corrupt(path, "a JSON header", f"{type(error).__name__}: {str(error)[:120]}")
    if not isinstance(table, dict):
        _corrupt(path, "a JSON object as header", type(table).__name__)
    entries: dict[str, ParamEntry] = {}
    position, data = 0, 8 + length
    for name, item in table.items():
        if name == _METADATA:
            continue
        entry = _entry(path, name, item, data)
        if entry.offset != data + position:
            _corrupt(path, f"tensor {name!r} at offset {position}", f"{entry.offset - data}")
        position += entry.size_bytes
        if name.startswith(_PAD):
            continue
        if entry.offset % ALIGNMENT:
            _corrupt(path, f"tensor {name!r} at a multiple of {ALIGNMENT} bytes", f"offset {entry.offset}")
        entries[name] = entry
    if data + position != size:
        _corrupt(path, f"{data + position} bytes as its header says", f"{size}")
    return entries


def _entry(path: Path, name: str, item: object, data: int) -> ParamEntry:
    shape = item.get("shape") if isinstance(item, dict) else None
    offsets = item.get("data_offsets") if isinstance(item, dict) else None
    dtype = _NAMES.get(str(item.get("dtype"))) if isinstance(item, dict) else None
    if dtype is None or not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2 or len(shape) > 32:
        _corrupt(path, f"dtype, shape and data_offsets of tensor {name[:80]!r}", repr(item)[:160])
    size = math.prod(shape) * DTYPES[dtype][1]
    if offsets[1] - offsets[0] != size:
        _corrupt(path, f"{size} bytes for tensor {name[:80]!r} ({dtype}{shape})", f"{offsets[1] - offsets[0]}")
    return ParamEntry(name, tuple(shape), dtype, data + offsets[0], size)


def _sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)


def _corrupt(path: Path, expected: str, found: str) -> NoReturn:
    raise ArtifactCorrupt(
        f"{path.name}: expected {expected}, found {found}; copy the artifact again or compile the model again"
    )
