"""Buffers that a program changes: state, which is an input and an output of one name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ...errors import UnsupportedModel
from ._call import from_array, to_array


@dataclass(frozen=True)
class Buffer:
    """`target` is its path in the module, `placeholder` the node of the graph that holds it."""

    target: str
    placeholder: str
    start: torch.Tensor

    @property
    def default(self) -> str | None:
        """What an artifact starts from."""
        return None if self.start.any() else "zeros"


def buffers_changed(program: torch.export.ExportedProgram, taken: Collection[str]) -> dict[str, Buffer]:
    """By their names as inputs: `state_` and the path, and what tells them from `taken`.

    `UnsupportedModel` for a program that changes anything else."""
    signature = program.graph_signature
    kept = (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION, OutputKind.TOKEN)
    for spec in signature.output_specs:
        if spec.kind not in kept:
            raise UnsupportedModel(
                f"expected a program for inference that leaves its inputs alone, found {spec.kind.name.lower()} of "
                f"{spec.target!r}: return the changed value instead"
            )
    changed = {spec.target for spec in signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION}
    found: dict[str, Buffer] = {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.target in changed:
            held = program.state_dict if spec.target in program.state_dict else program.constants
            name = "state_" + re.sub(r"\W", "_", spec.target)
            while name in taken or name in found:
                name += "_"
            found[name] = Buffer(spec.target, spec.arg.name, held[spec.target].detach().clone())
    return found


@contextmanager
def set_buffers(
    module: torch.nn.Module, buffers: Mapping[str, Buffer], values: Mapping[str, np.ndarray]
) -> Iterator[dict[str, torch.Tensor]]:
    """`module` with `values`, by name, or as it starts; its buffers by name, which are reset in the end."""
    held = {name: module.get_buffer(buffer.target) for name, buffer in buffers.items()}
    try:
        for name, tensor in held.items():
            tensor.copy_(from_array(values[name]) if name in values else buffers[name].start)
        yield held
    finally:
        for name, tensor in held.items():
            tensor.copy_(buffers[name].start)


def arrays_of(held: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Copies, as numbers."""
    return {name: to_array(tensor.detach().clone()) for name, tensor in held.items()}
