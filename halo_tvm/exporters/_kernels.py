"""A call that stands for a node of ONNX, written again as that node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


_REDEFINED = frozenset({"GroupNormalization"})  # by words alone: opset 21 has a scale for every channel


def _check_meaning(node: onnx.NodeProto, own: int, wanted: int) -> None:
    """`UnsupportedModel` where the operator has another definition in the opset that is written.

    One that only gained types, optional inputs, outputs and attributes means the same.
    """
    if node.domain:
        return
    try:
        old, new = (onnx.defs.get_schema(node.op_type, opset, "") for opset in (own, wanted))
    except onnx.defs.SchemaError:
        raise UnsupportedModel(f"{node.op_type}, which opset {wanted} does not have") from None
    if old.since_version == new.since_version:
        return
    gained = _only_gained(old.inputs, new.inputs) and _only_gained(old.outputs, new.outputs)
    attributes = {name: a.default_value.SerializeToString() for name, a in old.attributes.items()}
    kept = {name: a.default_value.SerializeToString() for name, a in new.attributes.items() if name in attributes}
    asked = any(a.required for name, a in new.attributes.items() if name not in attributes)
    if not gained or kept != attributes or asked or node.op_type in _REDEFINED:
        raise UnsupportedModel(f"{node.op_type} of opset {own}, which opset {wanted} defines otherwise")


def _only_gained(old: Sequence[onnx.defs.OpSchema.FormalParameter], new: Sequence[Any]) -> bool:
    """Whether the first of `new` are `old`, and the others may be left out."""
    same = [(v.name, v.option) for v in old] == [(v.name, v.option) for v in new[: len(old)]]
    return same and all(v.option == onnx.defs.OpSchema.FormalParameterOption.Optional for v in new[len(old) :])
