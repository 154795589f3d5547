"""The tensors of a Hugging Face directory, read one at a time when it is asked for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import UnsupportedModel
from ..params import ParamSource
from ._adapter import Adapter
from .packed_linears import ACTIVATIONS, Method
from .tensor_files import TensorFile, opened, weight_files

# A file of the model without its head has the names of the others without their first word.
WHOLE = (("", ""), ("model.", ""), ("transformer.", ""), ("gpt_neox.", ""), ("backbone.", ""))
_LAYERS = "layers."
_SHOWN = 8  # tensor names in one message
# What checkpoints keep beside their weights: masks and frequencies, which a definition computes, and scales of a cache
# of eight bits, which is not theirs to choose.
_BUFFER = re.compile(
    r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|attention\.(masked_)?bias|position_ids|(attn|attention)\.[kv]_scale)$"
)


class DirectoryWeights:
    """Tensors of all files of a directory that hold weights, by name, read when asked for, given as float32.

    Weights of linears may be stored by `method`; those that the definition reads as [k, n] have the `layout` "kn".
    `places` are starts of names and what stands in their place, where the model is a part of a larger one.
    """

    def __init__(
        self,
        path: Path,
        prefixes: tuple[str, ...],
        tied: Mapping[str, str],
        method: Method | None = None,
        layout: str = "nk",
        adapter: Adapter | None = None,
        places: Sequence[tuple[str, str]] = WHOLE,
    ) -> None:
        self.path = path
        self.prefixes = prefixes
        self.places = places
        self.tied = tied  # other names of tensors, under which a checkpoint may keep them
        self.method = method
        self.layout = layout
        self.adapter = adapter
        self.files = weight_files(path)
        self._where: dict[str, tuple[TensorFile, tuple[int, ...]]] = {}
        self._read: set[str] = set()  # stored names that the definition asked for
        self._missing: list[str] = []
        for file in map(opened, self.files):
            self._where.update({name: (file, shape) for name, shape in file.shapes.items()})

    def untied(self) -> bool:
        """Whether a tensor is stored under both of the names that were to be one, and differs: then none is tied.

        So transformers reads it: the config is wrong, and says nothing about what was trained.
        """
        for names in self.tied.items():
            one, other = (next((n for n in self._names(name) if n in self._where), None) for name in names)
            if one and other and not self._equal(one, other):
                self.tied = {}
                return True
        return False

    def _equal(self, one: str, other: str) -> bool:
        return self._same(one) == self._same(other) or np.array_equal(self._tensor(one), self._tensor(other))

    def _names(self, name: str) -> list[str]:
        """Under what names a checkpoint may keep the tensor `name`."""
        whole = [prefix + name for prefix in self.prefixes]
        return [new + n.removeprefix(old) for n in whole for old, new in self.places if n.startswith(old)]

    def _stored(self, name: str) -> str | None:
        names = [found for n in (name, self.tied.get(name)) if n for found in self._names(n)]
        return next((n for n in names if n in self._where), None)

    def _packed(self, name: str) -> str | None:
        """The stem of the tensors that a weight is packed in."""
        if self.method is None or not name.endswith(".weight"):
            return None
        stems = self._names(name.removesuffix("weight"))
        markers = self.method.markers
        return next((stem for stem in stems if any(stem + marker in self._where for marker in markers)), None)

    def has(self, name: str) -> bool:
        return self._stored(name) is not None or self._packed(name) is not None

    def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
        """The tensor `name`; `scale` and `offset` concern random weights only."""
        found = self._source(name, shape)
        if self.adapter is None:
            return found
        tied = name in self.tied
        turned = self.layout == "kn" and name not in (*self.tied, *self.tied.values())
        return self.adapter.applied(self._names(name), found, turned=turned, tied=tied)

    def _source(self, name: str, shape: tuple[int, ...]) -> ParamSource:
        if (packed := self._packed(name)) is not None:
            return self._unpacked(packed, shape)
        if (stored := self._stored(name)) is None and (parts := self._parts_of_experts(name)):
            return self._experts(name, parts, shape)
        if stored is None:
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

    def _parts_of_experts(self, name: str) -> dict[str, str]:
        """The tensors that the weight `name` of all experts is stored in, by the ends of their names."""
        ends = self.method.of_experts if self.method is not None else ()
        found = {end: self._stored(name + end) for end in ends}
        return {end: stored for end, stored in found.items() if stored} if all(found.values()) else {}

    def _experts(self, name: str, parts: dict[str, str], shape: tuple[int, ...]) -> ParamSource:
        self._read.update(parts.values())
        method = self.method
        assert method is not None

        def refuse(reason: ValueError) -> UnsupportedModel:
            return UnsupportedModel(
                f"expected tensors of {name!r} that make experts of shape {list(shape)}, found {reason}: "
                "config.json and weights do not belong together"
            )

        try:
            method.check_experts({end: self._where[stored][1] for end, stored in parts.items()}, shape)
        except ValueError as reason:
            raise refuse(reason) from reason

        def load() -> np.ndarray:
            try:
                return method.experts({end: self._tensor(stored) for end, stored in parts.items()}, shape)
            except ValueError as reason:
                raise refuse(reason) from reason

        return ParamSource(shape, "float32", load)

    def _tensor(self, stored: str) -> np.ndarray:
        return self._where[stored][0].read(stored)

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

    def check(self, kind: object, *, complete: bool, beside: tuple[str, ...] = ()) -> None:
        """`UnsupportedModel` with all tensors that are missing and, where the definition is `complete`, unknown.

        Those whose names start as one of `beside` are known to be no part of the model. In a larger model the unknown
        ones of its layers count alone.
        """
        tied = {found for name in self.tied.values() for found in self._names(name)}
        unknown = [n for n in self._where if n not in self._read | tied and not _BUFFER.search(n)] if complete else []
        if self.places != WHOLE:
            layers = tuple({name.partition(_LAYERS)[0] + _LAYERS for name in self._read if _LAYERS in name})
            unknown = [name for name in unknown if name.startswith(layers)]
        known = {self._same(name) for name in self._read & self._where.keys()} if unknown else set()
        unknown = [name for name in unknown if self._same(name) not in known and not name.startswith(beside)]
        if self.adapter is not None:
            self.adapter.check()
        if not self._missing and not unknown:
            return
        found = f"{_listed('missing', self._missing)} and {_listed('unknown', unknown)} among {len(self._where)}"
        raise UnsupportedModel(
            f"expected the tensors of a {kind} model in {self.path.name}, found {found}: the checkpoint is incomplete "
            "or of another architecture"
        )

    def _same(self, name: str) -> tuple[int, Hashable]:
        file, _ = self._where[name]
        return id(file), file.same(name)

    def fingerprint(self) -> str:
        """SHA-256 over config.json and all weight files, whole: about a second per gigabyte."""
        digest = hashlib.sha256()
        for file in (self.path / "config.json", *self.files):
            with file.open("rb") as stream:
                digest.update(f"{file.name}:{file.stat().st_size}:".encode())
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        if self.adapter is not None:
            digest.update(self.adapter.digest().encode())
        return digest.hexdigest()


def _listed(what: str, names: Sequence[str]) -> str:
    """`3 missing (a, b, c)`, shortened."""
    shown = ", ".join(sorted(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names)} {what} ({shown})" if names else f"none {what}"
