"""A call that stands for a node of ONNX, written again as that node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from tvm import ir, relax

from ..errors import UnsupportedModel
from ..imported import KernelOrigin, Operand
from ._graph import Graph


def written_again(
    g: Graph, call: relax.Call, args: Sequence[object], kept: Mapping[str, KernelOrigin]
) -> str | tuple[str, ...]:
    """The node that `call` stands for, of values called `args`, in the opset that is written."""
    name = str(call.args[0].global_symbol)
    if name not in kept:
        raise UnsupportedModel(f"the function {name} outside of the model")
    origin = kept[name]
    node = onnx.NodeProto.FromString(origin.node)
    _check_meaning(node, origin.opset, g.spelling.opset)
    inputs = [_input(g, operand, call, args) for operand in origin.operands]
    while inputs and not inputs[-1]:
        inputs.pop()
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    made = g.emit_many(node.op_type, *inputs, outputs=len(origin.outputs), domain=node.domain, **attributes)
    used = tuple(value for value, there in zip(made, origin.outputs, strict=True) if there)
    return used if isinstance(call.ty, ir.TupleType) else used[0]


def _input(g: Graph, operand: Operand | None, call: relax.Call, args: Sequence[object]) -> str:
    if operand is None:
        return ""
    sizes = call.args[1 + operand.place]
    if not isinstance(sizes, relax.ShapeExpr):
        return str(args[operand.place])
    vector = g.shape(list(sizes.values)) if operand.rank else g.dim_scalar(sizes.values[0])
    if operand.dtype == "int64":
        return vector
    return g.once("Cast", vector, to=onnx.TensorProto.INT32)


def _check_meaning(node: onnx.NodeProto, own: int, wanted: int) -> None:
    """`UnsupportedModel` where the operator has another definition in the opset that is written.

    One that takes more types and is else spelled the same means the same.
    """
    if node.domain:
        return
    try:
        schemas = [onnx.defs.get_schema(node.op_type, opset, "") for opset in (own, wanted)]
    except onnx.defs.SchemaError:
        raise UnsupportedModel(f"{node.op_type}, which opset {wanted} does not have") from None
    if _signature(schemas[0]) != _signature(schemas[1]):
        raise UnsupportedModel(f"{node.op_type} of opset {own}, which opset {wanted} defines otherwise")


def _signature(schema: onnx.defs.OpSchema) -> object:
    values = [[(v.name, v.option) for v in group] for group in (schema.inputs, schema.outputs)]
    return values, {name: (a.type, a.default_value.SerializeToString()) for name, a in schema.attributes.items()}
