"""The container: metadata and the places of tensors in a GGUF file, read with bounds on time and memory.

Nothing in the file is believed: every count is compared with the bytes that are left before anything is made of it,
so that the work is bounded by the file's own size, and all arithmetic on sizes is Python's, which does not wrap.

References
    the GGUF specification (github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from ...errors import UnsupportedModel
from ._types import TYPES, TensorType

Value = int | float | bool | str | np.ndarray | tuple[str, ...]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "<u1 <i1 <u2 <i2 <u4 <i4 <f4 <u1 <u8 <i8 <f8".split()))
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LARGEST_TEXT = 16 << 20  # bytes of one string; chat templates are the longest
_LARGEST_NAME = 1 << 12
_MOST_STRINGS = 1 << 22  # of all arrays: tokens and merges of the largest vocabularies are a fifth of that
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 17
_MOST_SHARDS = 1 << 10
_LARGEST_ALIGNMENT = 1 << 16
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies. `shape` is in NumPy's order, the innermost dimension last."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    file: mmap.mmap
    begin: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) // self.kind.block * self.kind.size

    def blocks(self) -> np.ndarray:
        """The tensor's bytes, uint8 [blocks, bytes of a block], a view of the file."""
        data = np.frombuffer(self.file, np.uint8, self.size_bytes, self.begin)
        return data.reshape(-1, self.kind.size)


@dataclass(frozen=True)
class Gguf:
    """A model's metadata and tensors, of all its shards."""

    files: tuple[Path, ...]
    metadata: dict[str, Value]
    tensors: dict[str, Tensor]


def floats(file: Gguf, name: str) -> np.ndarray:
    """The tensor `name` as float32."""
    tensor = file.tensors[name]
    assert tensor.kind.floats is not None, f"{tensor.kind.name} was refused before"
    with np.errstate(all="ignore"):  # scales that are no numbers give weights that are none, as llama.cpp has it
        return tensor.kind.floats(tensor.blocks()).reshape(tensor.shape)


def read_gguf(path: Path) -> Gguf:
    """The model in the file `path`, or in all shards where it is one; `UnsupportedModel` for a damaged file."""
    files = _shards(path)
    metadata, tensors = _read(files[0])
    count = metadata.get("split.count", 1)
    if count not in (len(files), 0):
        _refuse(files[0], f"{len(files)} shards, as its name says", f"split.count {count!r:.40}", "download it again")
    for file in files[1:]:
        _, more = _read(file)
        twice = next((name for name in more if name in tensors), None)
        if twice:
            _refuse(file, "tensors of its own", f"{twice!r} of another shard", "download the model again")
        tensors |= more
    total = metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        _refuse(files[0], f"{total} tensors in all shards", str(len(tensors)), "download the model again")
    return Gguf(files, metadata, tensors)


def _shards(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` is one file of, the first one first."""
    found = _SHARD.fullmatch(path.name)
    if not found:
        return (path,)
    count = int(found["count"])
    if not 1 <= int(found["number"]) <= count <= _MOST_SHARDS:
        _refuse(path, f"a shard from 1 to at most {_MOST_SHARDS}", path.name, "correct the name")
    files = tuple(path.with_name(f"{found['stem']}-{i:05}-of-{found['count']}.gguf") for i in range(1, count + 1))
    missing = next((file for file in files if not file.is_file()), None)
    if missing:
        _refuse(path, f"{count} shards beside each other", f"no file {missing.name}", "download the model completely")
    return files


def _read(path: Path) -> tuple[dict[str, Value], dict[str, Tensor]]:
    try:
        with path.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as reason:  # an empty file cannot be mapped
        raise UnsupportedModel(
            f"expected a readable GGUF file, found {reason} in {path.name}: download it again"
        ) from (reason)
    header = _Header(path, data)
    metadata, tensors = header.read()
    _check_places(path, tensors)
    return metadata, tensors


def _check_places(path: Path, tensors: dict[str, Tensor]) -> None:
    """`UnsupportedModel` for tensors that share bytes."""
    places = sorted(tensors.values(), key=lambda t: (t.begin, t.size_bytes))
    for one, following in zip(places, places[1:]):
        if one.begin + one.size_bytes > following.begin:
            _refuse(path, "tensors apart", f"{following.name!r} inside of {one.name!r}", "download the model again")


class _Header:
    """Reads the header from the front; `at` is the next byte."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0
        self.strings = 0

    def read(self) -> tuple[dict[str, Value], dict[str, Tensor]]:
        if self._take(4) != _MAGIC:
            self._refuse("a file that begins with GGUF", repr(self.data[:4]), "give a GGUF file")
        version = int(self._number("<u4"))
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            found = f"a big-endian file of version {swapped}" if swapped in _VERSIONS else f"version {version}"
            self._refuse("GGUF version 2 or 3, little-endian", found, "convert it with a newer converter")
        tensors = self._count(24, _MOST_TENSORS, "tensors")
        keys = self._count(13, _MOST_KEYS, "keys")
        metadata: dict[str, Value] = {}
        for _ in range(keys):
            key = self._text(_LARGEST_NAME)
            if key in metadata:
                self._refuse("keys of metadata once", f"{key!r:.80} twice", "convert the model again")
            metadata[key] = self._value(int(self._number("<u4")), key)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
            self._refuse(f"an alignment from 8 to {_LARGEST_ALIGNMENT}, a power of two", f"{alignment!r:.40}")
        places = [self._tensor() for _ in range(tensors)]
        base = -(-self.at // alignment) * alignment
        known: dict[str, Tensor] = {}
        for name, shape, kind, offset in places:
            tensor = Tensor(name, shape, kind, self.data, base + offset)
            if name in known:
                self._refuse("tensors of different names", f"{name!r:.80} twice", "convert the model again")
            if offset % alignment or tensor.begin + tensor.size_bytes > len(self.data):
                self._refuse(
                    f"tensor {name!r:.80} within {len(self.data)} bytes, aligned to {alignment}",
                    f"bytes {tensor.begin} to {tensor.begin + tensor.size_bytes}",
                )
            known[name] = tensor
        return metadata, known

    def _tensor(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name = self._text(_LARGEST_NAME)
        rank = int(self._number("<u4"))
        if not 1 <= rank <= 4:
            self._refuse(f"one to four dimensions of tensor {name!r:.80}", str(rank))
        shape = tuple(int(self._number("<u8")) for _ in range(rank))[::-1]
        code = int(self._number("<u4"))
        if code not in TYPES:
            self._refuse(f"tensor {name!r:.80} of a known type", f"type {code}", "convert it to a type of llama.cpp")
        kind = TYPES[code]
        if min(shape) < 1 or shape[-1] % kind.block:
            self._refuse(f"rows of whole blocks of {kind.block} in tensor {name!r:.80}", f"shape {list(shape)}")
        return name, shape, kind, int(self._number("<u8"))

    def _value(self, code: int, key: str) -> Value:
        if code == _STRING:
            return self._text(_LARGEST_TEXT)
        if code != _ARRAY:
            return self._bool(code, self._scalar(code, key))
        code = int(self._number("<u4"))
        if code == _STRING:
            count = self._count(8, _MOST_STRINGS - self.strings, f"texts of {key!r:.80}")
            self.strings += count
            return tuple(self._text(_LARGEST_TEXT) for _ in range(count))
        if code not in _SCALARS:
            self._refuse(f"{key!r:.80} as an array of numbers or texts", f"an array of type {code}")
        dtype = np.dtype(_SCALARS[code])
        count = self._count(dtype.itemsize, len(self.data), f"numbers of {key!r:.80}")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _scalar(self, code: int, key: str) -> int | float:
        if code not in _SCALARS:
            self._refuse(f"{key!r:.80} of a known type", f"type {code}")
        return self._number(_SCALARS[code])

    @staticmethod
    def _bool(code: int, value: int | float) -> int | float | bool:
        return bool(value) if code == _BOOL else value

    def _number(self, dtype: str) -> int | float:
        kind = np.dtype(dtype)
        return np.frombuffer(self._take(kind.itemsize), kind)[0].item()  # type: ignore[no-any-return]

    def _text(self, most: int) -> str:
        (length,) = struct.unpack("<Q", self._take(8))
        if length > most:
            self._refuse(f"texts of at most {most} bytes", f"one of {length}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as reason:
            self._refuse("texts in UTF-8", str(reason))

    def _count(self, least: int, most: int, what: str) -> int:
        """A count of things that take `least` bytes each: no more than are left, and no more than `most`."""
        (count,) = struct.unpack("<Q", self._take(8))
        room = min(most, (len(self.data) - self.at) // least)
        if count > room:
            self._refuse(f"at most {room} {what}", str(count))
        return int(count)

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            self._refuse(f"at least {end} bytes", f"{len(self.data)}: it is cut off")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _refuse(self, expected: str, found: str, remedy: str = "download or convert the model again") -> NoReturn:
        _refuse(self.path, expected, found, remedy)


def _refuse(path: Path, expected: str, found: str, remedy: str) -> NoReturn:
    raise UnsupportedModel(f"expected {expected} in {path.name}, found {found}: {remedy}")
