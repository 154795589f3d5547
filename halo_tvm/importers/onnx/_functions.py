"""Operators without a converter whose definition has a body: the body's nodes are converted instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import NodeProto, TypeProto

from ..meaning.constant import Constant, numpy_dtype
from ._values import Sequence, Symbolic, Tensor, Value

if TYPE_CHECKING:
    from ._node import Node


def inline(node: Node, domain: str) -> tuple[Value | None, ...]:
    """The outputs of `node` through the model's own function of its name, or through the body of its definition."""
    function = node.graph.functions.get((domain, node.op))
    if function is None:
        function = _of_definition(node, domain)
    if function is None:
        own_layout = domain == "com.microsoft.nchwc"  # of files saved at onnxruntime's last level
        node.refuse(
            "a layout for one processor: take the file that onnxruntime optimised, or save it at ORT_ENABLE_EXTENDED"
            if own_layout
            else "no converter"
        )
    env: dict[str, Value | None] = dict.fromkeys(function.input)
    env.update(zip(function.input, node.inputs))
    given = {a.name: a for a in node.proto.attribute}
    defaults = {a.name: a for a in getattr(function, "attribute_proto", ())}
    nodes = [_with_attributes(n, {**defaults, **given}) for n in function.node]
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
    results = node.graph.convert_body(nodes, env, list(function.output), opsets)
    return tuple(results[: len(node.outputs)])


def _of_definition(node: Node, domain: str) -> object | None:
    """The body that ONNX itself defines for the operator, as a FunctionProto."""
    if not onnx.defs.has(node.op, domain):
        return None
    schema = onnx.defs.get_schema(node.op, node.opset, domain)
    if schema.has_function:
        return schema.function_body
    if schema.has_context_dependent_function:
        types = [b"" if i is None else type_of(i).SerializeToString() for i in node.inputs]
        body = schema.get_context_dependent_function(node.proto.SerializeToString(), types)
        if body:
            function = onnx.FunctionProto()
            function.ParseFromString(body)
            return function
    return None


def type_of(value: Value) -> TypeProto:
    """The ONNX type of a value; symbolic sizes are left open."""
    if isinstance(value, Sequence):
        return TypeProto()
    assert isinstance(value, Tensor | Constant | Symbolic)
    element = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(value.dtype))
    return onnx.helper.make_tensor_type_proto(element, [d if isinstance(d, int) else None for d in value.shape])


def _with_attributes(node: NodeProto, given: dict[str, object]) -> NodeProto:
    """A node of a body with the attributes of the call in place of references to them."""
    out = NodeProto()
    out.CopyFrom(node)
    del out.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                kept = out.attribute.add()
                kept.CopyFrom(given[attribute.ref_attr_name])
                kept.name = attribute.name
            continue
        kept = out.attribute.add()
        kept.CopyFrom(attribute)
        if attribute.HasField("g"):
            for position, inner in enumerate(attribute.g.node):
                kept.g.node[position].CopyFrom(_with_attributes(inner, given))
    return out
