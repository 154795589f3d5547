"""Which ATen operators stay whole: those with a converter of their own. torch decomposes the others."""

from __future__ import annotations

import torch
from torch._decomp import decomposition_table
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens  # torch.export.save has no other word for it
from torch.export.graph_signature import InputKind

from ...array_files import one_reason
from ...errors import UnsupportedModel
from ._decompositions import DECOMPOSITIONS
from ._fast_paths import FAST_PATHS
from ._registry import COMPLEX, CONVERTERS, target_name

# What torch can say in other operators, and does not by default. Of others it makes its own primitives.
_KNOWN_TO_TORCH = frozenset(
    (
        "aten.addmv.default aten.diagonal.default aten.dist.default aten.ldexp.Tensor aten.narrow_copy.default "
        "aten.permute_copy.default aten.unbind_copy.int aten.view_copy.default"
    ).split()
)


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """`program` in operators that have converters, as far as torch can decompose the others."""
    table = torch.export.default_decompositions()
    foreign = {node.target for node in program.graph.nodes if _projects(node)}
    for op in list(table):
        if (target_name(op) in CONVERTERS or target_name(op) in COMPLEX) and op not in foreign:
            table.pop(op)
    table.update({**FAST_PATHS, **DECOMPOSITIONS})
    table.update({op: function for op, function in decomposition_table.items() if target_name(op) in _KNOWN_TO_TORCH})
    try:
        program = program.run_decompositions(table)
    except Exception as reason:  # torch's decompositions raise whatever they assert
        raise UnsupportedModel(
            f"expected a program that torch can decompose, found {type(reason).__name__} ({one_reason(reason)}): "
            "write the operator in others, or export the module to ONNX"
        ) from reason
    if any(spec.kind is InputKind.TOKEN for spec in program.graph_signature.input_specs):
        return _remove_effect_tokens(program)
    return program


def _projects(node: torch.fx.Node) -> bool:
    """Whether it is an LSTM whose output is narrower than its state (proj_size), which our own converter has not."""
    if node.target is not torch.ops.aten.lstm.input:
        return False
    hidden, cell = (state.meta["val"].shape[-1] for state in node.args[1])
    return hidden != cell
