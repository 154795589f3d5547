"""Which outputs of a graph a program computes; the others are views of arguments, and numbers, and stay torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .writes import may_write, writes_in_place


class Outputs:
    """The outputs of `graph` in two parts, each a graph of its own.

    `computed` returns the tensors to compile, `rest` those that share the memory of an argument (`x.t()`), as they
    must in the caller's hands, and numbers made of sizes. `returns_written`: one of those may be written to first.
    `differentiable` says of the computed ones which have gradients.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        (returned,) = next(node for node in graph.graph.nodes if node.op == "output").args
        self._returned = tuple(returned)
        nodes = list(dict.fromkeys(out for out in self._returned if isinstance(out, fx.Node)))
        arguments = {_memory(node) for node in graph.graph.nodes if node.op == "placeholder"} - {None}
        computed = [node for node in nodes if _is_tensor(node) and _memory(node) not in arguments]
        rest = [node for node in nodes if node not in computed]
        self.computed = _part(graph, computed) if computed else None
        self.rest = _views(graph, rest) if rest else None
        self.returns_written = self.rest is not None and any(map(may_write, self.rest.graph.nodes))
        self.differentiable = [bool(node.meta["example_value"].requires_grad) for node in computed]
        self._order = [*computed, *rest]
        self._as_computed = list(self._returned) == computed

    def joined(self, computed: Sequence[Any], rest: Sequence[Any]) -> tuple[object, ...]:
        """What the graph returns, of what its parts returned."""
        if self._as_computed:
            return tuple(computed)
        values = dict(zip(self._order, (*computed, *rest), strict=True))
        return tuple(values[out] if isinstance(out, fx.Node) else out for out in self._returned)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _memory(node: fx.Node) -> int | None:
    """What tells the memory of a tensor from that of others; None for anything else."""
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) and value.layout == torch.strided else None


def _part(graph: fx.GraphModule, outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """`graph` with these outputs only; it takes all arguments, and keeps what has no reader: `y[:, 0].mul_(2)` writes
    to a tensor that others read. torch.export drops the rest, once no operator writes."""
    part = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    part.graph_copy(graph.graph, copied)
    part.output(tuple(copied[node] for node in outputs))
    return fx.GraphModule(graph, part)


def _views(graph: fx.GraphModule, outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of `graph` that makes views of its arguments, and numbers: nothing else of it is run.

    What it writes to arguments is there by then, so `x.add_(1)` is `x`.
    """
    part = _part(graph, outputs)
    for node in part.graph.nodes:
        if writes_in_place(node):
            node.replace_all_uses_with(node.args[0])
    part.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    part.recompile()
    return part
