"""Along axes: Reduce*, ArgMax and ArgMin, cumulative sums and products, softmax and its kin, normalisations by a norm.

float16 and bfloat16 are accumulated in float32. An empty set gives the identity of the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax, te, tirx

from ..meaning.builder import expr_dtype
from ..meaning.pointwise import Scalar, const, dtype_of, pointwise, widened
from ..meaning.reduction import arg_index, log_sum_exp
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter

_Step = Callable[[relax.Expr], relax.Expr]


def _same(x: relax.Expr) -> relax.Expr:
    return x


def _square(x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(x, x)


# operator -> what is done to elements, the reduction, what is done to its result, the value of an empty set
_REDUCTIONS: dict[str, tuple[_Step, Callable, _Step, float]] = {
    "ReduceSum": (_same, relax.op.sum, _same, 0),
    "ReduceProd": (_same, relax.op.prod, _same, 1),
    "ReduceMax": (_same, relax.op.max, _same, -math.inf),
    "ReduceMin": (_same, relax.op.min, _same, math.inf),
    "ReduceMean": (_same, relax.op.mean, _same, math.nan),
    "ReduceL1": (relax.op.abs, relax.op.sum, _same, 0),
    "ReduceL2": (_square, relax.op.sum, relax.op.sqrt, 0),
    "ReduceSumSquare": (_square, relax.op.sum, _same, 0),
    "ReduceLogSum": (_same, relax.op.sum, relax.op.log, -math.inf),
}


def reduced_axes(node: Node) -> list[int]:
    """Axes from input 1 or the attribute; none given means all, or none at all with noop_with_empty_axes."""
    rank = node.rank(0)
    axes = node.ints(1) if node.has(1) else list(node.attr("axes", None) or [])
    if not axes:
        return [] if node.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({node.axis(a, rank) for a in axes})


def _kept(shape: tuple[Dim, ...], axes: list[int], keepdims: bool) -> list[Dim]:
    kept = [1 if i in axes else d for i, d in enumerate(shape)]
    return kept if keepdims else [d for i, d in enumerate(shape) if i not in axes]


def _is_empty(shape: tuple[Dim, ...], axes: list[int]) -> bool:
    """Nothing to reduce, or no result at all."""
    return bool(axes) and any(isinstance(d, int) and d == 0 for d in shape)


def _full(node: Node, shape: list[Dim], value: float, dtype: str) -> relax.Expr:
    if dtype == "bool":
        value = value > 0
    elif "float" not in dtype:
        info = np.iinfo(dtype)
        value = 0 if math.isnan(value) else int(min(max(value, info.min), info.max))

    def full(*shape: Scalar) -> te.Tensor:
        return te.compute(shape, lambda *_: const(value, dtype), name="full")

    return node.te(full, *[prim(d) for d in shape], name="onnx_full")


@converter(*_REDUCTIONS)
def reduce(node: Node) -> relax.Expr:
    before, function, after, of_nothing = _REDUCTIONS[node.op]
    axes, keepdims = reduced_axes(node), bool(node.attr("keepdims", 1))
    dtype, shape = node.dtype(0), node.shape(0)
    if _is_empty(shape, axes):
        return _full(node, _kept(shape, axes, keepdims), of_nothing, dtype)
    x = widened(node, node.x(0))
    if dtype == "bool":
        x = node.emit(relax.op.astype(x, "int8"))
    if "float" not in dtype and node.op == "ReduceMean":
        return _integer_mean(node, x, axes, keepdims)
    if "float" not in dtype and after is not _same:  # roots and logarithms of integers
        x = node.emit(relax.op.astype(x, "float64"))
    x = x if before is _same or before is relax.op.abs and dtype.startswith("uint") else node.emit(before(x))
    x = node.emit(function(x, axes, keepdims)) if axes else x
    x = x if after is _same else node.emit(after(x))
    return node.cast(x, dtype)


def _integer_mean(node: Node, x: relax.Expr, axes: list[int], keepdims: bool) -> relax.Expr:
    if not axes:
        return x
    count = node.sizes.product([node.shape(0)[a] for a in axes])
    total = node.emit(relax.op.sum(x, axes, keepdims))

    def mean(total: te.Tensor, count: Scalar) -> te.Tensor:
        dtype = total.dtype
        return te.compute(total.shape, lambda *i: tirx.truncdiv(total(*i), count.astype(dtype)), name="mean")

    return node.te(mean, total, prim(count))


@converter("ReduceLogSumExp")
def reduce_log_sum_exp(node: Node) -> relax.Expr:
    axes, keepdims = reduced_axes(node), bool(node.attr("keepdims", 1))
    dtype, shape = node.dtype(0), node.shape(0)
    node.refuse_unless("float" in dtype, f"expected floating-point numbers, found {dtype}")
    if _is_empty(shape, axes):
        return _full(node, _kept(shape, axes, keepdims), -math.inf, dtype)
    if not axes:
        return node.x(0)
    out = log_sum_exp(node, node.x(0), axes)
    return out if keepdims else relax.op.reshape(out, _kept(shape, axes, False))


@converter("ArgMax", "ArgMin")
def arg_extreme(node: Node) -> relax.Expr:
    axis = node.axis(node.attr("axis", 0), node.rank(0))
    index = arg_index(node, node.x(0), axis, largest=node.op == "ArgMax", last=bool(node.attr("select_last_index", 0)))
    return index if node.attr("keepdims", 1) else relax.op.squeeze(index, [axis])


@converter("CumSum", "CumProd")
def cumulative(node: Node) -> relax.Expr:
    x, dtype = node.x(0), node.dtype(0)
    axis = node.axis(int(node.scalar(1)), node.rank(0))
    reverse, exclusive = bool(node.attr("reverse", 0)), bool(node.attr("exclusive", 0))
    x = widened(node, x)
    x = _flipped(node, x, axis) if reverse else x
    function = relax.op.cumsum if node.op == "CumSum" else relax.op.cumprod
    x = node.emit(function(x, axis, expr_dtype(x), exclusive))
    return node.cast(_flipped(node, x, axis) if reverse else x, dtype)


def _flipped(node: Node, x: relax.Expr, axis: int) -> relax.Expr:
    def flip(x: te.Tensor) -> te.Tensor:
        last = x.shape[axis] - 1
        return te.compute(x.shape, lambda *i: x(*(last - v if a == axis else v for a, v in enumerate(i))), name="flip")

    return node.te(flip, x, name="onnx_flip")


# Softmax and its kin.


def _as_rows(node: Node, function: Callable[[relax.Expr, int], relax.Expr]) -> relax.Expr:
    """function(x, axis); before version 13 over all axes from `axis` on at once."""
    x, shape = node.x(0), node.shape(0)
    dtype = expr_dtype(x)
    rank = len(shape)
    x = widened(node, x)
    if node.opset >= 13:
        return node.cast(node.emit(function(x, node.axis(node.attr("axis", -1), rank))), dtype)
    axis = node.axis(node.attr("axis", 1), rank) if node.attr("axis", 1) != rank else rank
    if axis == rank - 1:
        return node.cast(node.emit(function(x, axis)), dtype)
    rows = [node.sizes.product(shape[:axis]), node.sizes.product(shape[axis:])]
    out = node.emit(function(node.emit(relax.op.reshape(x, rows)), 1))
    return node.cast(node.emit(relax.op.reshape(out, list(shape))), dtype)


for _name, _convert in {
    "Softmax": lambda node: _as_rows(node, relax.op.nn.softmax),
    "LogSoftmax": lambda node: _as_rows(node, lambda x, axis: log_softmax_of(node, x, axis)),
    "Hardmax": lambda node: _as_rows(node, lambda x, axis: _one_at_top(node, x, axis)),
}.items():
    converter(_name)(_convert)


def log_softmax_of(node: Node, x: relax.Expr, axis: int) -> relax.Expr:
    shifted = node.emit(relax.op.subtract(x, node.emit(relax.op.max(x, [axis], True))))
    total = node.emit(relax.op.sum(node.emit(relax.op.exp(shifted)), [axis], True))
    return node.emit(relax.op.subtract(shifted, node.emit(relax.op.log(total))))


def _one_at_top(node: Node, x: relax.Expr, axis: int) -> relax.Expr:
    index = arg_index(node, x, axis, largest=True)

    def mark(x: te.Tensor, index: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            top = index(*(0 if a == axis else v for a, v in enumerate(i)))
            return tirx.Select(top == i[axis].astype("int64"), const(1, x.dtype), const(0, x.dtype))

        return te.compute(x.shape, element, name="mark")

    return node.te(mark, x, index)


# Normalisations by a norm.


@converter("LpNormalization")
def lp_normalization(node: Node) -> relax.Expr:
    """x over its norm along one axis; zero where the norm is zero."""
    axis, p = node.axis(node.attr("axis", -1), node.rank(0)), node.attr("p", 2)
    node.refuse_unless(p in (1, 2), f"expected 1 or 2 as p, found {p}")
    x = widened(node, node.x(0))
    size = node.emit(relax.op.abs(x) if p == 1 else relax.op.multiply(x, x))
    norm = node.emit(relax.op.sum(size, [axis], True))
    norm = norm if p == 1 else node.emit(relax.op.sqrt(norm))

    def over(v: Scalar, n: Scalar) -> Scalar:
        zero = const(0, dtype_of(n))
        return tirx.Select(n == zero, zero, v / tirx.Select(n == zero, const(1, dtype_of(n)), n))

    return node.cast(pointwise(node, over, x, norm), node.dtype(0))


@converter("MeanVarianceNormalization")
def mean_variance_normalization(node: Node) -> relax.Expr:
    """(x - mean) / (deviation + 1e-9)."""
    axes = [node.axis(a, node.rank(0)) for a in node.attr("axes", [0, 2, 3])]
    x = widened(node, node.x(0))
    centred = node.emit(relax.op.subtract(x, node.emit(relax.op.mean(x, axes, True))))
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes, True))
    deviation = node.emit(relax.op.add(node.emit(relax.op.sqrt(variance)), relax.const(1e-9, expr_dtype(x))))
    return node.cast(node.emit(relax.op.divide(centred, deviation)), node.dtype(0))
