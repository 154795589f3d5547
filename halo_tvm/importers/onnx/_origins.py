"""For an exporter: nodes that are made of kernels stay as they are, calls of a function that stands for the node.

Only where the importer is told which operators of Relax have a spelling. Everything else is converted as ever, so that
lifts and graph passes see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from tvm import ir, relax

from ...imported import KernelOrigin, Operand
from ..meaning.builder import Refused
from ..meaning.sizes import prim
from ._node import Node
from ._values import Sequence as Tensors
from ._values import Symbolic, Tensor, Value

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_MOST = 10_000  # bindings of one node that are looked at


def kept_whole(node: Node, results: Sequence[Value | None], spelled: frozenset[str]) -> tuple[Tensor, ...] | None:
    """The results of `node` as those of one call, if it was made of an operator that is not `spelled`; else None."""
    tensors = [value for value in results if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(results) or any(a.type in _GRAPHS for a in node.proto.attribute):
        return None
    if all(name in spelled for name in _operators(node, [t.expr for t in tensors])):
        return None
    try:
        operands, args = _operands(node)
    except Refused:  # a value that Relax has no tensor for
        return None
    proto = onnx.NodeProto(op_type=node.op, domain="" if node.domain == "ai.onnx" else node.domain)
    proto.attribute.extend(node.proto.attribute)
    name = node.graph.keep(KernelOrigin(proto.SerializeToString(), node.opset, operands))
    types = [t.expr.ty for t in tensors]
    result = types[0] if len(types) == 1 else ir.TupleType(types)
    made = node.block.emit(relax.op.call_pure_packed(name, *args, ty_args=result))
    if len(types) == 1:
        return (Tensor(made),)
    return tuple(Tensor(node.block.emit(relax.TupleGetItem(made, i))) for i in range(len(types)))


def _operators(node: Node, results: Sequence[relax.Expr]) -> Iterator[str]:
    """The operators between the inputs of `node` and its results; a function of the module has no name here."""
    ends = [value.expr for value in node.inputs if isinstance(value, Tensor)]
    todo, seen = list(results), set(ends)
    while todo and len(seen) < _MOST:
        x = todo.pop()
        if isinstance(x, relax.Tuple):
            todo.extend(x.fields)
        elif isinstance(x, relax.TupleGetItem):
            todo.append(x.tuple_value)
        elif isinstance(x, relax.Call):
            yield x.op.name if isinstance(x.op, ir.Op) else ""
            todo.extend(x.args)
        elif isinstance(x, relax.Var) and x not in seen:
            seen.add(x)
            bound = node.block.lookup_binding(x)
            todo += [bound] if bound is not None else []


def _operands(node: Node) -> tuple[tuple[Operand | None, ...], list[relax.Expr]]:
    """What each input of `node` is among the arguments of the call, and these."""
    operands: list[Operand | None] = []
    args: list[relax.Expr] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            operands.append(None)
            continue
        if isinstance(value, Tensors):
            raise Refused("a sequence")
        operands.append(Operand(len(args), value.dtype, len(value.shape)))
        if isinstance(value, Symbolic) and len(value.shape) <= 1 and value.dtype in ("int64", "int32"):
            args.append(relax.ShapeExpr([prim(size) for size in value.array.reshape(-1)]))
        else:
            args.append(node.x(index))
    return tuple(operands), args
