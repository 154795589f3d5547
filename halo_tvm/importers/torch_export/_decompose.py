"""Which ATen operators stay whole: those with a converter of their own. torch decomposes the others."""

from __future__ import annotations

import torch

from ._registry import CONVERTERS


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """`program` in operators that have converters, as far as torch can decompose the others."""
    table = torch.export.default_decompositions()
    for op in list(table):
        if f"{op.namespace}.{op._schema.name.split('::')[-1]}.{op._overloadname}" in CONVERTERS:
            table.pop(op)
    return program.run_decompositions(table)
