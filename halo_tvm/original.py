"""The model an artifact was made of, read again: what `--reference FILE` means when FILE is no .npz."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .artifact import UNBOUNDED, Manifest, TensorSpec, range_of, read_manifest
from .errors import Declined, UsageError

if TYPE_CHECKING:
    from .imported import ImportedModel

_KINDS = {
    "onnx": "ONNX file",
    "tflite": "TFLite file",
    "keras": "file of Keras",
    "tensorflow": "SavedModel directory",
    "stablehlo": "file of jax.export or StableHLO",
    "torch_export": ".pt2 file",
    "torchscript": "TorchScript file",
    "huggingface": "directory",
    "gguf": "GGUF file",
    "transformers": "directory",
}
_DIRECTORIES = ("huggingface", "tensorflow", "transformers")


def check_original(source: Mapping[str, object], path: Path | str) -> None:
    """`UsageError` unless `path` can be what `source` (of a manifest) names; a file's hash is checked here."""
    kind = source.get("kind")
    if kind not in _KINDS:
        raise UsageError(
            f"expected an artifact made of a model file or a directory, found one of kind {kind!r}: "
            "leave --reference out"
        )
    file = Path(path)
    if not (file.is_dir() if kind in _DIRECTORIES else file.is_file()):
        raise UsageError(f"expected the original {_KINDS[kind]} at {path}, found none: correct --reference")
    if kind not in _DIRECTORIES and "shards" not in source:
        with file.open("rb") as stream:
            _check_hash(source, hashlib.file_digest(stream, "sha256").hexdigest(), path)


def import_original(source: Mapping[str, object], path: Path | str, shapes: tuple[str, ...] = ()) -> ImportedModel:
    """The model at `path` with the dimensions `shapes` give; `UsageError` when it is not the one `source` names."""
    from .importers import import_model  # reads with TVM, which a host that only runs artifacts may lack

    check_original(source, path)
    part = source.get("part")
    model = import_model(f"{path}:{part}" if part else str(path), shapes=shapes)
    _check_hash(source, model.source.get("sha256"), path)
    return model


def needed_original(source: Mapping[str, object]) -> str | None:
    """What a user must give as `--reference` for a model of this source to be read again; None: nothing."""
    return _KINDS.get(str(source.get("kind")))


def _check_hash(source: Mapping[str, object], found: object, path: Path | str) -> None:
    wanted = str(source.get("sha256"))
    if wanted != found:
        raise UsageError(
            f"expected the model the artifact was made of (SHA-256 {wanted[:16]}...), found {str(found)[:16]}... "
            f"at {path}: give the original, or compile this one"
        )


def is_archive(reference: Path | str | None) -> bool:
    """Whether `reference` is arrays that need no evaluation: the artifact's own, or an .npz file."""
    return reference is None or Path(reference).suffix == ".npz"


def reference_of(
    artifact: Path | str, reference: Path | str | None, seed: int = 0, text: str | None = None
) -> Path | str | dict[str, np.ndarray] | None:
    """`--reference` as `runtime.validation` takes it: an original becomes seeded inputs and its outputs for them.

    `text` is a file that a language model reads instead of the shipped passage.
    """
    if text is not None and is_archive(reference):
        raise UsageError(f"expected --reference with the original beside --text {text}, which it reads, found none")
    if reference is None or is_archive(reference):
        return reference
    from .reference import cases_of
    from .text_reference import Passage, passage_of

    manifest = read_manifest(artifact)
    model = import_original(manifest.source, reference, _shapes(manifest))
    cases = cases_of(model, seed, precision=manifest.precision)
    with suppress(Declined):  # `compile` says why
        cases.update((Passage(model) if text is None else passage_of(model, text, "--text")).cases())
    return cases


def _shapes(manifest: Manifest) -> tuple[str, ...]:
    """The artifact's inputs as `--shape` texts; all of them where the file declares none (TorchScript)."""
    spec = manifest.functions["main"]
    undeclared = manifest.source.get("kind") == "torchscript"

    def size(dim: int | str) -> str:
        low, high = range_of(dim, spec.ranges) or (1, UNBOUNDED)
        return f"{max(1, low)}..{high}"

    def text(t: TensorSpec) -> str:
        if not undeclared:
            return f"{t.name}={'x'.join(map(size, t.shape))}"
        if t.shape:
            return f"{t.name}:{t.dtype}={'x'.join(map(size, t.shape))}"
        # a number that the model was compiled for takes its value only
        fixed = t.values is not None and t.values[0] == t.values[1]
        return f"{t.name}=scalar({t.values[0]})" if fixed else f"{t.name}:{t.dtype}=scalar"

    # state is the importer's, not the file's
    return tuple(text(t) for t in spec.inputs if t.name not in spec.state and (t.shape or undeclared))
