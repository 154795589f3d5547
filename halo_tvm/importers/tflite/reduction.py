"""Reductions along axes, softmax and norms."""

from __future__ import annotations

import numpy as np

from ._node import Channels, Node, Refused, Result
from ._registry import writes

_REDUCTIONS = {
    "MEAN": "ReduceMean",
    "SUM": "ReduceSum",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
}


@writes(*_REDUCTIONS)
def reduce(node: Node) -> Result:
    axes, rank, keeps = node.axes(1), node.rank(0), node.flag("keep_dims")
    # Where only height and width go, or stay as sizes of 1, the channels need not move behind them first.
    if node.made_first(0) and (keeps or 0 not in axes and set(range(1, rank - 1)) <= set(axes)):
        moved = [{0: 0, rank - 1: 1}.get(a, a + 1) for a in axes]
        out = node.emit(_REDUCTIONS[node.operator.name], node.x(0, first=True), node.sizes(moved), keepdims=int(keeps))
        return Channels(out) if keeps else Result(out)
    out = node.emit(
        _REDUCTIONS[node.operator.name], node.x(0), node.sizes(axes), keepdims=int(keeps), noop_with_empty_axes=1
    )
    return Result(out)


@writes("REDUCE_ANY", "REDUCE_ALL")
def reduce_bool(node: Node) -> Result:
    op = "ReduceMax" if node.operator.name == "REDUCE_ANY" else "ReduceMin"
    numbers = node.emit("Cast", node.x(0), to=6)
    out = node.emit(op, numbers, node.sizes(node.axes(1)), keepdims=int(node.flag("keep_dims")), noop_with_empty_axes=1)
    return Result(node.emit("Cast", out, to=9))


@writes("SOFTMAX")
def softmax(node: Node) -> Result:
    """Along the last axis, of beta * x."""
    beta = node.real("beta") or 1.0
    x = node.x(0) if beta == 1.0 else node.emit("Mul", node.x(0), node.const(beta, np.float32))
    return Result(node.emit("Softmax", x, axis=-1))


@writes("LOG_SOFTMAX")
def log_softmax(node: Node) -> Result:
    return Result(node.emit("LogSoftmax", node.x(0), axis=-1))


@writes("L2_NORMALIZATION")
def l2_normalisation(node: Node) -> Result:
    """x / sqrt(sum of its squares along the last axis), which is kept from 0 by 1e-6 of LiteRT's kernel."""
    x = node.x(0)
    total = node.emit("ReduceSum", node.emit("Mul", x, x), node.sizes([-1]), keepdims=1)
    length = node.emit("Max", node.emit("Sqrt", total), node.const(1e-6, np.float32))
    return Result(node.emit("Div", x, length))


@writes("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalisation(node: Node) -> Channels:
    """x / (bias + alpha * sum of the squares of 2 radius + 1 channels) ^ beta; ONNX divides alpha by their number."""
    radius = node.option("radius")
    if not 0 <= radius <= 1 << 16:
        raise Refused(f"expected a radius of at least 0, found {radius}")
    size = 2 * radius + 1
    options = {"alpha": node.real("alpha") * size, "beta": node.real("beta"), "bias": node.real("bias")}
    return Channels(node.emit("LRN", node.x(0, first=True), size=size, **options))


@writes("CUMSUM")
def cumsum(node: Node) -> Result:
    (axis,) = node.integers(1, "one axis")[:1] or [0]
    options = {"exclusive": int(node.flag("exclusive")), "reverse": int(node.flag("reverse"))}
    return Result(node.emit("CumSum", node.x(0), node.const(node.axis(axis, node.rank(0)), np.int64), **options))


@writes("ARG_MAX", "ARG_MIN")
def arg_extreme(node: Node) -> Result:
    """The first place of the extreme; a grid keeps the order of its integers."""
    (axis,) = node.integers(1, "one axis")[:1] or [-1]
    op = "ArgMax" if node.operator.name == "ARG_MAX" else "ArgMin"
    place = node.emit(op, node.x(0), axis=node.axis(axis, node.rank(0)), keepdims=0)
    return Result(node.emit("Cast", place, to=6) if node.output().dtype == "int32" else place)
