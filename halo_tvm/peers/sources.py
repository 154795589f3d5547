"""The same model for every engine: from an artifact's manifest to the file a peer reads.

A built-in model is built again (same seed, same weights); a directory or file must be given with
`--reference` and must be the one the artifact was made of.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..artifact import ParamHeader, write_params
from ..errors import PeerFailed, UsageError
from ._narrow import write_int8

if TYPE_CHECKING:
    from ..imported import ImportedModel

CALIBRATION_CASES = 8
_PACKAGE = Path(__file__).resolve().parents[1]
# The code that peers' files come from: what imports the model, and what writes it. Then the tools it calls.
_MAKERS = (
    "models/*.py",
    "relay_ops/*.py",
    "importers/**/*.py",
    "imported.py",
    "original.py",
    "plain.py",
    "params.py",
    "reference.py",
    "exporters/*.py",
    "peers/_narrow.py",
    "peers/sources.py",
)
_TOOLS = ("onnx", "onnxruntime", "openvino", "nncf")


class PeerModels:
    """Writes what peers read into `directory`, each form once and only when asked for.

    `directory` may outlive this object: a form that is complete there is taken as it is (`cache_key` tells
    models, and what made their files, apart). `reference` has passed `check_reference`.
    """

    def __init__(self, source: Mapping[str, object], reference: str | None, directory: Path) -> None:
        self._source = source
        self._reference = reference
        self._directory = directory
        self._imported: ImportedModel | None = None

    def path(self, form: str) -> Path:
        """The model as "onnx" (contrib operators: what onnxruntime runs fastest; an ONNX source as it is),
        "onnx-plain" (standard operators), "weights" (safetensors and a configuration), or an int8 model:
        "onnx-int8", "onnx-plain-int8", "openvino-int8", "openvino-int8-static"."""
        if form.removesuffix("-plain") == "onnx" and self._source.get("kind") == "onnx":
            return self._given(Path(str(self._reference)))
        write, name = {
            "onnx": (lambda file: self._onnx(file, fused=True), "model.onnx"),
            "onnx-plain": (lambda file: self._onnx(file, fused=False), "model.onnx"),
            "onnx-int8": (lambda file: write_int8(form, self.path("onnx"), file), "model.onnx"),
            "onnx-plain-int8": (lambda file: write_int8(form, self.path("onnx-plain"), file), "model.onnx"),
            "openvino-int8": (lambda file: write_int8(form, self.path("onnx-plain"), file), "model.xml"),
            "openvino-int8-static": (self._openvino_int8_static, "model.xml"),
            "weights": (self._weights, ""),
        }[form]
        return self._whole(write, self._directory / form, name)

    def _given(self, path: Path) -> Path:
        """The ONNX file of the user; as it is compiled where it gives words, dictionaries or sequences."""
        from ..importers.onnx import plain_model

        plain = plain_model(path)
        if plain is None:
            return path
        return self._whole(lambda file: file.write_bytes(plain), self._directory / "onnx-given", "model.onnx")

    def _whole(self, write: Callable[[Path], object], folder: Path, name: str) -> Path:
        """The file that `write` makes in `folder`, which appears complete or not at all, and stays."""
        if folder.exists():
            return folder / name
        temporary = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            write(temporary / name)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return folder / name

    def _onnx(self, path: Path, *, fused: bool) -> None:
        from ..exporters.onnx import export_onnx

        export_onnx(self._model(), path, fused=fused)

    def _openvino_int8_static(self, path: Path) -> None:
        from ..reference import random_inputs

        model = self._model()
        sizes = {**{name: high for name, (_, high) in model.ranges.items()}, **model.typical}
        cases = [random_inputs(model.inputs, sizes, seed) for seed in range(CALIBRATION_CASES)]
        arrays = {f"case{i}.input.{name}": array for i, case in enumerate(cases) for name, array in case.items()}
        np.savez(path.with_name("calibration.npz"), **arrays)
        write_int8("openvino-int8-static", self.path("onnx-plain"), path, path.with_name("calibration.npz"))

    def _weights(self, directory: Path) -> None:
        kind = self._source.get("kind")
        if kind not in ("builtin", "huggingface"):
            raise PeerFailed(
                f"expected a built-in model or a Hugging Face directory, found a source of kind {kind}: "
                "use --vs onnxruntime"
            )
        model = self._model()
        family, config = _configuration(self._source, self._reference)
        names = list(model.params.sources)
        headers = [ParamHeader(name, model.params.shape(name), model.params.dtype(name)) for name in names]
        with (directory / "weights.safetensors").open("wb") as file:
            write_params(file, headers, model.params.stream(names))
        description = {
            "family": family,
            "config": config,
            "outputs": list(model.outputs),
            "inputs": [s.name for s in model.inputs],
        }
        (directory / "model.json").write_text(json.dumps(description), encoding="utf-8")

    def _model(self) -> ImportedModel:
        if self._imported is None:
            self._imported = _import(self._source, self._reference)
        return self._imported


def cache_key(source: Mapping[str, object]) -> str:
    """A folder's name for the files of one model: what it is made of, for a built-in one its configuration, and what
    makes the files. Whatever a manifest says, it is the name of a folder and no way to another."""
    from ..models import PRESETS

    parts: dict[str, object] = {**source, "makers": _makers()}
    if source.get("kind") == "builtin" and source.get("name") in PRESETS:
        parts["config"] = dataclasses.asdict(PRESETS[str(source["name"])][1])
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{_folder_name(source)}-{digest[:12]}"


def drop_stale(cache: Path, source: Mapping[str, object]) -> None:
    """Delete from `cache` the files of this model that earlier code or tools made."""
    for folder in cache.glob(f"{_folder_name(source)}-{'[0-9a-f]' * 12}"):
        if folder.name != cache_key(source):
            shutil.rmtree(folder)


def _folder_name(source: Mapping[str, object]) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", str(source.get("name", source.get("kind"))))[:60]


@functools.cache
def _makers() -> str:
    """A digest of the code that writes peers' files, and the versions of the tools it calls."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _MAKERS for path in _PACKAGE.glob(pattern)):
        digest.update(path.read_bytes())
    for tool in _TOOLS:
        try:
            digest.update(f"{tool} {metadata.version(tool)}\n".encode())
        except metadata.PackageNotFoundError:
            continue  # what needs it cannot be made
    return digest.hexdigest()


def check_reference(source: Mapping[str, object], reference: str | None) -> None:
    """`UsageError` unless `reference` is what a source of this kind needs: nothing for a built-in model."""
    from ..original import check_original, needed_original

    if reference is None:
        if source.get("kind") == "builtin":
            return
        needed = needed_original(source)
        if needed is not None:
            raise UsageError(
                f"a peer needs the original {needed} of this artifact, found no --reference: add --reference PATH"
            )
    check_original(source, reference or "")


def _import(source: Mapping[str, object], reference: str | None) -> ImportedModel:
    from ..importers import import_model
    from ..original import import_original

    if source["kind"] == "builtin":
        return import_model(str(source["name"]), seed=int(source.get("seed", 0)))
    return import_original(source, str(reference))


def _configuration(source: Mapping[str, object], reference: str | None) -> tuple[str, dict[str, object]]:
    """The family's name and its configuration as plain values."""
    from ..models import FAMILIES, PRESETS, completed

    if source["kind"] == "builtin":
        family, config = PRESETS[str(source["name"])]
    else:
        data = json.loads((Path(str(reference)) / "config.json").read_text(encoding="utf-8"))
        family = FAMILIES[str(source["family"])]
        config = family.from_huggingface(completed(data))
    return family.name, dataclasses.asdict(config)
