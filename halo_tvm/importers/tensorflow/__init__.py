"""A TensorFlow SavedModel -> `ImportedModel`, by way of an ONNX graph in memory.

A SavedModel is a program: TensorFlow reads it in a confined process (`_restricted`), where tf2onnx writes it as ONNX
and the importer of ONNX reads that. TensorFlow in the same process is the reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ...errors import MissingPackage
from ...imported import ImportedModel
from .._digest import sha256_of
from .._restricted import convert_restricted
from ..onnx import Bounds

_INSTALL = "pip install 'halo_tvm[tensorflow]'"


def import_saved_model(
    path: Path, *, shapes: Mapping[str, Bounds] | None = None, signature: str = "", trust: bool = False
) -> ImportedModel:
    """Import `signature` (default: serving_default, else the only one) of the SavedModel directory at `path`."""
    for package in ("tensorflow", "tf2onnx"):
        if find_spec(package) is None:
            raise MissingPackage(package, "reading a SavedModel", _INSTALL)
    bounds = {name: [list(b) for b in found] for name, found in (shapes or {}).items()}
    model = convert_restricted("tensorflow", path, {"shapes": bounds, "signature": signature}, trust=trust)
    part = {"part": signature} if signature else {}
    source: dict[str, object] = {"kind": "tensorflow", "name": path.name, "sha256": _sha256(path), **part}
    return replace(model, source=source)


def _sha256(path: Path) -> str:
    """Of the program and its variables, file by file."""
    files = [path / "saved_model.pb", *sorted((path / "variables").glob("variables.*"))]
    return hashlib.sha256("".join(sha256_of(f) for f in files).encode()).hexdigest()


def import_unrestricted(path: Path, options: Mapping[str, object]) -> ImportedModel:
    """What the confined process does."""
    from .convert import import_unrestricted

    return import_unrestricted(path, options)
