"""A program of torch.export -> `ImportedModel`: a `.pt2` file, an `ExportedProgram`, or an `nn.Module` with examples.

import_pt2(path)                              a file, read in a confined process, nothing in it executed
import_program(program, name=...)             a program in memory
import_module(module, example_inputs, ...)    exported here
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import MissingPackage, UsageError
from ...imported import ImportedModel
from .._digest import sha256_of

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise MissingPackage("torch", "reading a torch.export program", "pip install torch") from missing

from ._names import distinct, name_of
from ._program import import_module, import_program

__all__ = ["distinct", "import_module", "import_program", "import_pt2", "import_unrestricted", "name_of"]


def import_pt2(path: Path | str, *, trust: bool = False) -> ImportedModel:
    """The program that `torch.export.save` wrote to `path`; torch in the confined process becomes the reference.

    `trust` goes on where the host offers no confinement. Raises `UnsupportedModel`, `UsageError`.
    """
    from .._restricted import convert_restricted

    path = Path(path)
    if not path.is_file():
        raise UsageError(f"expected a .pt2 file, found no file {str(path)!r}: check the path")
    return convert_restricted("torch_export", path, {}, trust=trust)


def import_unrestricted(path: Path, _options: Mapping[str, object]) -> ImportedModel:
    """`import_pt2` in this process."""
    from ._archive import read_pt2

    source = {"kind": "torch_export", "name": path.name, "sha256": sha256_of(path)}
    program, guards = read_pt2(path)
    return import_program(program, name=path.stem, source=source, guards=guards)
