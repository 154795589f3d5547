"""What torch.save writes of a mapping from names to tensors: pytorch_model.bin, without torch and without unpickling.

    since torch 1.6   a zip archive, nothing compressed: data.pkl, and the numbers of every storage in data/KEY
    before            pickles of a magic number, a version, a system and the mapping, then the keys of the storages;
                      behind them, in that order, of every storage its length (int64) and its numbers
The pickle is read by `_pickle`, which makes nothing but plain values: whatever it names, no code of it runs.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Hashable, Mapping
from pathlib import Path

import numpy as np

from ...array_files import UNREADABLE, one_reason
from ...errors import UnsupportedModel
from ..meaning.constant import numpy_dtype
from ._file import TensorFile
from ._pickle import Strided, load

_LARGEST = 64 << 20  # bytes of a pickle: that of a large model has one
_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PICKLES = 3  # in front of the mapping
_ZIP = b"PK\x03\x04"


class PickledFile(TensorFile):
    """Raises `UnsupportedModel` for anything else than such a file; entries that are no tensors are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as stream:
                is_zip = stream.read(len(_ZIP)) == _ZIP
            found, self._places = _of_zip(path) if is_zip else _of_legacy(path)
            self._tensors = {name: tensor for name, tensor in found.items() if isinstance(tensor, Strided)}
            for name, tensor in self._tensors.items():
                tensor.check(name)
                place = self._places.get(tensor.key)
                if place is None or place[1] < tensor.elements * numpy_dtype(tensor.dtype).itemsize:
                    raise ValueError(f"{name!r} in a storage that is not there, or smaller")
        except UNREADABLE as reason:
            raise self._refused(one_reason(reason)) from reason
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        begin, _ = self._places[tensor.key]
        dtype = numpy_dtype(tensor.dtype)
        try:
            with self._path.open("rb") as stream:
                stream.seek(begin + tensor.offset * dtype.itemsize)
                read = stream.read(tensor.reach * dtype.itemsize)
        except OSError as reason:
            raise self._refused(one_reason(reason)) from reason
        if len(read) < tensor.reach * dtype.itemsize:
            raise self._refused(f"{name!r} cut off")
        stored = np.frombuffer(read, dtype)
        steps = [step * dtype.itemsize for step in tensor.strides]
        return np.lib.stride_tricks.as_strided(stored, tensor.shape, steps, writeable=False)

    def same(self, name: str) -> Hashable:
        tensor = self._tensors[name]
        return tensor.key, tensor.offset, tensor.shape, tensor.strides

    def _refused(self, reason: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"expected a state dict as torch.save writes it, found {reason} in {self._path.name}: download "
            "the model again, or save it as safetensors"
        )


# storage -> (where its numbers begin in the file, bytes)
Places = Mapping[str, tuple[int, int]]


def _of_zip(path: Path) -> tuple[Mapping[str, object], Places]:
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        members = {member.filename: member for member in archive.infolist()}
        pickled = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickled) != 1:
            raise ValueError(f"{len(pickled)} entries data.pkl")
        folder = pickled[0].removesuffix("data.pkl")
        if members[pickled[0]].file_size > _LARGEST:
            raise ValueError(f"a pickle of {members[pickled[0]].file_size} bytes")
        order = members.get(f"{folder}byteorder")
        if order is not None and order.file_size < 16 and archive.read(order) != b"little":
            raise ValueError("numbers whose first byte is the highest")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError("compressed entries")
        found, _ = load(io.BytesIO(archive.read(pickled[0])))
        places = {}
        for name, member in members.items():
            if name.startswith(f"{folder}data/"):
                stream.seek(member.header_offset)
                header = stream.read(30)
                if len(header) < 30 or header[:4] != _ZIP:
                    raise ValueError(f"no header of {name!r}")
                skipped = sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
                places[name.removeprefix(f"{folder}data/")] = (member.header_offset + 30 + skipped, member.file_size)
    return _mapping(found), places


def _of_legacy(path: Path) -> tuple[Mapping[str, object], Places]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        limited = io.BytesIO(stream.read(_LARGEST))
        first = [load(limited)[0] for _ in range(_LEGACY_PICKLES)]
        if first[0] != _MAGIC or not isinstance(first[2], dict) or first[2].get("little_endian") is not True:
            raise ValueError("neither a zip archive nor the pickles of older files")
        found, storages = load(limited)
        keys, _ = load(limited)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ValueError("no list of storages")
        at, places = limited.tell(), {}
        for key in keys:
            if key not in storages or not storages[key].dtype:
                raise ValueError(f"a storage {key[:40]!r} of no type")
            itemsize = numpy_dtype(storages[key].dtype).itemsize
            stream.seek(at)
            count = int.from_bytes(stream.read(8), "little", signed=True)
            if not 0 <= count <= (size - at) // itemsize:
                raise ValueError(f"a storage of {count} elements in a file of {size} bytes")
            places[key] = (at + 8, count * itemsize)
            at += 8 + count * itemsize
    return _mapping(found), places


def _mapping(found: object) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise ValueError("no mapping from names to tensors")
    return found
