"""A program of torch.export -> `ImportedModel`: a `.pt2` file, an `ExportedProgram`, or an `nn.Module` with examples.

    import_pt2(path)                              a file, read without executing anything in it
    import_program(program, name=...)             a program in memory
    import_module(module, example_inputs, ...)    exported here
"""

from __future__ import annotations

from ...errors import MissingPackage

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise MissingPackage("torch", "reading a torch.export program", "pip install torch") from missing

from ._program import import_module, import_program

__all__ = ["import_module", "import_program"]
