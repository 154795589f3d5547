"""A `.pt2` file -> `ExportedProgram`, without unpickling: graph from JSON that passed `_gate`, weights mapped."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ...array_files import one_reason
from ...errors import UnsupportedModel
from ._gate import checked_program
from .library import define_operators

_JSON_LIMIT = 256 << 20
_ENTRY_LIMIT = 200_000
_LOCAL_HEADER = 30  # bytes in front of the name and the extra field of an entry


def read_pt2(path: Path) -> tuple[torch.export.ExportedProgram, list[str]]:
    """The program in `path`, and as text what it takes for granted of sizes.

    `UnsupportedModel` for what is no such file, or holds pickles or custom objects."""
    from torch._export.serde import schema, serialize

    try:
        archive = _Archive(path)
        serialised, guards = checked_program(archive.json(archive.program))
        state = archive.tensors(f"data/weights/{archive.model}_weights_config.json", "data/weights/")
        constants = archive.tensors(f"data/constants/{archive.model}_constants_config.json", "data/constants/")
    except (zipfile.BadZipFile, OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as reason:
        raise _bad(path, f"{type(reason).__name__}: {str(reason)[:120]}") from reason
    define_operators()
    try:
        program = serialize._dict_to_dataclass(schema.ExportedProgram, serialised)
        return serialize.ExportedProgramDeserializer().deserialize(program, state, constants, None), guards
    except UnsupportedModel:
        raise
    except Exception as reason:  # torch's reader raises anything for a graph that does not fit together
        raise _bad(path, f"{type(reason).__name__}: {one_reason(reason)}") from reason


def _bad(path: Path, found: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"expected a program saved by torch.export.save, found {found} in {path.name}: "
        "save it again with this version of torch"
    )


class _Archive:
    """The entries of the file: stored as they are, inside its bounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.data = np.memmap(path, np.uint8, "c")  # once: every mapping holds an open file
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if len(entries) > _ENTRY_LIMIT:
            raise ValueError(f"{len(entries)} entries")
        roots = {e.filename.split("/", 1)[0] for e in entries}
        if len(roots) != 1:
            raise ValueError(f"{len(roots)} top directories")
        self.entries = {e.filename.split("/", 1)[-1]: e for e in entries}
        programs = [n for n in self.entries if n.startswith("models/") and n.endswith(".json")]
        if len(programs) != 1:
            raise ValueError(f"{len(programs)} programs (one is expected)")
        self.program = programs[0]
        self.model = Path(self.program).stem
        if "byteorder" in self.entries and self.bytes("byteorder") != b"little":
            raise ValueError("numbers of another byte order")

    def place(self, name: str) -> tuple[int, int]:
        """Offset and size of an entry's data."""
        entry = self.entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise ValueError(f"the compressed or encrypted entry {name[:80]!r}")
        with self.path.open("rb") as stream:
            stream.seek(entry.header_offset)
            header = stream.read(_LOCAL_HEADER)
        if header[:4] != b"PK\x03\x04":
            raise ValueError(f"no local header of {name[:80]!r}")
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        start = entry.header_offset + _LOCAL_HEADER + lengths
        if entry.file_size < 0 or start + entry.file_size > self.size:
            raise ValueError(f"the entry {name[:80]!r} beyond the end of the file")
        return start, entry.file_size

    def bytes(self, name: str) -> bytes:
        start, size = self.place(name)
        if size > _JSON_LIMIT:
            raise ValueError(f"{size} bytes of {name[:80]!r}")
        with self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(size)

    def json(self, name: str) -> object:
        return json.loads(self.bytes(name))

    def tensors(self, config: str, folder: str) -> dict[str, torch.Tensor]:
        """The tensors that a payload configuration lists, as views of the mapped file."""
        flat: dict[str, torch.Tensor] = {}
        tensors: dict[str, torch.Tensor] = {}
        for name, payload in self.json(config)["config"].items():
            if payload["use_pickle"] or not str(payload["path_name"]).startswith(("weight_", "tensor_")):
                raise ValueError(f"the pickled object {name[:80]!r}")
            tensors[name] = self._tensor(name, payload["tensor_meta"], folder + payload["path_name"], flat)
            if payload["is_param"]:
                tensors[name] = torch.nn.Parameter(tensors[name], requires_grad=False)
        return tensors

    def _tensor(self, name: str, meta: Mapping[str, object], entry: str, flat: dict[str, torch.Tensor]) -> torch.Tensor:
        from torch._export.serde.serialize import deserialize_scalar_type

        dtype = deserialize_scalar_type(meta["dtype"])
        sizes, strides = ([int(s["as_int"]) for s in meta[key]] for key in ("sizes", "strides"))
        offset = int(meta["storage_offset"]["as_int"])
        start, size_bytes = self.place(entry)
        if entry not in flat:
            raw = self.data[start : start + size_bytes]
            whole = size_bytes - size_bytes % dtype.itemsize
            aligned = raw if start % dtype.itemsize == 0 and size_bytes else np.array(raw)
            flat[entry] = torch.from_numpy(aligned[:whole]).view(dtype)
        low = min([offset, *sizes, *strides], default=0)
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides))
        if low < 0 or len(sizes) != len(strides) or (math.prod(sizes) and last >= flat[entry].numel()):
            raise ValueError(f"the tensor {name[:80]!r} larger than its {size_bytes} bytes")
        return torch.as_strided(flat[entry], sizes, strides, offset)
