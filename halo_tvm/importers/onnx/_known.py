"""Shape arithmetic: operators on tensors known as lists of symbolic expressions, computed while importing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import tirx

from ..meaning.constant import Constant
from ..meaning.sizes import Dim, plain, prim
from ._node import Node
from ._registry import symbolic
from ._values import Symbolic, Value, element_dtype, elements, known

_MOST = 1024  # elements of a tensor that is kept as a list


def _all_known(node: Node) -> list[np.ndarray] | None:
    """The inputs as arrays of expressions; None unless all are known, small and integer or boolean."""
    arrays = []
    for value in node.inputs:
        if not isinstance(value, Constant | Symbolic) or np.prod(value.shape, dtype=np.int64) > _MOST:
            return None
        arrays.append(elements(value))
    return arrays


def _integer(node: Node) -> bool:
    return all(i is None or i.dtype.startswith(("int", "uint")) or i.dtype == "bool" for i in node.inputs)


@symbolic("Shape")
def shape(node: Node) -> Value:
    dims = node.shape(0)
    node.sizes.note(dims)
    end = node.attr("end", len(dims))
    array = np.empty(len(dims), dtype=object)
    array[:] = dims
    return known(array[slice(node.attr("start", 0), end)], "int64")


@symbolic("Size")
def size(node: Node) -> Value:
    return known(np.array(node.sizes.product(node.shape(0)), dtype=object).reshape(()), "int64")


@symbolic(
    "Identity",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "Expand",
    "Tile",
    "Slice",
    "Gather",
    "GatherND",
    "GatherElements",
    "Concat",
    "Split",
)
def moves(node: Node) -> tuple[Value, ...] | None:
    """Operators that move elements about: done to the positions by the reference implementation."""
    first = node.inputs[0]
    data = node.inputs if node.op == "Concat" else (first,)
    if not any(isinstance(i, Symbolic) for i in data) or not _integer(node) or not all(node.outputs):
        return None
    arrays = _all_known(node)
    if arrays is None or any(not isinstance(i, Constant) for i in node.inputs if i not in data):
        return None
    from ._folding import evaluate

    pool = np.concatenate([a.reshape(-1) for a in arrays[: len(data)]])
    positions, start = [], 0
    for array in arrays[: len(data)]:
        positions.append(np.arange(start, start + array.size, dtype=np.int64).reshape(array.shape))
        start += array.size
    rest = [i.array for i in node.inputs[len(data) :]]
    results = []
    for moved in evaluate(node, [*positions, *rest]):
        if moved.size > _MOST:
            return None
        out = np.empty(moved.shape, dtype=object)
        out.reshape(-1)[:] = [pool[p] for p in moved.reshape(-1)]
        results.append(known(out, first.dtype))
    return tuple(results)


def _binary(function: Callable[[Node, Dim, Dim], Dim]) -> Callable[[Node], Value | None]:
    def rule(node: Node) -> Value | None:
        if not any(isinstance(i, Symbolic) for i in node.inputs) or not _integer(node):
            return None
        arrays = _all_known(node)
        if arrays is None:
            return None
        out = arrays[0]
        for other in arrays[1:]:
            left, right = np.broadcast_arrays(out, other)
            out = np.empty(left.shape, dtype=object)
            pairs = [function(node, a, b) for a, b in zip(left.reshape(-1), right.reshape(-1))]
            if any(p is None for p in pairs):
                return None
            out.reshape(-1)[:] = [node.sizes.simplify(p) if not isinstance(p, bool) else p for p in pairs]
        return known(out, _RESULT.get(node.op, node.inputs[0].dtype))

    return rule


_RESULT = dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or"), "bool")


def _div(node: Node, a: Dim, b: Dim) -> Dim | None:
    """Rounded towards zero; None unless the divisor is positive, as a size is."""
    if not node.sizes.decided(prim(b) > 0):
        if not node.sizes.is_size(b):
            return None
        b = node.sizes.maximum(b, 1)  # division by zero would end the process
    if node.sizes.is_size(a):
        return node.sizes.floordiv(a, b)
    below = node.sizes.floordiv(node.sizes.maximum(prim(0) - a, 0), b)
    return prim(node.sizes.floordiv(node.sizes.maximum(a, 0), b)) - below


def _mod(node: Node, a: Dim, b: Dim) -> Dim | None:
    return tirx.floormod(prim(a), prim(b)) if isinstance(b, int) and b > 0 and not node.attr("fmod", 0) else None


def _decided(make: Callable[[Dim, Dim], object]) -> Callable[[Node, Dim, Dim], bool | None]:
    return lambda node, a, b: node.sizes.decided(make(prim(a), prim(b)))


for _name, _function in {
    "Add": lambda node, a, b: prim(a) + b,
    "Sub": lambda node, a, b: prim(a) - b,
    "Mul": lambda node, a, b: prim(a) * b,
    "Div": _div,
    "Mod": _mod,
    "Min": lambda node, a, b: node.sizes.minimum(a, b),
    "Max": lambda node, a, b: node.sizes.maximum(a, b),
    "Less": _decided(lambda a, b: a < b),
    "Greater": _decided(lambda a, b: a > b),
    "LessOrEqual": _decided(lambda a, b: a <= b),
    "GreaterOrEqual": _decided(lambda a, b: a >= b),
}.items():
    symbolic(_name)(_binary(_function))


_equal = _binary(_decided(tirx.EQ))


@symbolic("Equal")
def equal(node: Node) -> Value | None:
    """Two sizes that may be equal are remembered: an `If` may depend on that."""
    found = _equal(node)
    if found is None and _integer(node) and all(isinstance(i, Constant | Symbolic) for i in node.inputs):
        left, right = (elements(i).reshape(-1) for i in node.inputs)
        if left.size == right.size == 1:
            node.graph.equalities[node.outputs[0]] = (plain(left[0]), plain(right[0]))
    return found


@symbolic("Neg", "Abs")
def sign(node: Node) -> Value | None:
    value = node.inputs[0]
    if not isinstance(value, Symbolic):
        return None
    out = np.empty(value.shape, dtype=object)
    for position, e in enumerate(value.array.reshape(-1)):
        minus = node.sizes.simplify(prim(0) - e)
        positive = e if node.sizes.is_size(e) else node.sizes.maximum(e, minus)
        out.reshape(-1)[position] = minus if node.op == "Neg" else positive
    return known(out, value.dtype)


@symbolic("Cast")
def cast(node: Node) -> Value | None:
    value = node.inputs[0]
    if not isinstance(value, Symbolic):
        return None
    dtype = element_dtype(node.attr("to"))
    return Symbolic(value.array, dtype) if dtype in ("int64", "int32") else None


@symbolic("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def reduce(node: Node) -> Value | None:
    value = node.inputs[0]
    if not isinstance(value, Symbolic) or not _integer(node):
        return None
    if value.array.ndim != 1 or not value.array.size or (node.has(1) and not node.is_known(1)):
        return None
    if node.attr("noop_with_empty_axes", 0) and not (node.ints(1) if node.has(1) else node.attr("axes", ())):
        return value
    total = None
    for e in value.array:
        if total is None:
            total = e
        elif node.op == "ReduceProd":
            total = prim(total) * e
        elif node.op == "ReduceSum":
            total = prim(total) + e
        else:
            total = (node.sizes.maximum if node.op == "ReduceMax" else node.sizes.minimum)(total, e)
    out = np.empty((), dtype=object)
    out[()] = node.sizes.simplify(total)
    return known(out.reshape((1,)) if node.attr("keepdims", 1) else out, value.dtype)


@symbolic("Where")
def where(node: Node) -> Value | None:
    if not any(isinstance(i, Symbolic) for i in node.inputs[1:]) or not _integer(node):
        return None
    arrays = _all_known(node)
    if arrays is None or not isinstance(node.inputs[0], Constant):
        return None
    condition, left, right = np.broadcast_arrays(*arrays)
    out = np.empty(condition.shape, dtype=object)
    out.reshape(-1)[:] = [a if c else b for c, a, b in zip(condition.reshape(-1), left.reshape(-1), right.reshape(-1))]
    return known(out, node.inputs[1].dtype)


@symbolic("ConstantOfShape")
def constant_of_shape(node: Node) -> Value | None:
    """Small, of an integer value and a shape that is known: stays known."""
    if not isinstance(node.inputs[0], Constant):
        return None
    dims = node.ints(0)
    value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)
    if value.dtype.kind not in "iub" or min(dims, default=0) < 0 or math.prod(dims) > _MOST:
        return None
    return Constant.of(np.full(dims, value[0]))
