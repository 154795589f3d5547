"""The same model for every engine: from an artifact's manifest to the file a peer reads.

A built-in model is built again (same seed, same weights); a directory or file must be given with
`--reference` and must be the one the artifact was made of.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from ..artifact import ParamHeader, write_params
from ..errors import PeerFailed, UsageError
from ..imported import ImportedModel


class PeerModels:
    """Writes what peers read into `directory`, each form once and only when asked for.

    `reference` has passed `check_reference`.
    """

    def __init__(self, source: Mapping[str, object], reference: str | None, directory: Path) -> None:
        self._source = source
        self._reference = reference
        self._directory = directory
        self._imported: ImportedModel | None = None
        self._written: dict[str, Path] = {}

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
    from ..models import FAMILIES, PRESETS

    if source["kind"] == "builtin":
        family, config = PRESETS[str(source["name"])]
    else:
        data = json.loads((Path(str(reference)) / "config.json").read_text(encoding="utf-8"))
        family = FAMILIES[str(source["family"])]
        config = family.from_huggingface(data)
    return family.name, dataclasses.asdict(config)
