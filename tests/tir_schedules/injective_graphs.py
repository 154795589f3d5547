"""Graphs whose functions are injective, with their references."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

op = relax.op
F, I, B = "float32", "int64", "bool"

# name -> graph, shapes for rows n and a length d, dtypes, reference
GRAPHS: dict[str, tuple[Callable, Callable, list[str], Callable]] = {
    "chain with a broadcast": (
        lambda emit, x, b: emit(op.nn.silu(emit(op.add(x, b)))),
        lambda n, d: [(n, d), (d,)],
        [F, F],
        lambda x, b: (x + b) / (1 + np.exp(-(x + b).astype("float64"))),
    ),
    "add": (lambda emit, x, y: emit(op.add(x, y)), lambda n, d: [(2, n, d), (2, n, d)], [F, F], lambda x, y: x + y),
    "rank one": (lambda emit, x: emit(op.tanh(x)), lambda n, d: [(d,)], [F], lambda x: np.tanh(x.astype("float64"))),
    "one row": (lambda emit, x: emit(op.exp(x)), lambda n, d: [(1, d)], [F], lambda x: np.exp(x.astype("float64"))),
    "transpose": (lambda emit, x: emit(op.permute_dims(x, (1, 0))), lambda n, d: [(n, d)], [F], lambda x: x.T),
    "heads first": (
        lambda emit, x: emit(op.permute_dims(x, (1, 0, 2))),
        lambda n, d: [(n, 3, d)],
        [F],
        lambda x: x.transpose(1, 0, 2),
    ),
    "channels last": (
        lambda emit, x: emit(op.permute_dims(x, (0, 2, 3, 1))),
        lambda n, d: [(2, n, 3, d)],
        [F],
        lambda x: x.transpose(0, 2, 3, 1),
    ),
    "int64": (lambda emit, x: emit(op.add(x, relax.const(2**40, I))), lambda n, d: [(n, d)], [I], lambda x: x + 2**40),
    "comparison": (lambda emit, x, y: emit(op.less(x, y)), lambda n, d: [(n, d), (n, d)], [F, F], lambda x, y: x < y),
    "not": (lambda emit, x: emit(op.logical_not(x)), lambda n, d: [(n, d)], [B], lambda x: ~x),
    "where": (
        lambda emit, c, x, y: emit(op.where(c, x, y)),
        lambda n, d: [(n, d), (n, d), (d,)],
        [B, F, F],
        lambda c, x, y: np.where(c, x, y),
    ),
    "concatenation": (
        lambda emit, x, y: emit(op.concat([x, y], axis=1)),
        lambda n, d: [(n, d), (n, 9)],
        [F, F],
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "cast": (lambda emit, x: emit(op.astype(x, I)), lambda n, d: [(n, d)], [F], lambda x: x.astype(I)),
    "strided slice": (
        lambda emit, x: emit(op.strided_slice(x, [0], [0], [5], [2])),
        lambda n, d: [(5, d)],
        [F],
        lambda x: x[0:5:2],
    ),
    "gather": (
        lambda emit, x, i: emit(op.take(x, i, axis=0, mode="clip")),
        lambda n, d: [(7, d), (n,)],
        [F, I],
        lambda x, i: x[i],
    ),
    "column": (lambda emit, x, y: emit(op.multiply(x, y)), lambda n, d: [(n, d), (n, 1)], [F, F], lambda x, y: x * y),
    "position by value": (
        lambda emit, x: emit(op.add(x, emit(op.arange(0, 6, 1, "float32")))),
        lambda n, d: [(n, 6)],
        [F],
        lambda x: x + np.arange(6, dtype=F),
    ),
}
