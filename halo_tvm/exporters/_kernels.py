"""A call that stands for a node of ONNX, written again as that node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from tvm import ir, relax

from ..errors import UnsupportedModel
from ..imported import KernelOrigin, Operand
from ..importers.onnx.definitions import graphs_of, redefined
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
    changed = redefined(node, origin.opset, g.spelling.opset)
    if changed:
        raise UnsupportedModel(changed)
    inputs = [_input(g, operand, call, args) for operand in origin.operands]
    while inputs and not inputs[-1]:
        inputs.pop()
    outer = {name: _input(g, operand, call, args) for name, operand in origin.captured}
    g.domains.update(origin.domains)
    mark = g.name(node.op_type)
    for graph in graphs_of(node):
        _rename(graph, outer, mark)
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


def _rename(graph: onnx.GraphProto, outer: Mapping[str, str], mark: str) -> None:
    """Names that `graph` defines begin with `mark`, as no other name does; names around it become those of `outer`."""
    sparse = [tensor.values for tensor in graph.sparse_initializer]
    own = [item.name for items in (graph.input, graph.initializer, sparse) for item in items]
    own += [name for node in graph.node for name in node.output if name]
    names = {**outer, **{name: f"{mark}/{name}" for name in own}}
    for item in (*graph.input, *graph.output, *graph.initializer, *sparse, *graph.value_info):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        for inner in graphs_of(node):
            _rename(inner, names, mark)
