"""Which outputs of a graph a program computes; the others are views of these or of arguments, or numbers: torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._prims_common import is_contiguous_or_false
from torch.utils import _pytree

from .writes import may_write, writes_in_place


class Outputs:
    """The outputs of `graph` in two parts, each a graph of its own.

    `computed` returns the tensors to compile. The rest are made in torch: what shares memory with an argument
    (`x.t()`) or with another output (`y, y[0]`), as it must in the caller's hands, and numbers made of sizes.
    `returns_written`: one of those may be written to first. `entangled`: some share memory, and torch cannot repeat
    that. `differentiable` says of the computed ones which have gradients.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        (returned,) = next(node for node in graph.graph.nodes if node.op == "output").args
        self._returned = tuple(returned)
        nodes = list(dict.fromkeys(out for out in self._returned if isinstance(out, fx.Node)))
        arguments = {_memory(node) for node in graph.graph.nodes if node.op == "placeholder"} - {None}
        made = [node for node in nodes if _is_tensor(node) and _memory(node) not in arguments]
        base = _bases(graph, made)
        computed = list(dict.fromkeys(base.get(node, node) for node in made))
        rest = [node for node in nodes if node not in computed]
        self._bases = list(dict.fromkeys(base.values()))
        self.computed = _part(graph, computed) if computed else None
        self._rest = _views(graph, rest, self._bases) if rest else None
        writes = self._rest is not None and any(map(may_write, self._rest.graph.nodes))
        self.returns_written = writes
        self.entangled = bool(base) and (writes or not _repeats(self._rest, self._bases, arguments))
        # The first to have memory may be zeros, which others are written to.
        with_gradients = {base.get(node, node) for node in made if node.meta["example_value"].requires_grad}
        self.differentiable = [node in with_gradients for node in computed]
        self._computed, self._order = computed, [*computed, *rest]
        self._as_computed = list(self._returned) == computed

    def joined(self, computed: Sequence[Any], args: Sequence[Any]) -> tuple[object, ...]:
        """What the graph returns for `args`, of what `computed` returned."""
        if self._as_computed:
            return tuple(computed)
        made = dict(zip(self._computed, computed, strict=True))
        rest = self._rest(*args, *(made[node] for node in self._bases)) if self._rest else ()
        values = dict(zip(self._order, (*computed, *rest), strict=True))
        return tuple(values[out] if isinstance(out, fx.Node) else out for out in self._returned)


def _bases(graph: fx.GraphModule, made: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For outputs that share memory with each other: the tensor that had the memory first, of which they are views."""
    memory = [_memory(node) for node in made]
    shared = {place for place in memory if place is not None and memory.count(place) > 1}
    first: dict[int | None, fx.Node] = {}
    for node in graph.graph.nodes:
        first.setdefault(_memory(node), node)
    return {node: first[place] for node, place in zip(made, memory, strict=True) if place in shared}


def _repeats(rest: fx.GraphModule | None, bases: Sequence[fx.Node], arguments: set[int | None]) -> bool:
    """Whether `rest` only makes views: of arguments, and of bases, which a program makes dense."""
    known = {*arguments, *map(_memory, bases)}
    nodes = rest.graph.nodes if rest is not None else ()
    tensors = [t for node in nodes if node.op != "output" for t in _tensors(node)]
    examples = [node.meta["example_value"] for node in bases]
    # one of vmap or grad is no tensor outside of them
    dense = all(not is_functorch_wrapped_tensor(t) and is_contiguous_or_false(t) for t in examples)
    return dense and all(_place(tensor) in known for tensor in tensors)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _memory(node: fx.Node) -> int | None:
    """What tells the memory of a tensor from that of others; None for anything else."""
    return _place(node.meta.get("example_value"))


def _place(value: object) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    tensor = value
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [t for t in _pytree.tree_leaves(node.meta.get("example_value")) if isinstance(t, torch.Tensor)]


def _part(graph: fx.GraphModule, outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """`graph` with these outputs only; it takes all arguments, and keeps what has no reader: `y[:, 0].mul_(2)` writes
    to a tensor that others read. torch.export drops the rest, once no operator writes."""
    part = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    part.graph_copy(graph.graph, copied)
    part.output(tuple(copied[node] for node in outputs))
    return fx.GraphModule(graph, part)


def _views(graph: fx.GraphModule, outputs: Sequence[fx.Node], bases: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of `graph` that makes views of its arguments and of `bases`, which it takes behind them, and numbers:
    nothing else of it is run.

    What it writes to them is there by then, so `x.add_(1)` is `x`.
    """
    part = _part(graph, outputs)
    copies = dict(zip(graph.graph.nodes, part.graph.nodes, strict=True))
    behind = next(node for node in part.graph.nodes if node.op != "placeholder")
    for base in bases:
        with part.graph.inserting_before(behind):
            given = part.graph.placeholder(f"made_{base.name}")
        given.meta = dict(base.meta)
        copies[base].replace_all_uses_with(given)
    for node in part.graph.nodes:
        if writes_in_place(node):
            node.replace_all_uses_with(node.args[0])
    part.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    part.recompile()
    return part
