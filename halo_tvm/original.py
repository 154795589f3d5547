"""The model an artifact was made of, read again: what `--reference FILE` means when FILE is no .npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .artifact import Manifest, read_manifest
from .errors import UsageError
from .imported import ImportedModel
from .importers import import_model
from .reference import cases_of

_KINDS = {"onnx": "ONNX file", "huggingface": "directory"}


def import_original(manifest: Manifest, path: Path | str) -> ImportedModel:
    """The model at `path` with the shapes the artifact was compiled for; `UsageError` when it is another model."""
    kind = manifest.source.get("kind")
    if kind not in _KINDS:
        raise UsageError(
            f"expected an artifact made of an ONNX file or a directory, found one of kind {kind!r}: "
            "leave --reference out to use the reference in the artifact"
        )
    file = Path(path)
    if not (file.is_file() if kind == "onnx" else file.is_dir()):
        raise UsageError(f"expected the original {_KINDS[kind]} at {path}, found none: correct --reference")
    model = import_model(str(path), shapes=_shapes(manifest))
    wanted, found = str(manifest.source.get("sha256")), str(model.source.get("sha256"))
    if wanted != found:
        raise UsageError(
            f"expected the model the artifact was made of (SHA-256 {wanted[:16]}...), found {found[:16]}... at {path}: "
            "give the original, or compile this one"
        )
    return model


def is_archive(reference: Path | str | None) -> bool:
    """Whether `reference` is arrays that need no evaluation: the artifact's own, or an .npz file."""
    return reference is None or Path(reference).suffix == ".npz"


def reference_of(
    artifact: Path | str, reference: Path | str | None, seed: int = 0
) -> Path | str | dict[str, np.ndarray] | None:
    """`--reference` as `runtime.validation` takes it: an original becomes seeded inputs and its outputs for them."""
    return reference if is_archive(reference) else cases_of(import_original(read_manifest(artifact), reference), seed)


def _shapes(manifest: Manifest) -> tuple[str, ...]:
    """The artifact's input shapes as `--shape` texts."""
    spec = manifest.functions["main"]

    def text(dim: int | str) -> str:
        low, high = spec.ranges[dim] if isinstance(dim, str) else (dim, dim)
        return f"{low}..{high}"

    return tuple(f"{t.name}={'x'.join(map(text, t.shape))}" for t in spec.inputs if t.shape)
