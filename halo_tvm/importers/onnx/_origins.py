"""For an exporter: nodes that are made of kernels stay as they are, calls of a function that stands for the node.

Only where the importer is told which calls of Relax have a spelling. Everything else is converted as ever, so that
lifts and graph passes see it: also a node that the written opset does not have, or defines otherwise. Loops and
branches stay with their graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from tvm import ir, relax
from tvm.tirx.analysis import undefined_vars

from ...imported import KernelOrigin, Operand, Spelled
from ..meaning.builder import Refused
from ..meaning.sizes import Dim, plain, prim
from ._node import Node
from ._registry import BEYOND
from ._values import Sequence as Tensors
from ._values import Symbolic, Tensor, Value, element_dtype
from .definitions import graphs_of, nodes_in, redefined

_MOST = 10_000  # bindings of one node that are looked at


def kept_whole(node: Node, results: Sequence[Value | None], spelled: Spelled) -> tuple[Tensor | None, ...] | None:
    """The results of `node` as those of one call, if it was made of a call that is not `spelled`; else None."""
    own: onnx.NodeProto = node.proto
    made = list(results[: len(node.outputs)])
    tensors = [value for value in made if isinstance(value, Tensor)]
    others = [value for value in made if value is not None and not isinstance(value, Tensor)]
    if not tensors or others or own.domain == BEYOND or _is_narrow(node, tensors):
        return None
    if all(map(spelled.writes, _calls(node, [t.expr for t in tensors]))):
        return None
    if redefined(own, node.opset, spelled.opset_for(node.graph.opsets.get("", 1))) or _calls_functions(node):
        return None
    try:
        operands, args = _operands(node)
        captured = _captured(node, args)
    except Refused:  # a value that Relax has no tensor for
        return None
    proto = onnx.NodeProto(op_type=node.op, domain="" if node.domain == "ai.onnx" else node.domain)
    proto.attribute.extend(own.attribute)
    present = tuple(value is not None for value in made)
    foreign = sorted({inner.domain for inner in nodes_in(own)} - {"", "ai.onnx"})
    domains = tuple((domain, node.graph.opsets.get(domain, 1)) for domain in foreign)
    name = node.graph.keep(KernelOrigin(proto.SerializeToString(), node.opset, operands, present, captured, domains))
    types = _types(args, [t.expr.ty for t in tensors])
    result = types[0][0] if len(types) == 1 else ir.TupleType([ty for ty, _ in types])
    whole = node.block.emit(relax.op.call_pure_packed(name, *args, ty_args=result))
    parts = iter([whole] if len(types) == 1 else [relax.TupleGetItem(whole, i) for i in range(len(types))])
    shapes = iter(shape for _, shape in types)
    return tuple(_tensor(node, next(parts), next(shapes)) if there else None for there in present)


def _is_narrow(node: Node, results: Sequence[Tensor]) -> bool:
    """Whether a cast makes a type that Relax holds in another one."""
    if node.op == "Cast":
        wanted = element_dtype(int(str(node.attr("to"))))
    elif node.op == "CastLike":
        wanted = node.dtype(1)
    else:
        return False
    return bool(wanted != results[0].dtype)


def _types(args: Sequence[relax.Expr], types: Sequence[relax.Type]) -> list[tuple[relax.Type, list[Dim | None] | None]]:
    """For each result its type, and where sizes of it follow from no argument a shape with None for these."""
    known = {var for arg in args for dim in _sizes(arg) for var in undefined_vars(dim)}
    out: list[tuple[relax.Type, list[Dim | None] | None]] = []
    for ty in types:
        dims = [None if set(undefined_vars(dim)) - known else plain(dim) for dim in ty.shape.values]
        new = relax.TensorType(dtype=ty.dtype, ndim=ty.ndim) if None in dims else ty
        out.append((new, dims if None in dims else None))
    return out


def _sizes(x: relax.Expr) -> Sequence[ir.Expr]:
    """The sizes that an argument has, or is."""
    if isinstance(x, relax.ShapeExpr):
        return list(x.values)
    return list(x.ty.shape.values) if isinstance(x.ty.shape, relax.ShapeExpr) else []


def _tensor(node: Node, expr: relax.Expr, shape: list[Dim | None] | None) -> Tensor:
    bound = expr if isinstance(expr, relax.Var) else node.block.emit(expr)
    return Tensor(bound if shape is None else node.fresh_dims(bound, shape))


def _calls(node: Node, results: Sequence[relax.Expr]) -> Iterator[relax.Call]:
    """The calls between the inputs of `node` and its results."""
    ends = [value.expr for value in node.inputs if isinstance(value, Tensor)]
    todo, seen = list(results), set(ends)
    while todo and len(seen) < _MOST:
        x = todo.pop()
        if isinstance(x, relax.Tuple):
            todo.extend(x.fields)
        elif isinstance(x, relax.TupleGetItem):
            todo.append(x.tuple_value)
        elif isinstance(x, relax.Call):
            yield x
            todo.extend(x.args)
        elif isinstance(x, relax.Var) and x not in seen:
            seen.add(x)
            bound = node.block.lookup_binding(x)
            todo += [bound] if bound is not None else []


def _operands(node: Node) -> tuple[tuple[Operand | None, ...], list[relax.Expr]]:
    """What each input of `node` is among the arguments of the call, and these."""
    operands: list[Operand | None] = []
    args: list[relax.Expr] = []
    for value in node.inputs:
        operands.append(None if value is None else _operand(node, value, args))
    return tuple(operands), args


def _operand(node: Node, value: Value, args: list[relax.Expr]) -> Operand:
    """`value` as one more argument."""
    if isinstance(value, Tensors):
        raise Refused("a sequence")
    operand = Operand(len(args), value.dtype, len(value.shape))
    if isinstance(value, Symbolic) and len(value.shape) <= 1 and value.dtype in ("int64", "int32"):
        args.append(relax.ShapeExpr([prim(size) for size in value.array.reshape(-1)]))
    else:
        args.append(node.graph.expr_of(value))
    return operand


def _captured(node: Node, args: list[relax.Expr]) -> tuple[tuple[str, Operand], ...]:
    """What the graphs inside `node` read around them, as further arguments."""
    found: dict[str, Operand] = {}
    for graph in graphs_of(node.proto):
        for name in free_names(graph):
            if name in found:
                continue
            value = node.graph.lookup(name)
            if value is None:
                raise Refused("a value that is left out")
            found[name] = _operand(node, value, args)
    return tuple(found.items())


def free_names(graph: onnx.GraphProto) -> list[str]:
    """Names that `graph` reads and does not define, each once."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    read: dict[str, None] = {}
    for inner in graph.node:
        names = [*inner.input, *(name for g in graphs_of(inner) for name in free_names(g))]
        read |= dict.fromkeys(name for name in names if name and name not in own)
        own |= set(inner.output)
    read |= dict.fromkeys(value.name for value in graph.output if value.name not in own)
    return list(read)


def _calls_functions(node: Node) -> bool:
    """Whether a graph inside `node` calls functions of the model, which are not written."""
    functions = node.graph.functions
    return any(("" if n.domain == "ai.onnx" else n.domain, n.op_type) in functions for n in nodes_in(node.proto))
