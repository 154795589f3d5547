"""If: decided while importing where that is possible, else both branches, of which a run takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto
from tvm import relax

from ..loops import if_then_else
from ..meaning.constant import Constant
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._values import Sequence as SequenceValue
from ._values import Tensor, Value


@converter("If")
def if_(node: Node) -> object:
    """The branch that is taken, where that is known; else both, as blocks of a Relax `If`."""
    then, otherwise = node.attr("then_branch"), node.attr("else_branch")
    condition = node.value(0)
    if isinstance(condition, Constant):
        return tuple(node.graph.convert_graph(then if bool(condition.array.reshape(-1)[0]) else otherwise))
    squeezed = _squeezed_axes(node, then, otherwise)
    if squeezed is not None:
        return _squeeze(node, *squeezed)

    def branch(graph: GraphProto) -> Callable[[], list[relax.Expr]]:
        def results() -> list[relax.Expr]:
            values = node.graph.convert_graph(graph)
            if any(v is None or isinstance(v, SequenceValue) for v in values):
                node.constant(0)  # only one branch taken now can give these
            return [result_of(node, v) for v in values]

        return results

    results = if_then_else(node.graph.builder, node.x(0), branch(then), branch(otherwise), name="if")
    for i, result in enumerate(results):
        ty = result.ty
        if not isinstance(ty, relax.TensorType) or ty.ndim < 0 or ty.dtype is None:
            node.refuse(f"expected the rank and the element type of result {i} to be the same in both branches")
    return tuple(results)


def _squeezed_axes(node: Node, then: GraphProto, otherwise: GraphProto) -> tuple[Tensor, list[int]] | None:
    """What is squeezed and where, of branches that squeeze a tensor if they can, and else pass it on.

    The legacy exporter of torch writes a squeeze of an axis of unknown size so. The ranks of its branches differ, and
    what follows was traced with one of them: an axis that somebody squeezes has size 1.
    """
    inner = [n for n in then.node if n.op_type != "Constant"]
    if (
        len(then.output) != 1
        or [n.op_type for n in inner] != ["Squeeze"]
        or list(inner[0].output) != [then.output[0].name]
    ):
        return None
    passed = [n.input[0] for n in otherwise.node if n.op_type == "Identity"]
    if len(otherwise.node) > 1 or (passed or [otherwise.output[0].name]) != [inner[0].input[0]]:
        return None
    value = node.graph.lookup(inner[0].input[0])
    named = {n.output[0]: n for n in then.node if n.op_type == "Constant"}
    if len(inner[0].input) == 2 and inner[0].input[1] in named:
        proto = named[inner[0].input[1]].attribute[0]
        found = node.graph.attribute(proto)
        axes = np.asarray(found).reshape(-1).tolist()
    else:
        axes = [i for a in inner[0].attribute if a.name == "axes" for i in a.ints]
    if not isinstance(value, Tensor) or not axes:
        return None
    sizes = [value.shape[a] for a in axes if -len(value.shape) <= a < len(value.shape)]
    return (value, axes) if len(sizes) == len(axes) and _asks_for_ones(node, sizes) else None


def _asks_for_ones(node: Node, sizes: Sequence[Dim]) -> bool:
    """Whether the condition holds exactly where all `sizes` are 1: it compares one of them with 1, the rest are 1."""
    pair = node.graph.equalities.get(node.proto.input[0])
    if pair is None or 1 not in [s for s in pair if isinstance(s, int)]:
        return False
    size = pair[1] if isinstance(pair[0], int) else pair[0]
    return all(node.sizes.is_equal(s, size) or isinstance(s, int) and s == 1 for s in sizes)


def _squeeze(node: Node, value: Tensor, axes: Sequence[int]) -> relax.Expr:
    """`value` without `axes`, which are declared to have size 1; a run where they have not is refused."""
    rank = len(value.shape)
    axes = [a % rank for a in axes]
    if any(isinstance(value.shape[a], int) and value.shape[a] != 1 for a in axes):
        return value.expr
    shape = [1 if i in axes else d for i, d in enumerate(value.shape)]
    return node.emit(relax.op.squeeze(node.declared(value.expr, shape), axes))


def result_of(node: Node, value: Value | None) -> relax.Expr:
    if value is None or isinstance(value, SequenceValue):
        node.refuse("expected tensors as results of its graph, found a sequence or an absent value")
    return node.graph.expr_of(value)
