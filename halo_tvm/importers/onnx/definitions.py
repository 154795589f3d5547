"""Whether a node of one opset means the same in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import onnx

_REDEFINED = frozenset({"GroupNormalization"})  # by words alone: opset 21 has a scale for every channel


def redefined(node: onnx.NodeProto, own: int, wanted: int) -> str:
    """Why `node` of opset `own`, with all nodes of graphs inside it, cannot be written in opset `wanted`; "" if it can.

    An operator that only gained types, optional inputs, outputs and attributes means the same.
    """
    return next((reason for inner in nodes_in(node) if (reason := _redefined(inner, own, wanted))), "")


def nodes_in(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """`node`, and those of all graphs inside it."""
    yield node
    for graph in graphs_of(node):
        for inner in graph.node:
            yield from nodes_in(inner)


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of `node`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _redefined(node: onnx.NodeProto, own: int, wanted: int) -> str:
    if node.domain not in ("", "ai.onnx"):
        return ""
    found = []
    with suppress(onnx.defs.SchemaError):
        found = [onnx.defs.get_schema(node.op_type, opset, "") for opset in (own, wanted)]
    if not found or found[1].deprecated:
        return f"{node.op_type}, which opset {wanted} does not have"
    old, new = found
    if old.since_version == new.since_version:
        return ""
    gained = _only_gained(old.inputs, new.inputs) and _only_gained(old.outputs, new.outputs)
    attributes = {name: a.default_value.SerializeToString() for name, a in old.attributes.items()}
    kept = {name: a.default_value.SerializeToString() for name, a in new.attributes.items() if name in attributes}
    asked = any(a.required for name, a in new.attributes.items() if name not in attributes)
    if not gained or kept != attributes or asked or node.op_type in _REDEFINED:
        return f"{node.op_type} of opset {own}, which opset {wanted} defines otherwise"
    return ""


def _only_gained(old: Sequence[onnx.defs.OpSchema.FormalParameter], new: Sequence[Any]) -> bool:
    """Whether the first of `new` are `old`, and the others may be left out."""
    same = [(v.name, v.option) for v in old] == [(v.name, v.option) for v in new[: len(old)]]
    return same and all(v.option == onnx.defs.OpSchema.FormalParameterOption.Optional for v in new[len(old) :])
