"""pack_weights: formats by precision, and what stays float32 with its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from graphs import context_of, run_module, small_model, tied
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models.builder import ModelBuilder
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


STORED = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # the type of a weight by precision


def compiled(model: ImportedModel, precision: str, x: np.ndarray) -> tuple[np.ndarray, dict[str, object]]:
    """The result of `model` for its input, and the report of the pass."""
    context = replace(context_of(model, resolve("cpu")), precision=precision)
    steps = pipeline.Pipeline.of(3)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    mod, reports = steps.run(pipeline.OPTIMISE, mod, context)
    mod, _ = schedule_functions(mod, context.target)
    return run_module(mod, [x], model, context.target), reports["pack_weights"]


def rounded(weight: np.ndarray, precision: str) -> np.ndarray:
    return weight.astype("float32").astype(ml_dtypes.bfloat16 if precision == "bf16" else STORED[precision])


@pytest.mark.parametrize(
    ("precision", "formats", "wide"),
    [
        ("fp32", {"f32/k1": 2}, []),
        ("bf16", {"f32/k1": 1, "bf16/k2": 1}, ["k = 33 is odd: it stays float32"]),
        ("fp16", {"f16/k1": 2}, []),
    ],
)
def test_weights_by_precision(precision: str, formats: dict[str, int], wide: list[str]) -> None:
    """An odd k stays float32 where pairs lie along it, with its reason; the result is as exact as its weights."""
    model = two_linears(33, 64)
    x = np.random.default_rng(1).standard_normal((9, 33)).astype("float32")
    found, report = compiled(model, precision, x)
    counts: Counter[str] = Counter()
    for label, count in report["formats"].items():
        counts[label.rpartition("/")[0]] += count
    assert counts == formats
    assert [w["reason"] for w in report["wide"]] == wide
    names = [name for name in model.params.sources if name.endswith("weight")]
    first, second = (model.params.materialise(name) for name in names)
    first, second = (w if w.shape[0] == k else w.T for w, k in ((first, 33), (second, 64)))
    if not wide:
        first = rounded(first, precision)
    y = x.astype("float64") @ first.astype("float64") @ rounded(second, precision).astype("float64")
    bound = 5e-3 if precision == "fp16" and resolve("cpu").isa.half_arithmetic else 1e-4
    np.testing.assert_allclose(found, y, rtol=bound, atol=bound / 10)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_tied_embedding_reads_the_packed_head(precision: str) -> None:
    model, ids = tied(), np.array([0, 130, 7, 64])
    found, report = compiled(model, precision, ids)
    assert sum(report["formats"].values()) == 1 and not report["kept"], "stored once"
    table = rounded(model.params.materialise("wte"), precision).astype("float64")
    bound = 5e-3 if precision == "fp16" and resolve("cpu").isa.half_arithmetic else 1e-4
    np.testing.assert_allclose(found, table[ids] @ table.T, rtol=bound, atol=bound)
