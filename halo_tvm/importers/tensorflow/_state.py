"""What a function changes at each call: variables, tables, generators, queues.

tf2onnx writes variables and tables as constants, and takes what changes them out without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import UnsupportedModel

_CHANGES = (
    *("Assign", "Resource", "ScatterUpdate", "ScatterAdd", "ScatterSub", "CountUpTo"),
    *("LookupTableInsert", "LookupTableRemove", "LookupTableImport"),
    *("Rng", "Stateful", "Queue", "Barrier", "Stack", "Stage", "MapStage"),
)
# Of those the ones that only read, or call a function that is looked at itself.
_READS = ("ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "QueueSize", "QueueSizeV2")


def check_state(function: Any, name: str) -> None:
    """`UnsupportedModel` where a call of the concrete `function` changes what the next call finds."""
    found: dict[str, list[str]] = {}
    for node in _nodes(function.graph.as_graph_def()):
        if node.op.startswith(_CHANGES) and node.op not in _READS:
            found.setdefault(node.op, []).append(node.name)
    if found:
        listed = "; ".join(f"{op} ({len(n)}: {', '.join(n[:3])})" for op, n in sorted(found.items())[:20])
        raise UnsupportedModel(
            f"expected a function that leaves variables and tables as they are, found {listed} in {name}: "
            "save one that takes its state as an input and gives it as an output"
        )


def _nodes(graph: Any) -> Iterator[Any]:
    """Of `graph`, a GraphDef, and of every function that it calls."""
    library = {function.signature.name: function.node_def for function in graph.library.function}
    todo, called = [graph.node], set()
    while todo:
        for node in todo.pop():
            yield node
            for attribute in node.attr.values():
                for func in (attribute.func, *attribute.list.func):
                    if func.name in library and func.name not in called:
                        called.add(func.name)
                        todo.append(library[func.name])
