"""What a graph changes in place: attributes, which are state then, and its own inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ...errors import UnsupportedModel


def nodes_of(block: torch._C.Block | torch._C.Graph) -> Iterator[torch._C.Node]:
    """Nodes of `block` and of the blocks inside, in order."""
    for node in block.nodes():
        yield node
        yield from itertools.chain.from_iterable(nodes_of(inner) for inner in node.blocks())


def module_paths(graph: torch._C.Graph) -> dict[str, str]:
    """The path of each module that the graph reads, by the name of the value."""
    found = {next(iter(graph.inputs())).debugName(): ""}
    for node in nodes_of(graph):
        if node.kind() == "prim::GetAttr" and node.output().type().kind() == "ClassType":
            owner = found.get(node.input().debugName())
            if owner is not None:
                found[node.output().debugName()] = joined(owner, node.s("name"))
    return found


def joined(owner: str, name: str) -> str:
    """The path of the attribute `name` of the module at `owner`."""
    return f"{owner}.{name}" if owner else name


def attributes_set(graph: torch._C.Graph) -> list[str]:
    """Paths of the attributes that the graph sets."""
    modules = module_paths(graph)
    owners = [(next(iter(n.inputs())).debugName(), n.s("name")) for n in nodes_of(graph) if n.kind() == "prim::SetAttr"]
    return [joined(modules[owner], name) for owner, name in owners if owner in modules]


def attributes_written(graph: torch._C.Graph) -> list[str]:
    """Paths of the attributes that operators may change in place, by TorchScript's own analysis of aliases."""
    modules, aliases = module_paths(graph), graph.alias_db(True)
    read = [n for n in nodes_of(graph) if n.kind() == "prim::GetAttr" and n.input().debugName() in modules]
    return [
        joined(modules[n.input().debugName()], n.s("name"))
        for n in read
        if n.output().type().kind() != "ClassType" and aliases.has_writers(n.output())
    ]


def writes_inputs(graph: torch._C.Graph) -> bool:
    """Whether operators may change an argument in place."""
    aliases = graph.alias_db(True)
    return any(aliases.has_writers(value) for value in list(graph.inputs())[1:])


class Kept:
    """A list or dictionary of a module, which a run may use as its own but must leave as it was."""

    def __init__(self, path: str, value: list[object] | dict[object, object]) -> None:
        self.path = path
        self.value: Any = copied(value)
        self._before = self._state()

    def check(self) -> None:
        """`UnsupportedModel` if the run changed it: only tensors are state."""
        if self._state() != self._before:
            raise UnsupportedModel(
                f"expected state that is tensors, found that a call changes the {type(self.value).__name__} "
                f"{self.path}: keep a tensor in its place, or export the model as ONNX"
            )

    def _state(self) -> list[object]:
        pairs = self.value.items() if isinstance(self.value, dict) else enumerate(self.value)
        return [(key, (id(v), v._version) if isinstance(v, torch.Tensor) else v) for key, v in pairs]


def copied(value: object) -> object:
    """`value` with tensors of its own, also in a list or dictionary."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [copied(v) for v in value]
    if isinstance(value, dict):
        return {key: copied(v) for key, v in value.items()}
    return value
