"""Nodes whose inputs are all known: computed now, by the reference implementation of ONNX.

A large weight is not read for that: the few operators that exporters put on weights are applied when it is loaded.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto

from ...errors import UnsupportedModel
from ...text import one_line
from ..meaning.constant import Constant, numpy_dtype
from . import _bounds
from ._errors import REFERENCE_ERRORS
from ._values import Value, element_dtype

if TYPE_CHECKING:
    from ._node import Node

_LAZY_BYTES = 1 << 20
_PLACES_BYTES = 1 << 26  # of what is no weight: places of elements, which exporters write out one by one
_PLACES = ("int64", "int32", "bool")
_NEVER = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli ImageDecoder".split()
) | {"QuantizeLinear", "DequantizeLinear"}  # of weights when they are read; known as integers, too, see `_quantised`


def fold(node: Node, domain: str) -> tuple[Value | None, ...] | None:
    """The outputs of `node` as constants; None when something about it is known at run time only."""
    if node.op == "Constant" and domain == "":
        return (_constant(node),)
    if domain != "" or node.op in _NEVER or not node.inputs or not any(i is not None for i in node.inputs):
        return None
    if any(i is not None and (not isinstance(i, Constant) or i.dtype == "object") for i in node.inputs):
        return None
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.proto.attribute):
        return None
    if _is_another(node):
        return None
    read = sum(i.size_bytes for i in node.inputs if i is not None)
    if node.op == "ScatterND" and read <= _PLACES_BYTES:
        return _scattered(node)
    if read > (_PLACES_BYTES if all(i is None or i.dtype in _PLACES for i in node.inputs) else _LAZY_BYTES):
        return _lazy(node)
    try:
        inputs = [None if i is None else i.array for i in node.inputs]
        model = _alone(node, inputs)
        if not _bounds.is_cheap(node, inputs, model):
            return _computed_when_read(node)
        if node.op == "ConstantOfShape":
            return (_filled(node, inputs[0]),)
        results = _run(model, inputs)
    except REFERENCE_ERRORS:
        return None  # the converter says what is wrong, or does better
    if any(not isinstance(r, np.ndarray | np.generic) or np.asarray(r).dtype.kind in "OUS" for r in results):
        return None
    node.graph.budget.count_folded(sum(r.nbytes for r in results))
    return tuple(Constant.of(np.asarray(r), node.outputs[i]) for i, r in enumerate(results))


def _scattered(node: Node) -> tuple[Value, ...] | None:
    """Elements or parts that replace others, at once: the reference writes one after another."""
    if node.attr("reduction", "none") != "none":
        return None
    data, places, updates = (node.constant(index) for index in range(3))
    if not places.ndim or updates.shape != (*places.shape[:-1], *data.shape[places.shape[-1] :]):
        return None  # the converter says what is wrong
    node.graph.budget.count_work(data.size + places.size + updates.size)
    result = data.copy()
    try:
        result[tuple(np.moveaxis(places, -1, 0))] = updates
    except (IndexError, ValueError):
        return None  # places outside are the converter's, too
    node.graph.budget.count_folded(result.nbytes)
    return (Constant.of(result, node.outputs[0]),)


# Before these opsets they meant something else than what the reference computes.
_CHANGED = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "BatchNormalization": 14, "PRelu": 7, "RoiAlign": 16}


def _is_another(node: Node) -> bool:
    """Whether the reference computes something else than the node's opset says."""
    if node.opset < _CHANGED.get(node.op, 0) or node.has_attr("broadcast"):  # along an axis, which it does not read
        return True
    if node.op == "LpNormalization":  # by the sum of the elements, not of their sizes
        return int(node.attr("p", 2)) == 1
    return node.op == "Slice" and node.has(4) and _starts_in_front(node)


def _starts_in_front(node: Node) -> bool:
    """Whether a slice starts in front of the first element and goes backwards: that one, not none."""
    shape, starts, steps = node.value(0).shape, node.constant(1), node.constant(4)
    axes = node.constant_or(3, np.arange(len(starts)))
    return any(step < 0 and start < -shape[axis] for start, axis, step in zip(starts, axes, steps))


def evaluate(node: Node, inputs: list[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """The outputs of a node of the default domain, by the reference implementation of ONNX.

    `ValueError` when that would take long, or much memory.
    """
    if node.op == "Range":  # numbers as tensors [1], too: exporters and function bodies write them
        inputs = [i.reshape(()) if i is not None and i.size == 1 else i for i in inputs]
    model = _alone(node, inputs)
    if not _bounds.is_cheap(node, inputs, model):
        raise ValueError("the operator takes too long to be computed while importing")
    return _run(model, inputs)


def _alone(node: Node, inputs: list[np.ndarray | None]) -> onnx.ModelProto:
    """A model of this node only, whose inputs are called x0, x1..."""
    alone = NodeProto()
    alone.CopyFrom(node.proto)
    del alone.input[:], alone.output[:]
    alone.input.extend("" if value is None else f"x{i}" for i, value in enumerate(inputs))
    alone.output.extend(f"y{i}" if name else "" for i, name in enumerate(node.outputs))
    feeds = _feeds(inputs)
    graph = onnx.helper.make_graph(
        [alone],
        "constant",
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in feeds.items()
        ],
        [onnx.ValueInfoProto(name=n) for n in alone.output if n],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.opset)])


def _feeds(inputs: list[np.ndarray | None]) -> dict[str, np.ndarray]:
    return {f"x{i}": value for i, value in enumerate(inputs) if value is not None}


def _run(model: onnx.ModelProto, inputs: list[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(ReferenceEvaluator(model).run(None, _feeds(inputs)))


def _constant(node: Node) -> Constant:
    for name, dtype in (
        ("value", None),
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
    ):
        if node.has_attr(name):
            return Constant.of(np.asarray(node.attr(name), dtype=dtype), node.outputs[0])
    if node.has_attr("sparse_value"):
        from ._file import sparse_constant

        return sparse_constant(next(a for a in node.proto.attribute if a.name == "sparse_value").sparse_tensor)
    node.refuse("expected a tensor or numbers as value")


def _filled(node: Node, shape: np.ndarray) -> Constant:
    """A tensor of one number, made when it is needed: weights of models published without them are of this kind."""
    value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)[0]
    dims = tuple(int(d) for d in shape)
    node.graph.budget.count_folded(math.prod(dims) * value.dtype.itemsize)
    return Constant(dims, value.dtype.name, lambda: np.full(dims, value), node.outputs[0])


def _lazy(node: Node) -> tuple[Value | None, ...] | None:
    """Operators on a large weight, applied when the weight is read; None for all others."""
    weight = node.inputs[0]
    rule = _LAZY.get(node.op)
    if rule is None:
        return _computed_when_read(node)
    if weight is None or weight.size_bytes <= _LAZY_BYTES:
        return None
    apply, shape, dtype = rule(node, weight)
    name = weight.name or node.outputs[0]
    return (Constant(shape, dtype, lambda: apply(weight.load()), name, weight.reads),)


def _computed_when_read(node: Node) -> tuple[Value | None, ...] | None:
    """Arithmetic on weights, done when its result is read: weights of 8 bits restored, standardised kernels, positions
    that are projected."""
    inputs = [i for i in node.inputs if i is not None]
    reads = sum(i.reads for i in inputs)
    if node.op not in _COMPUTED or reads > _MOST_READS or not any(i.dtype.startswith("float") for i in inputs):
        return None
    if any(i.dtype == "int64" and i.size_bytes > _AXES_BYTES for i in inputs) or (types := _types(node)) is None:
        return None
    work = sum(math.prod(i.shape) for i in inputs)
    if node.op in _SUMMED:
        work += math.prod(types[0][0]) * _SUMMED[node.op](node) // _PRODUCTS_AT_ONCE
    if not node.graph.budget.may_work_later(reads * work):
        return None
    most = max(_MOST_TIMES * sum(i.size_bytes for i in inputs), _LAZY_BYTES)
    weight = max(inputs, key=lambda value: value.size_bytes)
    results = []
    for index, (shape, dtype) in enumerate(types):
        made = Constant(shape, dtype, partial(_read, node, index, shape), weight.name or node.outputs[0], reads)
        if made.size_bytes > most:
            return None
        results.append(made)
    return tuple(results)


def _read(node: Node, index: int, shape: tuple[int, ...]) -> np.ndarray:
    inputs = [None if i is None else i.load() for i in node.inputs]
    try:
        result, why = np.asarray(_run(_alone(node, inputs), inputs)[index]), ""
    except REFERENCE_ERRORS as reason:
        result, why = np.zeros(0), f" ({one_line(str(reason))[:200]})"
    if result.shape != shape:
        raise UnsupportedModel(
            f"expected {node.op} of weights of the shape {list(shape)}, found that it has none{why}: export again"
        )
    return result


def _types(node: Node) -> list[tuple[tuple[int, ...], str]] | None:
    """Shape and type of each output, without the data of floating-point inputs; None where they do not say it."""
    stand_ins = [
        None if i is None else np.broadcast_to(np.zeros((), numpy_dtype(i.dtype)), i.shape) for i in node.inputs
    ]
    found = []
    try:
        model = _alone(node, stand_ins)
        for place, value in enumerate(node.inputs):
            if value is not None and value.dtype == "int64":  # axes
                model.graph.initializer.append(onnx.numpy_helper.from_array(value.array, f"x{place}"))
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, *REFERENCE_ERRORS):
        return None  # the converter says what is wrong
    for output in inferred.graph.output:
        ty = output.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in ty.shape.dim]
        if not ty.HasField("shape") or None in dims or not ty.elem_type:
            return None
        found.append((tuple(dims), element_dtype(ty.elem_type)))
    return found


_Applied = tuple[Callable[[np.ndarray], np.ndarray], tuple[int, ...], str]


def _transpose(node: Node, weight: Constant) -> _Applied:
    axes = node.attr("perm", list(reversed(range(len(weight.shape)))))
    return lambda w: np.transpose(w, axes), tuple(weight.shape[a] for a in axes), weight.dtype


def _cast(node: Node, weight: Constant) -> _Applied:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.attr("to")))
    return lambda w: w.astype(dtype), weight.shape, dtype.name


def _identity(node: Node, weight: Constant) -> _Applied:
    return lambda w: w, weight.shape, weight.dtype


def _reshaped(node: Node, weight: Constant) -> _Applied:
    """Operators that change the shape only, decided on a stand-in without data."""
    stand_in = np.broadcast_to(np.zeros((), np.int8), weight.shape)
    rest = [None if i is None else i.array for i in node.inputs[1:]]
    shape = evaluate(node, [stand_in, *rest])[0].shape
    return lambda w: w.reshape(shape), shape, weight.dtype


def _summed_by_einsum(node: Node) -> int:
    """How many products one element of the result is the sum of; many, where that is not looked for."""
    terms, _, result = str(node.attr("equation", "")).replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) > 2 or not result or "." in terms:
        return 1 << 62
    sizes = {c: n for term, value in zip(operands, node.inputs) if value for c, n in zip(term, value.shape)}
    return math.prod(n for c, n in sizes.items() if c not in result)


# What NumPy does at once, whatever the size.
_COMPUTED = frozenset(
    "Add Sub Mul Div Pow Max Min Abs Neg Sqrt Reciprocal Exp Log Tanh Sigmoid Relu Clip ReduceMean ReduceSum "
    "ReduceSumSquare ReduceL1 ReduceL2 ReduceMax ReduceMin BatchNormalization LayerNormalization Erf Softmax "
    "MatMul Gemm Einsum".split()
)
# Of products, how many one element is the sum of: positions that are the same in all runs, times a weight.
_SUMMED: dict[str, Callable[[Node], int]] = {
    "MatMul": lambda node: node.inputs[0].shape[-1] if node.inputs[0].shape else 1,
    "Gemm": lambda node: max(node.inputs[0].shape),
    "Einsum": _summed_by_einsum,
}
_PRODUCTS_AT_ONCE = 16  # that take as long as an element does
_MOST_READS = 64  # of tensors for one: a chain of x + x reads twice as many with each link
_AXES_BYTES = 1 << 12
_MOST_TIMES = 2  # a result may be larger than its operands, which a file of few bytes can ask for
_LAZY: dict[str, Callable[[Node, Constant], _Applied]] = {
    "Transpose": _transpose,
    "Cast": _cast,
    "Identity": _identity,
    "Reshape": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Flatten": _reshaped,
}
