"""halo.layer_norm: every spelling lifts to it, every refusal says why, and the type rule checks its vectors."""

from __future__ import annotations

import numpy as np
import pytest
from norm_graphs import graph, lift, same
from tvm import relax, tirx

from halo_tvm.passes.graph_pass import count_calls
from halo_tvm.relay_ops import OPERATORS

OPERATOR = OPERATORS["layer_norm"]
op = relax.op
N = tirx.Var("n", "int64")
SHAPES = [(2, N, 8), (8,), (8,)]


def const(value: float, shape: tuple[int, ...] = ()) -> relax.Expr:
    return relax.const(np.full(shape, value, "float32"))


def whole(emit, x, weight, bias, axes=(-1,), **attrs):
    return emit(op.nn.layer_norm(x, weight, bias, axes=list(axes), epsilon=1e-6, **attrs))


def decomposed(emit, x, weight, bias, *, power=True, root=True, axis=-1, exponent=2.0, eps=None, keepdims=True):
    centred = emit(op.subtract(x, emit(op.mean(x, axis=[axis], keepdims=keepdims))))
    square = emit(op.power(centred, const(exponent)) if power else op.multiply(centred, centred))
    shifted = emit(op.add(emit(op.mean(square, axis=[axis], keepdims=keepdims)), const(1e-6) if eps is None else eps))
    if root:
        normal = emit(op.divide(centred, emit(op.sqrt(shifted))))
    else:
        normal = emit(op.multiply(centred, emit(op.rsqrt(shifted))))
    return emit(op.add(emit(op.multiply(normal, weight)), bias))


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("root", [True, False])
def test_decomposed_spellings(power: bool, root: bool) -> None:
    before = graph(lambda emit, *a: decomposed(emit, *a, power=power, root=root), SHAPES)
    after, report = lift(before)
    same(after, graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=float(np.float32(1e-6)))), SHAPES))
    assert report["operators"] == {"layer_norm": 1}


def test_relax_operator() -> None:
    after, _ = lift(graph(whole, SHAPES))
    same(after, graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=1e-6)), SHAPES))


def test_a_centred_value_that_is_read_elsewhere_is_computed_for_that_alone() -> None:
    def body(emit, x, weight, bias):
        centred = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        scale = emit(op.sqrt(emit(op.add(emit(op.mean(emit(op.multiply(centred, centred)), [-1], True)), const(1e-6)))))
        y = emit(op.add(emit(op.multiply(emit(op.divide(centred, scale)), weight)), bias))
        return emit(op.add(y, emit(op.exp(centred))))

    after, report = lift(graph(body, SHAPES))
    assert report["operators"] == {"layer_norm": 1}
    assert {"subtract", "exp"} <= set(count_calls(after["main"]))


@pytest.mark.parametrize(
    ("body", "shapes", "dtypes", "reason"),
    [
        (
            lambda e, x, w, b: whole(e, x, w, b, axes=(1, 2)),
            [(2, 8, 8), (8, 8), (8, 8)],
            None,
            "must be over the last axis, got axes [1, 2]",
        ),
        (
            lambda e, *a: decomposed(e, *a, axis=1),
            [(2, 8, 8), (8,), (8,)],
            None,
            "must be over the last axis, got axes [1] of rank 3",
        ),
        (decomposed, [(2, N, 8), (1, 8), (8,)], None, "weight must be a vector of the last dimension, got rank 2"),
        (decomposed, [(2, N, 8), (8,), (1,)], None, "bias must be a vector of the last dimension 8, got 1"),
        (whole, SHAPES, ["float16"] * 3, "weight must be float32, got float16"),
        (lambda e, *a: decomposed(e, *a, exponent=3.0), SHAPES, None, "the exponent must be 2, got 3.0"),
        (
            lambda e, *a: decomposed(e, *a, eps=const(1e-5, (8, 1))),
            [(2, 8, 8), (8,), (8,)],
            None,
            "eps must be a scalar constant, got shape (8, 1)",
        ),
    ],
)
def test_rejects(body, shapes, dtypes, reason: str) -> None:
    _, report = lift(graph(body, shapes, dtypes))
    assert any(reason in entry["reason"] for entry in report["rejected"]), report


def test_type_rule() -> None:
    with pytest.raises(ValueError, match="bias must be float32, got float16"):
        graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=1e-5)), SHAPES, ["float32", "float32", "float16"])
    with pytest.raises(ValueError, match="the residual must be like x"):
        graph(lambda emit, x, w, b, r: emit(OPERATOR.call(x, w, b, r, eps=1e-5)), [*SHAPES, (1, N, 8)])
    with pytest.raises(ValueError, match="takes x, weight, bias and at most one residual, got 5"):
        graph(lambda emit, x, w, b: emit(OPERATOR.call(x, w, b, x, x, eps=1e-5)), SHAPES)


def test_two_passes_keep_the_variance_of_large_means() -> None:
    """A one-pass variance of values around 4000 would be lost in float32."""
    import tvm

    x = (4000 + np.random.default_rng(0).standard_normal((3, 64))).astype("float32")
    mod = graph(lambda emit, *a: emit(OPERATOR.call(*a, eps=1e-6)), [(3, 64), (64,), (64,)])
    run = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"]
    ones, zeros = np.ones(64, "float32"), np.zeros(64, "float32")
    found = run(*map(tvm.runtime.tensor, (x, ones, zeros))).numpy()
    expected = OPERATOR.reference(x.astype("float64"), ones, zeros, eps=1e-6)
    np.testing.assert_allclose(found, expected, atol=2e-3)
