"""The tensors of a Hugging Face directory: safetensors files, read one tensor at a time when it is asked for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ..errors import UnsupportedModel
from ..params import ParamSource
from ._json import read_json
from .packed_linears import ACTIVATIONS, Method

_SHOWN = 8  # tensor names in one message
_FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}  # of ml_dtypes
# What old checkpoints keep beside their weights: masks and frequencies, which a definition computes.
_BUFFER = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|attention\.(masked_)?bias|position_ids)$")


class DirectoryWeights:
    """Tensors of all safetensors files of a directory, by name, read when asked for, given as float32.

    Weights of linears may be stored by `method`; those that the definition reads as [k, n] have the `layout` "kn".
    """

    def __init__(
        self,
        path: Path,
        prefixes: tuple[str, ...],
        tied: Mapping[str, str],
        method: Method | None = None,
        layout: str = "nk",
    ) -> None:
        self.path = path
        self.prefixes = prefixes
        self.tied = tied  # other names of tensors, under which a checkpoint may keep them
        self.method = method
        self.layout = layout
        self.files = weight_files(path)
        self._where: dict[str, tuple[Path, tuple[int, ...]]] = {}
        self._read: set[str] = set()  # stored names that the definition asked for
        self._missing: list[str] = []
        for file in self.files:
            try:
                with safe_open(file, framework="numpy") as tensors:
                    for name in tensors.keys():
                        self._where[name] = (file, tuple(tensors.get_slice(name).get_shape()))
            except (SafetensorError, OSError) as reason:
                raise UnsupportedModel(
                    f"expected a readable safetensors file, found {reason} in {file.name}: download the model again"
                ) from reason

    def _stored(self, name: str) -> str | None:
        names = [prefix + n for n in (name, self.tied.get(name)) if n for prefix in self.prefixes]
        return next((n for n in names if n in self._where), None)

    def _packed(self, name: str) -> str | None:
        """The stem of the tensors that a weight is packed in."""
        if self.method is None or not name.endswith(".weight"):
            return None
        stems = [prefix + name.removesuffix("weight") for prefix in self.prefixes]
        markers = self.method.markers
        return next((stem for stem in stems if any(stem + marker in self._where for marker in markers)), None)

    def has(self, name: str) -> bool:
        return self._stored(name) is not None or self._packed(name) is not None

    def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
        """The tensor `name`; `scale` and `offset` concern random weights only."""
        if (packed := self._packed(name)) is not None:
            return self._unpacked(packed, shape)
        if (stored := self._stored(name)) is None:
            self._missing.append(name)
            return ParamSource(shape, "float32", lambda: np.zeros(shape, np.float32))  # `check` refuses the model
        self._read.add(stored)
        _, found = self._where[stored]
        if found != shape:
            raise UnsupportedModel(
                f"expected tensor {stored!r} of shape {list(shape)}, found {list(found)}: "
                "config.json and weights do not belong together"
            )
        return ParamSource(shape, "float32", lambda: np.ascontiguousarray(self._tensor(stored), dtype=np.float32))

    def _tensor(self, stored: str) -> np.ndarray:
        file = self._where[stored][0]
        with safe_open(file, framework="numpy") as tensors:
            narrow = _FLOAT8.get(tensors.get_slice(stored).get_dtype())
            found: np.ndarray = tensors.get_tensor(stored) if narrow is None else _float8(file, stored, narrow)
            return found

    def _unpacked(self, stem: str, shape: tuple[int, ...]) -> ParamSource:
        """The weight that the tensors under `stem` hold."""
        method = self.method
        assert method is not None
        names = {end: stem + end for end in method.parts if stem + end in self._where}
        turned = self.layout == "kn"

        def refuse(reason: object) -> UnsupportedModel:
            return UnsupportedModel(
                f"expected tensors of {stem.rstrip('.')!r} that make a weight of shape {list(shape)}, found {reason}: "
                "config.json and weights do not belong together"
            )

        try:
            if len(shape) != 2:
                raise ValueError("those of a linear")
            shapes = {end: self._where[name][1] for end, name in names.items()}
            layer = method.layer(shapes, *shape[:: -1 if turned else 1])
            grid = layer.grid(lambda end: self._tensor(names[end]))
        except ValueError as reason:
            raise refuse(reason) from reason
        made = (layer.k, layer.n) if turned else (layer.n, layer.k)
        if made != shape:
            raise refuse(f"one of shape {list(made)}")
        self._read.update(names.values(), (stem + end for end in ACTIVATIONS))

        def load() -> np.ndarray:
            try:
                weight = layer.floats({end: self._tensor(name) for end, name in names.items()})
            except ValueError as reason:
                raise refuse(reason) from reason
            return np.ascontiguousarray(weight.T if turned else weight)

        return ParamSource(shape, "float32", load, grid)

    def check(self, kind: object, *, complete: bool) -> None:
        """`UnsupportedModel` with all tensors that are missing and, where the definition is `complete`, unknown."""
        tied = {prefix + name for name in self.tied.values() for prefix in self.prefixes}
        unknown = [n for n in self._where if n not in self._read | tied and not _BUFFER.search(n)] if complete else []
        if not self._missing and not unknown:
            return
        found = f"{_listed('missing', self._missing)} and {_listed('unknown', unknown)} among {len(self._where)}"
        raise UnsupportedModel(
            f"expected the tensors of a {kind} model in {self.path.name}, found {found}: the checkpoint is incomplete "
            "or of another architecture"
        )

    def fingerprint(self) -> str:
        """SHA-256 over config.json and all weight files, whole: about a second per gigabyte."""
        digest = hashlib.sha256()
        for file in (self.path / "config.json", *self.files):
            with file.open("rb") as stream:
                digest.update(f"{file.name}:{file.stat().st_size}:".encode())
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def _listed(what: str, names: Sequence[str]) -> str:
    """`3 missing (a, b, c)`, shortened."""
    shown = ", ".join(sorted(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names)} {what} ({shown})" if names else f"none {what}"


def _float8(file: Path, name: str, dtype: str) -> np.ndarray:
    """A tensor of floats of eight bits, which safetensors itself does not hand to NumPy."""
    import ml_dtypes  # a dependency of TVM

    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        about = json.loads(stream.read(length))[name]  # `safe_open` has checked it
        begin, end = about["data_offsets"]
        stream.seek(8 + length + begin)
        return np.frombuffer(stream.read(end - begin), getattr(ml_dtypes, dtype)).reshape(about["shape"])


def weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index, "index of sharded safetensors").get("weight_map")
        listed = list(weight_map.values()) if isinstance(weight_map, dict) else [None]
        bad = [name for name in listed if not isinstance(name, str) or Path(name).name != name]
        if bad:
            raise UnsupportedModel(
                f"expected plain file names in {index.name}, found {str(bad[0])[:80]!r}: the index is not trustworthy"
            )
        files = [path / name for name in sorted({str(name) for name in listed})]
    else:
        files = sorted(path.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise UnsupportedModel(
            f"expected safetensors weights in {path.name}, found {'no file ' + missing[0] if missing else 'none'}: "
            "download the model completely (pickled .bin weights are not read)"
        )
    return files
