"""Means, variances, softmax and norms that an exporter wrote out: before and after, and numbers of NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs import context_of, run_model, small_model
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.passes import PASSES, pipeline
from halo_tvm.passes.graph_pass import count_calls

R = relax.op
X = (InputSpec("x", ("batch", "rows", 32), "float32"),)


def lifted(model: ImportedModel) -> dict[str, int]:
    mod, _ = pipeline.Pipeline.of(3).run(pipeline.LIFT, model.mod, context_of(model))
    return count_calls(mod["main"])


def norm(m: ModelBuilder, x: relax.Expr, name: str) -> relax.Expr:
    """As Flax writes it: sums over a count without their axis, E[x^2] - E[x]^2, the scale beside the root."""
    batch, rows, width = x.ty.shape.values

    def mean(value: relax.Expr) -> relax.Expr:
        total = m.emit(R.sum(value, [-1], keepdims=True))
        return m.emit(R.divide(m.emit(R.reshape(total, [batch, rows])), relax.const(float(int(width)))))

    first, second = mean(x), mean(m.emit(R.multiply(x, x)))
    variance = m.emit(R.maximum(m.emit(R.subtract(second, m.emit(R.multiply(first, first)))), relax.const(0.0)))
    first, variance = (m.emit(R.reshape(v, [batch, rows, 1])) for v in (first, variance))
    centred = m.emit(R.subtract(x, first))
    root = m.emit(R.rsqrt(m.emit(R.add(variance, relax.const(1e-5)))))
    scale = m.emit(R.multiply(root, m.weight(f"{name}.scale", (32,))))
    return m.emit(R.add(m.emit(R.multiply(centred, scale)), m.weight(f"{name}.bias", (32,))))


def test_two_norms_of_one_tensor_are_two_operators() -> None:
    model = small_model(X, lambda m: {n: norm(m, m.inputs["x"], n) for n in ("a", "b")})
    assert lifted(model) == {"halo.layer_norm": 2}
    mod, _ = PASSES["canonicalise"]()(model.mod, context_of(model))
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 32)).astype(np.float32)}
    after = ImportedModel(**{**model.__dict__, "mod": mod})
    for name, value in evaluate(model, x).items():
        np.testing.assert_allclose(evaluate(after, x)[name], value, atol=1e-9)


def test_a_norm_whose_mean_is_computed_twice() -> None:
    """As Equinox writes it: once for what is centred, once in the variance."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        x = m.inputs["x"]
        centred, apart = (m.emit(R.subtract(x, m.emit(R.mean(x, [2], keepdims=True)))) for _ in range(2))
        variance = m.emit(R.mean(m.emit(R.multiply(apart, apart)), [2], keepdims=True))
        root = m.emit(R.rsqrt(m.emit(R.add(variance, relax.const(1e-5)))))
        scale, bias = (m.weight(name, (32,)) for name in ("scale", "bias"))
        return {"y": m.emit(R.add(m.emit(R.multiply(m.emit(R.multiply(centred, root)), scale)), bias))}

    assert lifted(small_model(X, body)) == {"halo.layer_norm": 1}


def test_softmax_behind_a_guard_and_axes_of_size_one() -> None:
    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        batch, rows, width = m.inputs["x"].ty.shape.values
        x = m.emit(R.reshape(m.inputs["x"], [batch, 1, rows, width]))
        top = m.emit(R.maximum(relax.const(-np.inf, "float32"), m.emit(R.max(x, [3], keepdims=True))))
        for shape in ([1, batch, 1, rows, 1], [batch, rows, 1, 1], [batch, 1, rows, 1]):  # there and back by detours
            top = m.emit(R.reshape(top, shape))
        power = m.emit(R.exp(m.emit(R.subtract(x, top))))
        return {"y": m.emit(R.divide(power, m.emit(R.sum(power, [3], keepdims=True))))}

    assert lifted(small_model(X, body)) == {"nn.softmax": 1, "reshape": 1}


def test_a_norm_whose_weights_have_the_rank_of_its_input() -> None:
    """As Keras writes it on TensorFlow: x * (r * scale) + (-mean * (r * scale) + bias), both weights [1, 1, n]."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        x = m.inputs["x"]
        scale, bias = (m.weight(name, (1, 1, 32)) for name in ("scale", "bias"))
        mean = m.emit(R.mean(x, [2], keepdims=True))
        centred = m.emit(R.subtract(x, mean))
        variance = m.emit(R.mean(m.emit(R.multiply(centred, centred)), [2], keepdims=True))
        root = m.emit(R.divide(relax.const(1.0), m.emit(R.sqrt(m.emit(R.add(variance, relax.const(1e-3)))))))
        scaled = m.emit(R.multiply(root, scale))
        moved = m.emit(R.add(m.emit(R.multiply(m.emit(R.negative(mean)), scaled)), bias))
        return {"y": m.emit(R.add(m.emit(R.multiply(x, scaled)), moved))}

    model = small_model(X, body)
    assert lifted(model) == {"halo.layer_norm": 1, "reshape": 2}
    mod, _ = PASSES["canonicalise"]()(model.mod, context_of(model))
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 32)).astype(np.float32)}
    after = ImportedModel(**{**model.__dict__, "mod": mod})
    np.testing.assert_allclose(evaluate(after, x)["y"], evaluate(model, x)["y"], atol=1e-9)


def mean_over(m: ModelBuilder, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return m.emit(R.divide(m.emit(R.sum(x, [-1])), relax.const(np.full(shape, 32, "float32"))))


def erfc_of(m: ModelBuilder, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return m.emit(R.subtract(relax.const(np.ones(shape, "float32")), m.emit(R.erf(m.emit(R.negative(x))))))


def erfc_of_a_product(m: ModelBuilder, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    product = m.emit(R.multiply(x, relax.const(np.full(shape, -0.7, "float32"))))
    return m.emit(R.subtract(relax.const(1.0), m.emit(R.erf(product))))


@pytest.mark.parametrize(
    ("body", "meaning"),
    [
        (mean_over, lambda x: x.mean(-1)),
        (erfc_of, np.vectorize(lambda x: math.erfc(-x))),
        (erfc_of_a_product, np.vectorize(lambda x: math.erfc(-0.7 * x))),
    ],
)
def test_numbers_of_a_higher_rank_keep_the_axes_they_add(body, meaning) -> None:
    model = small_model(X, lambda m: {"y": body(m, m.inputs["x"], (1, 1, 1, 1))})
    x = np.random.default_rng(0).standard_normal((2, 3, 32)).astype(np.float32)
    wanted = meaning(x.astype(np.float64))
    np.testing.assert_allclose(
        run_model(model, {"x": x}), wanted.reshape((1,) * (4 - wanted.ndim) + wanted.shape), atol=1e-6
    )


def test_what_only_looks_alike_is_left_alone() -> None:
    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        x = m.inputs["x"]
        other = m.emit(R.divide(m.emit(R.sum(x, [-1], keepdims=True)), relax.const(31.0)))  # not the count
        power = m.emit(R.exp(m.emit(R.subtract(x, m.emit(R.max(x, [-1], keepdims=True))))))
        share = m.emit(R.divide(power, m.emit(R.sum(power, [1], keepdims=True))))  # along another axis
        return {"mean": other, "share": share, "above": m.emit(R.maximum(x, relax.const(0.0)))}

    counts = lifted(small_model(X, body))
    assert not {"mean", "nn.softmax"} & set(counts) and counts["maximum"] == 1
