"""Keras 3 -> `ImportedModel`: a `.keras` or `.h5` file, or a model in memory, on the backend jax, torch or tensorflow.

A file names classes and may carry code: it is read in a confined process (`_restricted`) on an installed backend, and
only with classes of Keras itself. A model in memory stays on the backend that Keras was imported with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import MissingPackage, UsageError
from ...imported import ImportedModel
from ...model_names import HDF5
from .._digest import sha256_of
from .._restricted import convert_restricted
from ..shapes import apply_shapes, parse_shape
from ._archive import check_archive
from .declared import Bounds

# Backend of Keras -> the packages that reading a model on it needs; the first that is installed reads files.
BACKENDS = {"jax": ("jax",), "torch": ("torch",), "tensorflow": ("tensorflow", "tf2onnx")}


def import_keras(path: Path, *, shapes: Mapping[str, Bounds] | None = None, trust: bool = False) -> ImportedModel:
    """Import the `.keras` or HDF5 file at `path`; Keras in the confined process is the reference.

    `trust` goes on where the host offers no confinement; classes that Keras does not have are refused all the same.
    """
    if find_spec("keras") is None:
        raise MissingPackage("keras", f"reading a {path.suffix} file", "pip install 'halo_tvm[keras]'")
    if not path.is_file():
        raise UsageError(f"expected a {path.suffix} file, found no file {str(path)!r}: check the path")
    if path.suffix not in HDF5:  # which nothing but a library in C reads: in the confined process
        check_archive(path)
    backend = _backend()
    bounds = {name: [list(b) for b in found] for name, found in (shapes or {}).items()}
    model = convert_restricted("keras", path, {"shapes": bounds}, trust=trust, environment={"KERAS_BACKEND": backend})
    return replace(model, source={"kind": "keras", "name": path.name, "sha256": sha256_of(path)})


def import_model(model: Any, *, name: str | None = None, shapes: tuple[str, ...] = ()) -> ImportedModel:
    """Import a Keras model in memory; `shapes` are texts like `ids=1..8x1..512` that fix or bound its inputs."""
    from ._model import import_built

    bounds = dict(map(parse_shape, shapes))
    return apply_shapes(import_built(model, name or str(model.name), bounds), shapes)


def import_unrestricted(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """What the confined process does."""
    from ._model import import_file

    return import_file(path, options)


def _backend() -> str:
    """The backend that KERAS_BACKEND names, as Keras reads it, else the first that is installed."""
    wanted = os.environ.get("KERAS_BACKEND")  # noqa: TID251 - Keras's own variable, which says what its user runs on
    missing = {name: [p for p in packages if find_spec(p) is None] for name, packages in BACKENDS.items()}
    if wanted:
        if wanted not in BACKENDS:
            raise UsageError(
                f"expected KERAS_BACKEND to be {', '.join(BACKENDS)}, found {wanted!r}: unset it, or name one of them"
            )
        if missing[wanted]:
            raise MissingPackage(missing[wanted][0], f"Keras on {wanted}", _install(wanted))
        return wanted
    found = next((name for name, packages in missing.items() if not packages), None)
    if found is None:
        raise MissingPackage("jax", "reading a .keras file on a backend", _install("jax"))
    return found


def _install(backend: str) -> str:
    return f"pip install 'halo_tvm[{backend}]'"
