"""A gate and what it gates: one product with all that follows behind it, at every precision; where they stay two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from graphs import built_module, context_of, small_model
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.passes import pipeline
from halo_tvm.passes.graph_pass import count_calls
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.passes.weights import param_names
from halo_tvm.targets import Target, read_host, resolve

X = (InputSpec("x", ("batch", "sequence", 64), "float32"),)


def gated(m: ModelBuilder, *, width: int = 70, uses: int = 1) -> Mapping[str, relax.Expr]:
    """x + down(silu(gate(x)) * up(x)), with biases; `uses` of 2: the gate is a result, too."""

    def linear(x: relax.Expr, name: str, n: int, k: int) -> relax.Var:
        return m.op("linear", x, m.weight(f"{name}.weight", (n, k)), m.weight(f"{name}.bias", (n,)), layout="nk", n=n)

    x = m.inputs["x"]
    gate = linear(x, "gate", width, 64)
    hidden = m.emit(relax.op.multiply(m.emit(relax.op.nn.silu(gate)), linear(x, "up", width, 64)))
    y = m.emit(relax.op.add(linear(hidden, "down", 64, width), x))
    return {"y": y, "gate": gate} if uses == 2 else {"y": y}


def lowered(model: ImportedModel, target: Target, precision: str, **options: object):
    context = dataclasses.replace(context_of(model, target), precision=precision)
    steps = pipeline.Pipeline.of(3, **options)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    return steps.run(pipeline.OPTIMISE, mod, context)


@pytest.mark.parametrize(
    ("precision", "isa", "kernels", "bound"),
    [
        ("fp32", "avx512-vnni", 2, 1e-6),
        ("fp32", "avx2", 2, 1e-6),
        ("bf16", "avx2", 2, 1e-2),
        ("int8", "avx512-vnni", 4, 3e-2),  # and two that round rows
        ("int8", "avx2", 4, 3e-2),
        ("int4", "avx512-vnni", 2, 2e-1),
    ],
)
@pytest.mark.sampled(2)
def test_one_product_with_its_gate_behind_it(precision: str, isa: str, kernels: int, bound: float) -> None:
    target = resolve(f"x86:{isa}")
    if not target.isa.requires <= read_host().flags:
        pytest.skip(f"this processor does not run {isa}")
    model = small_model(X, lambda m: gated(m, width=96 if precision == "int4" else 72))
    mod, reports = lowered(model, target, precision)
    assert len(reports["fuse_projections"]["fused"]) == 1
    assert count_calls(mod["main"])["call_tir"] == kernels
    names = [name for name in param_names(mod["main"]) if "gate" in name]
    assert names and all("up" in name for name in names), "the weights of both are stored as one, and only so"
    mod, report = schedule_functions(mod, target)
    assert report.rules["gemm"] == 2
    run = built_module(mod, model, target)
    for batch, sequence in ((1, 1), (2, 4), (1, 29)):
        x = np.random.default_rng(sequence).standard_normal((batch, sequence, 64), dtype=np.float32)
        expected = evaluate(model, {"x": x})["y"]
        assert np.abs(run(x) - expected).max() < bound * np.abs(expected).max()


def test_what_is_read_elsewhere_stays_two_products() -> None:
    model = small_model(X, lambda m: gated(m, uses=2))
    mod, reports = lowered(model, resolve("x86:avx2"), "fp32")
    assert reports["fuse_projections"]["fused"] == [] and count_calls(mod["main"])["call_tir"] == 3


def test_a_weight_in_chunks_stays_two() -> None:
    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        gate, up = (
            m.op("linear", m.inputs["x"], m.weight(name, (1 << 16, 32)), layout="kn", n=32) for name in ("gate", "up")
        )
        return {"y": m.emit(relax.op.multiply(m.emit(relax.op.nn.relu(gate)), up))}

    model = small_model((InputSpec("x", (1, 1 << 16), "float32"),), body)
    _, reports = lowered(model, resolve("x86:avx2"), "fp32")
    (declined,) = reports["fuse_projections"]["declined"]
    assert "is read in chunks of" in declined["reason"]


@pytest.mark.parametrize("name", ["cuda:sm_80", "c"])
def test_targets_without_the_rule_keep_two(name: str) -> None:
    mod, reports = lowered(small_model(X, gated), resolve(name), "fp32")
    assert "has no rule that puts stages behind the halves" in reports["fuse_projections"]["declined"][0]["reason"]
    assert count_calls(mod["main"])["halo.linear" if "halo.linear" in count_calls(mod["main"]) else "call_tir"] >= 2


def test_without_packing_the_parts_are_a_kernel_of_their_own() -> None:
    """No rule serves halves of a weight that is not packed: the refusal stands in the report."""
    model = small_model(X, gated)
    mod, reports = lowered(model, resolve("x86:avx2"), "fp32", disable=("pack_weights",))
    refused = [c for c in reports["fuse"]["candidates"] if not c["taken"]]
    assert any("is not packed" in c["reason"] for c in refused)
    assert count_calls(mod["main"])["call_tir"] == 3
