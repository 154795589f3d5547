"""Operators whose converter in TVM's own frontend passes every conformance test of the operator: reused as they are."""

from __future__ import annotations

from ... import _compat
from ._node import Node
from ._registry import CONVERTERS, converter


def reuse(*names: str, since: int = 1) -> None:
    """Serve `names` by TVM's converters, from operator version `since` on."""
    for name in names:
        if since not in CONVERTERS.get(("", name), {}):
            converter(name, since=since)(_through)


def _through(node: Node) -> object:
    inputs = [None if value is None else node.graph.expr_of(value) for value in node.inputs]
    return _compat.convert_onnx_node(
        node.graph.builder, node.op, inputs, node.proto.attribute, node.opset, len(node.outputs)
    )



