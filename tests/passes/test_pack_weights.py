"""pack_weights: formats by precision, and what stays float32 with its reason."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from graphs import context_of, run_module, small_model
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models._builder import ModelBuilder
from halo_tvm.params import pack_bf16, pack_weight
from halo_tvm.passes import pipeline
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.targets import resolve


def two_linears(k: int, n: int) -> ImportedModel:
    """x [rows, k] -> n columns -> 48 columns."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        hidden = m.linear(m.inputs["x"], "first", k, n, bias=False)
        return {"y": m.linear(hidden, "second", n, 48, bias=False)}

    return small_model((InputSpec("x", ("rows", k), "float32"),), body)


def test_pairs_lie_along_k() -> None:
    weight = np.arange(8 * 5, dtype=np.float32).reshape(8, 5)
    packed = pack_bf16(weight, layout="kn", kc=4, nr=4)
    assert packed.shape == (2, 2, 2, 4, 2)
    plain = pack_weight(weight, layout="kn", kc=4, nr=4)
    np.testing.assert_array_equal(packed.astype("float32").swapaxes(3, 4).reshape(2, 2, 4, 4), plain)
    np.testing.assert_array_equal(packed, pack_bf16(weight.T, layout="nk", kc=4, nr=4))


def test_rounds_to_nearest_even() -> None:
    half = np.array([[1 + 2**-8], [1 + 3 * 2**-8]], np.float32)  # halfway between two neighbours
    assert pack_bf16(half, layout="kn", kc=2, nr=1).astype("float32").ravel().tolist() == [1.0, 1 + 2**-6]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_by_precision(precision: str) -> None:
    """An odd k stays float32, with its reason; the result is as exact as its weights."""
    model = two_linears(33, 64)
    context = replace(context_of(model, resolve("cpu")), precision=precision)
    steps = pipeline.Pipeline.of(3)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    mod, reports = steps.run(pipeline.OPTIMISE, mod, context)
    report = reports["pack_weights"]
    formats = {label.rpartition("/")[0]: count for label, count in report["formats"].items()}
    assert formats == ({"f32/k1": 2} if precision == "fp32" else {"f32/k1": 1, "bf16/k2": 1})
    assert [w["reason"] for w in report["wide"]] == ([] if precision == "fp32" else ["k = 33 is odd: it stays float32"])
    mod, _ = schedule_functions(mod, context.target)
    x = np.random.default_rng(1).standard_normal((9, 33)).astype("float32")
    found = run_module(mod, [x], model, context.target)
    names = [name for name in model.params.sources if name.endswith("weight")]
    first, second = (model.params.materialise(name).astype("float64") for name in names)
    if precision == "bf16":
        second = second.astype("float32").astype(ml_dtypes.bfloat16).astype("float64")
    first, second = (w if w.shape[0] == k else w.T for w, k in ((first, 33), (second, 64)))
    np.testing.assert_allclose(found, x.astype("float64") @ first @ second, rtol=1e-4, atol=1e-5)
