"""Attention in bfloat16: which calls become so, at which precisions, on which targets."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tvm
from tvm import relax

from halo_tvm.errors import UsageError
from halo_tvm.params import ParamTable
from halo_tvm.passes import PASSES
from halo_tvm.passes.graph_pass import Context
from halo_tvm.passes.pipeline import OPTIMISE, Pipeline
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.relay_ops.operator import attrs_of, operator_of
from halo_tvm.targets import resolve

ATTRIBUTES = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 32, "scale": 0.1, "packed": True}


def module(*calls: dict[str, object]) -> tvm.IRModule:
    """One call with `ATTRIBUTES`, or several in a row of one input, with others beside them."""
    x = relax.Var("x", relax.TensorType([1, 4, 192], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            attended = [
                builder.emit(OPERATORS["attention"].call(x, **ATTRIBUTES, **others)) for others in calls or ({},)
            ]
            out = builder.emit_output(relax.op.exp(functools.reduce(relax.op.add, attended)))
        builder.emit_func_output(out)
    return builder.get()


def attentions_of(mod: tvm.IRModule) -> list[dict[str, object]]:
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    return [attrs_of(v) for v in values if (op := operator_of(v)) is not None and op.name == "attention"]


def context(target: str, precision: str = "int8") -> Context:
    return Context(ParamTable(), resolve(target), {}, {}, precision=precision)


def test_calls_permit_it_where_the_target_is_faster_at_it() -> None:
    mod, report = PASSES["narrow_attention"]()(module(), context("x86:avx512-bf16"))
    assert attentions_of(mod) == [{**ATTRIBUTES, "products": "bfloat16"}]
    assert report == {"permitted": 1}


def test_every_call_by_itself_and_with_its_other_attributes() -> None:
    calls = {"layer": "h.0.attn"}, {"layer": "h.1.attn", "causal": True}, {"layer": "h.2.attn", "products": "float32"}
    mod, report = PASSES["narrow_attention"]()(module(*calls), context("x86:avx512-bf16"))
    assert attentions_of(mod) == [{**ATTRIBUTES, "products": "bfloat16", **others} for others in calls]
    assert report == {"permitted": 2}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_gpu_multiplies_tf32(precision: str) -> None:
    mod, report = PASSES["narrow_attention"]()(module(), context("cuda:sm_80", precision))
    assert attentions_of(mod) == [{**ATTRIBUTES, "products": "tf32"}]
    assert report == {"permitted": 1}


def test_a_cpu_has_nothing_as_exact_as_float16() -> None:
    _, report = PASSES["narrow_attention"]()(module(), context("x86:avx512-bf16", "fp16"))
    assert report["permitted"] == 0


def test_calls_in_a_branch_stay() -> None:
    x, flag = relax.Var("x", relax.TensorType([1, 4, 192], "float32")), relax.Var("flag", relax.TensorType([], "bool"))
    other = relax.const(np.zeros((1, 4, 2, 32), "float32"))

    def branch(value: relax.Expr) -> relax.SeqExpr:
        out = relax.Var("out", relax.TensorType([1, 4, 2, 32], "float32"))
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(out, value)])], out)

    builder = relax.BlockBuilder()
    with builder.function("main", [x, flag], attrs={"num_input": 2}):
        attended = builder.normalize(OPERATORS["attention"].call(x, **ATTRIBUTES))
        builder.emit_func_output(builder.emit(relax.If(flag, branch(attended), branch(other))))
    before = builder.get()
    mod, report = PASSES["narrow_attention"]()(before, context("x86:avx512-bf16"))
    tvm.ir.assert_structural_equal(mod, before)
    assert report == {"permitted": 0}


def test_what_a_call_says_stays() -> None:
    run = PASSES["narrow_attention"]()
    once, _ = run(module(), context("x86:avx512-bf16"))
    again, report = run(once, context("x86:avx512-bf16"))
    tvm.ir.assert_structural_equal(again, once)
    assert report == {"permitted": 0}


def test_nothing_changes_elsewhere() -> None:
    before = module()
    mod, report = PASSES["narrow_attention"]()(before, context("x86:avx512-vnni"))
    tvm.ir.assert_structural_equal(mod, before)
    assert report == {"permitted": 0, "kept": "x86:avx512-vnni has no faster products as exact as --precision int8"}


@pytest.mark.parametrize(("precision", "runs"), [("fp32", False), ("fp16", True), ("bf16", True), ("int8", True)])
def test_precisions_that_run_it(precision: str, runs: bool) -> None:
    (step,) = [step for step in OPTIMISE if step.name == "narrow_attention"]
    _, reports = Pipeline.of(1).run((step,), module(), context("x86:avx512-bf16", precision))
    assert ("narrow_attention" in reports) is runs


def test_it_is_refused_at_full_precision() -> None:
    (step,) = [step for step in OPTIMISE if step.name == "narrow_attention"]
    with pytest.raises(UsageError, match="computes in fp16 or bf16 or int8 or int4, found it in --enable at"):
        Pipeline.of(1, enable=["narrow_attention"]).run((step,), module(), context("x86:avx512-bf16", "fp32"))
