"""pack_experts: formats by precision, what stays wide with its reason, and what the routers of experts keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import context_of, run_module, small_model
from tvm import relax
from tvm.tirx.buffer import BufferType

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.params import expert_columns
from halo_tvm.passes import pipeline
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.passes.scheme_ladder import ladder
from halo_tvm.targets import resolve
from halo_tvm.tuning.measure.inputs import Arguments, Weights, operand_tolerance

EXPERTS, TOP, N = 5, 2, 40


def routed(k: int) -> ImportedModel:
    """x [rows, k] -> its experts -> [rows, TOP, N]."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        x = m.inputs["x"]
        logits = m.linear(x, "router", k, EXPERTS, bias=False)
        chosen = m.op("route", logits, top=TOP, scores="softmax", normalised=True, scale=1.0)
        ids, share = (m.emit(relax.TupleGetItem(chosen, i)) for i in range(2))
        each = m.op("experts", x, ids, m.weight("experts", (EXPERTS, N, k)), layout="nk", n=N, experts=EXPERTS)
        return {"y": m.emit(relax.op.multiply(each, m.emit(relax.op.expand_dims(share, 2))))}

    return small_model((InputSpec("x", ("rows", k), "float32"),), body)


def optimised(model: ImportedModel, precision: str, target: str = "x86:avx2") -> tuple[object, dict[str, object]]:
    context = replace(context_of(model, resolve(target)), precision=precision)
    steps = pipeline.Pipeline.of(3)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    return steps.run(pipeline.OPTIMISE, mod, context)


@pytest.mark.parametrize(
    ("precision", "k", "label", "wide"),
    [
        ("fp32", 64, "f32/k1/n16", []),
        ("bf16", 64, "bf16/k2/n16", []),
        ("bf16", 33, "f32/k1/n16", ["k = 33 is odd: it stays float32"]),
        ("fp16", 33, "f16/k1/n16", []),
        ("int8", 64, "i8g32/k4/n16", []),
        ("int4", 64, "i4g32m/k8/n16", []),
        ("int8", 48, "bf16/k2/n16", ["k = 48 is no multiple of 32, the smallest group"]),
    ],
)
def test_experts_by_precision(precision: str, k: int, label: str, wide: list[str]) -> None:
    _, reports = optimised(routed(k), precision)
    report = reports["pack_experts"]
    assert report["formats"] == {label: 1}
    assert [entry["reason"] for entry in report["wide"]] == wide
    if precision in ("int8", "int4"):  # a rounded router would send rows to other experts
        assert {"weight": "router.weight", "reason": "it chooses experts"} in reports["quantise"]["kept"]


def test_experts_follow_the_ladder_of_schemes() -> None:
    """Its second rung at int4 keeps what is deep in bytes; the share that a row reads stands in the report."""
    context = replace(
        context_of(model := routed(64), resolve("x86:avx2")), precision="int4", rung=ladder("int4", appends=True)[1]
    )
    mod, _ = pipeline.Pipeline.of(3).run(pipeline.LIFT, model.mod, context)
    _, reports = pipeline.Pipeline.of(3).run(pipeline.OPTIMISE, mod, context)
    assert reports["pack_experts"]["formats"] == {"i8g32/k4/n16": 1}  # 64 deep, 40 wide
    assert set(reports["pack_experts"]["read"].values()) == {TOP / EXPERTS}


def test_gpus_read_experts_as_they_are() -> None:
    _, reports = optimised(routed(64), "fp32", "cuda:sm_90")
    (kept,) = reports["pack_experts"]["kept"]
    assert kept == {"weight": "experts", "reason": "kernels of GPUs read experts as they are stored"}


def test_columns_of_every_expert_fill_whole_panels() -> None:
    weight = np.arange(2 * 3 * 2, dtype=np.float32).reshape(2, 3, 2)
    columns = expert_columns(weight, whole=4).reshape(2, 4, 2)
    np.testing.assert_array_equal(columns[:, :3], weight)
    assert not columns[:, 3].any()


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-6), ("bf16", 2e-2), ("int8", 2e-2), ("int4", 0.15)])
@pytest.mark.sampled(1, 2)
def test_packed_experts_equal_the_definition(precision: str, bound: float) -> None:
    """More rows of an expert than one task takes, in a number that is known at run time; every row by its experts."""
    model, target = routed(64), resolve("cpu", precision=precision)
    mod, _ = optimised(model, precision, target.name)
    mod, report = schedule_functions(mod, target)
    assert report.rules["experts"] == 1
    for rows in (1, 333):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype("float32")
        expected = evaluate(model, {"x": x})["y"]
        found = run_module(mod, [x], model, target)
        assert np.abs(found - expected).max() <= bound * np.abs(expected).max()


def test_tuning_sends_rows_to_all_experts() -> None:
    """0 and 1, which other integers are, would be two experts of all; rows are rounded to bytes at int8."""
    mod, _ = optimised(routed(64), "int8")
    calls = ((f, (f.attrs or {}).get("halo.call")) for f in mod.functions.values())
    (func,) = (f for f, call in calls if call is not None and call["op"] == "experts")
    buffers = [i for i, param in enumerate(func.params) if isinstance(param.ty, BufferType)]
    given = Arguments(func, [50], [buffers[-1]], Weights(func, [], 0, 0), 0).one()
    assert set(given[buffers[1]].numpy().ravel()) == set(range(EXPERTS))
    assert operand_tolerance(func) == 4e-2
