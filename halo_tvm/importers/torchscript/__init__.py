"""A TorchScript file (`.pt`, `.pth`, `.ts`, `.jit`), traced or scripted -> `ImportedModel`.

The file is converted in a confined process (`_restricted`): its graph is walked, which torch.export records, and
the exported program is imported like any other. State becomes inputs and outputs of the same names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ...imported import ImportedModel
from .._handover import write_arrays
from .._restricted import convert_restricted
from ..shapes import InputShape
from ._archive import check_archive


def import_torchscript(
    path: Path,
    *,
    shapes: Sequence[InputShape] = (),
    inputs: Mapping[str, np.ndarray] | None = None,
    trust: bool = False,
) -> ImportedModel:
    """Import `path` for inputs of `shapes`, or like the example `inputs` (by name, in order).

    Sizes that are given as ranges become symbolic; those of examples do where the model allows it, for batch and
    length. Raises `UnsupportedModel` for what is no TorchScript or cannot be converted, `UsageError` for inputs
    that are missing.
    """
    check_archive(path)
    with tempfile.TemporaryDirectory(prefix="halo-tvm-inputs-") as scratch:
        file = Path(scratch) / "inputs.safetensors"
        arrays = dict(inputs or {})
        write_arrays(file, {n: (str(a.dtype), a.shape) for n, a in arrays.items()}, arrays.values())
        options = {"shapes": [asdict(s) for s in shapes], "inputs": str(file) if arrays else None}
        return convert_restricted("torchscript", path, options, trust=trust, reads=(file,))


def import_unrestricted(path: Path, options: Mapping[str, object]) -> ImportedModel:
    """What the confined process does."""
    from ._convert import import_unrestricted

    return import_unrestricted(path, options)
