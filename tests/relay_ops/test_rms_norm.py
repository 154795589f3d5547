"""halo.rms_norm: every spelling lifts to it, every refusal says why, and the type rule checks its vector."""

from __future__ import annotations

import numpy as np
import pytest
from norm_graphs import graph, lift, same
from tvm import relax, tirx

from halo_tvm.relay_ops import OPERATORS

OPERATOR = OPERATORS["rms_norm"]
op = relax.op
N = tirx.Var("n", "int64")
SHAPES = [(2, N, 8), (8,)]


def const(value: float, shape: tuple[int, ...] = ()) -> relax.Expr:
    return relax.const(np.full(shape, value, "float32"))


def whole(emit, x, weight, axes=(-1,)):
    return emit(op.nn.rms_norm(x, weight, axes=list(axes), epsilon=1e-6))


def decomposed(emit, x, weight, *, power=True, root=True, axis=-1, exponent=2.0, eps=None, first=False):
    square = emit(op.power(x, const(exponent)) if power else op.multiply(x, x))
    shifted = emit(op.add(emit(op.mean(square, axis=[axis], keepdims=True)), const(1e-6) if eps is None else eps))
    if root:
        normal = emit(op.divide(x, emit(op.sqrt(shifted))))
    else:
        normal = emit(op.multiply(x, emit(op.rsqrt(shifted))))
    return emit(op.multiply(weight, normal) if first else op.multiply(normal, weight))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("root", [True, False])
def test_decomposed_spellings(power: bool, root: bool, first: bool) -> None:
    before = graph(lambda emit, *a: decomposed(emit, *a, power=power, root=root, first=first), SHAPES)
    after, report = lift(before)
    same(after, graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=float(np.float32(1e-6)))), SHAPES))
    assert report["operators"] == {"rms_norm": 1}


def test_relax_operator() -> None:
    after, _ = lift(graph(whole, SHAPES))
    same(after, graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=1e-6)), SHAPES))


@pytest.mark.parametrize(
    ("body", "shapes", "dtypes", "reason"),
    [
        (
            lambda e, x, w: whole(e, x, w, axes=(1, 2)),
            [(2, 8, 8), (8, 8)],
            None,
            "must be over the last axis, got axes [1, 2]",
        ),
        (
            lambda e, *a: decomposed(e, *a, axis=1),
            [(2, 8, 8), (8,)],
            None,
            "must be over the last axis, got axes [1] of rank 3",
        ),
        (decomposed, [(2, N, 8), (1, 8)], None, "weight must be a vector of the last dimension, got rank 2"),
        (decomposed, [(2, N, 8), (1,)], None, "weight must be a vector of the last dimension 8, got 1"),
        (whole, SHAPES, ["float16"] * 2, "weight must be float32, got float16"),
        (lambda e, *a: decomposed(e, *a, exponent=3.0), SHAPES, None, "the exponent must be 2, got 3.0"),
        (
            lambda e, *a: decomposed(e, *a, eps=const(1e-5, (8, 1))),
            [(2, 8, 8), (8,)],
            None,
            "eps must be a scalar constant, got shape (8, 1)",
        ),
    ],
)
def test_rejects(body, shapes, dtypes, reason: str) -> None:
    _, report = lift(graph(body, shapes, dtypes))
    assert any(reason in entry["reason"] for entry in report["rejected"]), report


def test_type_rule() -> None:
    with pytest.raises(ValueError, match="weight must be float32, got float16"):
        graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=1e-5)), SHAPES, ["float32", "float16"])
    with pytest.raises(ValueError, match="takes x, weight and at most one residual, got 1 arguments"):
        graph(lambda emit, x, w: emit(OPERATOR.call(x, eps=1e-5)), SHAPES)


def test_residual_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="the residual must be like x"):
        graph(lambda emit, x, w, r: emit(OPERATOR.call(x, w, r, eps=1e-5)), [(2, 4, 8), (8,), (1, 4, 8)])
