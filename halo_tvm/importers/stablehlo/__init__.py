"""Files of `jax.export` and of StableHLO (text or bytecode) -> `ImportedModel`, through the table of lax primitives.

Every operation of StableHLO is one of `jax.lax`: the program is carried out with `jax.lax` while jax traces, and the
jaxpr goes on as that of any function of JAX. MLIR is read in a confined process (`_restricted`), where XLA running the
file as it is is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ...errors import MissingPackage
from ...imported import ImportedModel
from .._digest import sha256_of
from .._restricted import convert_restricted

Bounds = tuple[tuple[int, int], ...]  # the smallest and largest size of each dimension of one input


def import_stablehlo(path: Path, *, shapes: Mapping[str, Bounds] | None = None, trust: bool = False) -> ImportedModel:
    """Import the file at `path`; `shapes` of one number fix sizes that it leaves open."""
    for package in ("jax", "flatbuffers"):  # the second one reads what `jax.export` writes
        if find_spec(package) is None:
            raise MissingPackage(package, "reading a file of jax.export or StableHLO", "pip install 'halo_tvm[jax]'")
    bounds = {name: [list(b) for b in found] for name, found in (shapes or {}).items()}
    model = convert_restricted("stablehlo", path, {"shapes": bounds}, trust=trust, environment={"JAX_PLATFORMS": "cpu"})
    return replace(model, source={"kind": "stablehlo", "name": path.name, "sha256": sha256_of(path)})


def import_unrestricted(path: Path, options: Mapping[str, object]) -> ImportedModel:
    """What the confined process does."""
    from ._file import import_unrestricted

    return import_unrestricted(path, options)
