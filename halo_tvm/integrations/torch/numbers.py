"""Numbers that torch.compile hands over as tensors: the floats of a module (eps, p) under `dynamic=True`.

    p = placeholder;  v = p.item();  y = dropout(x, v)   ->   p = placeholder;  y = dropout(x, p)
A program is made for their values, as for other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class WithNumbers:
    """A graph whose arguments at `places` are numbers."""

    graph: fx.GraphModule
    places: tuple[int, ...]


def with_numbers(graph: fx.GraphModule) -> WithNumbers:
    """`graph`, where a tensor of one element that is only ever read by `item()` is that number instead."""
    nodes = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    result = nodes.graph_copy(graph.graph, copied)
    placeholders = [copied[node] for node in graph.graph.nodes if node.op == "placeholder"]
    places = tuple(i for i, node in enumerate(placeholders) if _is_number(node))
    if not places:
        return WithNumbers(graph, ())
    for item in [user for i in places for user in placeholders[i].users]:
        item.replace_all_uses_with(item.args[0])
        nodes.erase_node(item)
    nodes.output(result)
    return WithNumbers(fx.GraphModule(graph, nodes), places)


def numbers_of(args: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    """Arguments for the graph with numbers."""
    numbers = list(args)
    for i in places:
        numbers[i] = numbers[i].item()
    return tuple(numbers)


def kind_of_number(value: object) -> object:
    """What tells a number from others: 0.0 is not -0.0, and one NaN is as good as another."""
    return (type(value), repr(value) if isinstance(value, (float, complex)) else value)


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    read = all(user.op == "call_method" and user.target == "item" for user in node.users)
    return isinstance(value, torch.Tensor) and value.dim() == 0 and bool(node.users) and read
