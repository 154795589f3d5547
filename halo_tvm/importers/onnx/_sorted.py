"""Nodes behind what they read. ONNX asks for it, onnxruntime does not, and some converters leave it out."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

from onnx import ModelProto, NodeProto

from .definitions import graphs_of


def sort_nodes(model: ModelProto) -> bool:
    """Bring the nodes of every graph of `model` into an order in which each follows what it reads; whether any moved.

    Nodes that are in order stay as they are, cycles too: the checker refuses those.
    """
    return sum(_sort(nodes) for nodes in (model.graph.node, *(f.node for f in model.functions))) > 0


def _sort(nodes: Sequence[NodeProto]) -> bool:
    moved = sum(_sort(graph.node) for node in nodes for graph in graphs_of(node)) > 0
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needed = [{makers[name] for name in _read(node) if name in makers} - {i} for i, node in enumerate(nodes)]
    if all(maker < index for index, before in enumerate(needed) for maker in before):
        return moved
    readers = defaultdict(list)
    for index, before in enumerate(needed):
        for maker in before:
            readers[maker].append(index)
    missing = [len(before) for before in needed]
    ready = [index for index, count in enumerate(missing) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))  # the first of the file, so that as little as possible moves
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        return moved
    copies = [NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
    del nodes[:]  # type: ignore[attr-defined]
    nodes.extend(copies)  # type: ignore[attr-defined]
    return True


def _read(node: NodeProto) -> Iterable[str]:
    """Names that a node reads, those that graphs inside it take from around them included."""
    yield from node.input
    for graph in graphs_of(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from _read(inner)
