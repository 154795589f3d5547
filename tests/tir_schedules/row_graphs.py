"""Graphs whose functions are rows that are reduced, with their references, and functions that are none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from fused_functions import functions, fused
from tvm import relax, te, tirx
from tvm.script import tirx as T

from halo_tvm.relay_ops import OPERATORS

op = relax.op


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm_relu(emit, x, weight, bias, residual):
    return emit(op.nn.relu(emit(OPERATORS["layer_norm"].call(x, weight, bias, residual, eps=1e-5))))


def norm_relu_reference(x, weight, bias, residual):
    return np.maximum(OPERATORS["layer_norm"].reference(x, weight, bias, residual, eps=1e-5), 0)


# name -> graph, shapes for rows and a length, reference
GRAPHS: dict[str, tuple[Callable, Callable, Callable]] = {
    "softmax": (lambda emit, x: emit(op.nn.softmax(x)), lambda n, d: [(3, n, d)], softmax),
    "layer_norm": (norm_relu, lambda n, d: [(2, n, d), (d,), (d,), (2, n, d)], norm_relu_reference),
    "rms_norm": (
        lambda emit, x, w: emit(OPERATORS["rms_norm"].call(x, w, eps=1e-6)),
        lambda n, d: [(n, d), (d,)],
        lambda x, w: OPERATORS["rms_norm"].reference(x, w, eps=1e-6),
    ),
    "sum": (lambda emit, x: emit(op.sum(x, axis=-1)), lambda n, d: [(n, 3, d)], lambda x: x.sum(-1)),
    "mean keeping the axis": (
        lambda emit, x: emit(op.mean(x, axis=-1, keepdims=True)),
        lambda n, d: [(n, d)],
        lambda x: x.mean(-1, keepdims=True),
    ),
    "max of a map": (lambda emit, x: emit(op.max(x, axis=-1)), lambda n, d: [(n, d)], lambda x: x.max(-1)),
    "min": (lambda emit, x: emit(op.min(x, axis=-1)), lambda n, d: [(n, d)], lambda x: x.min(-1)),
    "product": (lambda emit, x: emit(op.prod(x, axis=-1)), lambda n, d: [(n, d)], lambda x: x.prod(-1)),
}


def primfunc(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors))


def two_axes() -> tirx.PrimFunc:
    x = te.placeholder((4, 5, 6), name="x")
    a, b = te.reduce_axis((0, 5)), te.reduce_axis((0, 6))
    return primfunc(x, te.compute((4,), lambda i: te.sum(x[i, a, b], axis=[a, b])))


def other_axis() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 4))
    return primfunc(x, te.compute((5,), lambda i: te.sum(x[k, i], axis=k)))


def other_rows() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return primfunc(x, te.compute((4, 5), lambda i, j: x[i, j] - total[3 - i]))


def other_loops() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return primfunc(x, te.compute((7, 5), lambda i, j: total[j % 4] + x[i % 4, j]))


def other_depth() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    k = te.reduce_axis((0, 5))
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return primfunc(x, te.compute((4, 9), lambda i, j: total[i] * te.const(2.0)))


def no_reduction() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), name="x")
    return primfunc(x, te.compute((4, 5), lambda i, j: x[i, j] * te.const(2.0)))


def argmax() -> tirx.PrimFunc:
    return functions(fused(lambda emit, x: emit(op.argmax(x, axis=-1)), [(4, 5)]))[0]


def logical() -> tirx.PrimFunc:
    x = te.placeholder((4, 5), "bool", name="x")
    k = te.reduce_axis((0, 5))
    every = te.comm_reducer(lambda a, b: tirx.And(a, b), lambda t: tirx.const(True, t))
    return primfunc(x, te.compute((4,), lambda i: every(x[i, k], axis=k)))


@T.prim_func(s_tir=True)
def predicate(x: T.Buffer((3, 10), "float32"), y: T.Buffer((3,), "float32")):
    for i, k, j in T.grid(3, 3, 4):
        with T.sblock("y"):
            T.where(k * 4 + j < 10)
            v = T.axis.spatial(3, i)
            r = T.axis.reduce(10, k * 4 + j)
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] + x[v, r]


@T.prim_func(s_tir=True)
def recurrence(x: T.Buffer((3, 10), "float32"), y: T.Buffer((3,), "float32")):
    for i, k in T.grid(3, 10):
        with T.sblock("y"):
            v, r = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] * T.float32(2) + x[v, r]


def already() -> tirx.PrimFunc:
    return no_reduction().with_attr("tirx.is_scheduled", True)


# (function, the reason why no rule for rows serves it)
NO_ROWS: list[tuple[Callable[[], tirx.PrimFunc], str]] = [
    (already, "scheduled already"),
    (no_reduction, "no block reduces anything"),
    (two_axes, "one reduced axis is served, found 2"),
    (other_axis, "the reduced axis is not the last axis of its operand"),
    (other_rows, "a stage reads another row, or another place of the row"),
    (other_loops, "do not share their leading loops"),
    (other_depth, "other loops than the rows and the reduced axis"),
    (argmax, "stores several values"),
    (lambda: predicate, "a block has a predicate"),
    (lambda: recurrence, "is not `total = total op value`"),
    (logical, "reduces by And"),
]
