"""The same model for every engine: from an artifact's manifest to the file a peer reads.

A built-in model is built again (same seed, same weights); a directory or file must be given with
`--reference` and must be the one the artifact was made of.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ..artifact import ParamHeader, write_params
from ..errors import PeerFailed, UsageError
from ..imported import ImportedModel


class PeerModels:
    """Writes what peers read into `directory`, each form once and only when asked for."""

    def __init__(self, source: Mapping[str, object], reference: str | None, directory: Path) -> None:
        self._source = source
        self._reference = reference
        self._directory = directory
        self._imported: ImportedModel | None = None
        self._written: dict[str, Path] = {}
        check_reference(source, reference)

    def path(self, form: str) -> Path:
        """The model as "onnx" (contrib operators: what onnxruntime runs fastest; an ONNX source as it is),
        "onnx-plain" (standard operators), or "weights" (safetensors and a configuration)."""
        if form not in self._written:
            self._written[form] = self._weights() if form == "weights" else self._onnx(fused=form == "onnx")
        return self._written[form]

    def _onnx(self, fused: bool) -> Path:
        if self._source.get("kind") == "onnx":
            return Path(str(self._reference))
        from ..exporters.onnx import export_onnx

        path = self._directory / ("fused" if fused else "plain") / "model.onnx"
        export_onnx(self._model(), path, fused=fused)
        return path

    def _weights(self) -> Path:
        if self._source.get("kind") == "onnx":
            raise PeerFailed(
                "expected a built-in model or a Hugging Face directory, found an ONNX file: use --vs onnxruntime"
            )
        model = self._model()
        family, config = _configuration(self._source, self._reference)
        directory = self._directory / "weights"
        directory.mkdir()
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
        return directory

    def _model(self) -> ImportedModel:
        if self._imported is None:
            self._imported = _import(self._source, self._reference)
        return self._imported


def check_reference(source: Mapping[str, object], reference: str | None) -> None:
    """`UsageError` unless `reference` is what a source of this kind needs."""
    kind = source.get("kind")
    if kind == "builtin":
        return
    if kind not in ("huggingface", "onnx"):
        raise UsageError(
            f"expected an artifact made of a built-in model, a directory or an ONNX file, found {kind!r}: "
            "compile it again"
        )
    what = "directory" if kind == "huggingface" else "ONNX file"
    if reference is None:
        raise UsageError(
            f"a peer needs the original {what} of this artifact, found no --reference: add --reference PATH"
        )
    path = Path(reference)
    if not (path.is_dir() if kind == "huggingface" else path.is_file()):
        raise UsageError(f"expected the original {what} at {reference}, found none: correct --reference")
    if kind == "onnx":
        with path.open("rb") as file:
            _check_hash(source, hashlib.file_digest(file, "sha256").hexdigest(), reference)


def _check_hash(source: Mapping[str, object], found: object, reference: str) -> None:
    if source.get("sha256") != found:
        raise UsageError(
            f"expected the file the artifact was made of (SHA-256 {str(source.get('sha256'))[:16]}...), found "
            f"{str(found)[:16]}... at {reference}: give the original, or compile this one"
        )


def _import(source: Mapping[str, object], reference: str | None) -> ImportedModel:
    from ..importers import import_model

    if source["kind"] == "builtin":
        return import_model(str(source["name"]), seed=int(source.get("seed", 0)))
    model = import_model(str(reference))
    _check_hash(source, model.source.get("sha256"), str(reference))
    return model


def _configuration(source: Mapping[str, object], reference: str | None) -> tuple[str, dict[str, object]]:
    """The family's name and its configuration as plain values."""
    from ..models import FAMILIES, PRESETS

    if source["kind"] == "builtin":
        family, config = PRESETS[str(source["name"])]
    else:
        data = json.loads((Path(str(reference)) / "config.json").read_text(encoding="utf-8"))
        family = FAMILIES[str(source["family"])]
        config = family.from_huggingface(data)
    return family.name, dataclasses.asdict(config)
