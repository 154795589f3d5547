"""What a function changes at each call: variables, tables, generators, queues.

tf2onnx writes variables and tables as constants, and takes what changes them out without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedModel
from .._reasons import listed

_CHANGES = (
    *("Assign", "Resource", "ScatterUpdate", "ScatterAdd", "ScatterSub", "CountUpTo"),
    *("LookupTableInsert", "LookupTableRemove", "LookupTableImport"),
    *("Rng", "Stateful", "Queue", "Barrier", "Stack", "Stage", "MapStage"),
)
# Of those the ones that only read, or call a function that is looked at itself.
_READS = ("ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "QueueSize", "QueueSizeV2")


def check_state(function: Any, name: str) -> None:
    """`UnsupportedModel` where what the concrete `function` gives depends on what its calls change.

    What is changed without being seen, as the seeds of augmentations that do nothing in inference, does not matter.
    """
    whole = function.graph.as_graph_def()
    if not any(map(_changes, (*whole.node, *(n for f in whole.library.function for n in f.node_def)))):
        return
    graph = _inlined(function)
    library = {func.signature.name: func.node_def for func in graph.library.function}
    changed = {_tensor(node.input[0]) for node in graph.node if _changes(node) and node.input}
    nodes = {node.name: node for node in graph.node}
    holding = {called for called, body in library.items() if any(map(_changes, body))}
    found: dict[str, list[str]] = {}
    todo, seen = [tensor.op.name for tensor in function.outputs], set[str]()
    while todo:
        node = nodes.get(todo.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        given = [_tensor(i) for i in node.input if not i.startswith("^")]
        todo += given
        if _changes(node) or not changed.isdisjoint(given) or _called(node, library) & holding:
            found.setdefault(node.op, []).append(node.name)
    if found:
        raise UnsupportedModel(
            f"expected results that do not depend on what its calls change, found {listed(found)} in {name}: "
            "save a function that takes its state as an input and gives it as an output, or a Keras model with "
            "layers that draw as .keras, which is read as it predicts"
        )


def _inlined(function: Any) -> Any:
    """The GraphDef of `function` with its calls written out, except branches and bodies of loops."""
    from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

    return _run_inline_graph_optimization(function, False, True)


def _changes(node: Any) -> bool:
    return bool(node.op.startswith(_CHANGES)) and node.op not in _READS


def _tensor(name: str) -> str:
    """The node that makes the tensor `name`."""
    return name.removeprefix("^").partition(":")[0]


def _called(node: Any, library: Mapping[str, Any]) -> set[str]:
    """The functions of `library` that `node` calls, and those that they call."""
    todo, called = [node], set[str]()
    while todo:
        for attribute in todo.pop().attr.values():
            for func in (attribute.func, *attribute.list.func):
                if func.name in library and func.name not in called:
                    called.add(func.name)
                    todo += library[func.name]
    return called
