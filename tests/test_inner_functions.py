"""Branches and bodies of loops go through the phases as main does: lifted, packed and fused; and their values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.importers.loops import if_then_else, while_loop
from halo_tvm.in_process import compile_in_process
from halo_tvm.inner_functions import apart
from halo_tvm.params import ParamSource, ParamTable
from halo_tvm.passes.graph_pass import op_name
from halo_tvm.phase_reports import QuantiseReport
from halo_tvm.phases import lower, schedule
from halo_tvm.relay_ops import OPERATORS

R = relax.op
K = 32
_RANDOM = np.random.default_rng(0)
WEIGHTS = {name: _RANDOM.standard_normal((K, K)).astype("float32") / 6 for name in ("a.w", "b.w", "step.w")}


def _model() -> ImportedModel:
    """(c, m, x [n, 32]) -> y = relu(x a) + 1 or gelu(x b), then m times y = tanh(y step); the loop is in the branch."""
    n = tirx.Var("n", "int64")
    types = [relax.TensorType((), "bool"), relax.TensorType((), "int64"), relax.TensorType([n, K], "float32")]
    c, m, x = inputs = [relax.Var(name, ty) for name, ty in zip("cmx", types)]
    a, b, w = tensors = [relax.Var(name.replace(".", "_"), relax.TensorType((K, K), "float32")) for name in WEIGHTS]
    bb = relax.BlockBuilder()

    def first() -> list[relax.Expr]:
        y = bb.emit(R.add(R.nn.relu(R.matmul(x, a)), relax.const(1.0, "float32")))
        zero, one = (relax.const(value, "int64") for value in (0, 1))
        return while_loop(
            bb,
            [zero, y],
            lambda s: R.less(s[0], m),
            lambda s: [R.add(s[0], one), bb.emit(R.tanh(R.matmul(s[1], w)))],
        )[1:]

    with bb.function("main", [*inputs, *tensors]):
        with bb.dataflow():
            (y,) = if_then_else(bb, c, first, lambda: [bb.emit(R.nn.gelu(R.matmul(x, b)))])
            result = bb.emit_output(y)
        bb.emit_func_output(result)
    mod = bb.finalize()
    mod["main"] = mod["main"].with_attrs({"num_input": 3, "halo.params": list(WEIGHTS)})
    sources = {n: ParamSource(v.shape, "float32", lambda v=v: v) for n, v in WEIGHTS.items()}
    specs = (InputSpec("c", (), "bool"), InputSpec("m", (), "int64"), InputSpec("x", ("n", K), "float32"))
    return ImportedModel("t", mod, ParamTable(sources), specs, ("y",), {"n": (0, 64)}, {"n": 8}, {}, {})


def _calls(mod: tvm.IRModule, name: str) -> list[str]:
    """The functions that hold a kernel whose name begins with `name`, once for each such call."""
    found = []
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(
                func,
                lambda e: (
                    found.append(gvar.name_hint)
                    if op_name(e) == "relax.call_tir" and e.args[0].name_hint.startswith(name)
                    else None
                ),
            )
    return found


def test_every_function_is_lifted_packed_fused_and_scheduled() -> None:
    model = _model()
    compilation = Compilation.of(CompileConfig(model="t", target="x86:avx2", records=False))
    mod, reports = lower(model, compilation)
    assert reports.lift.operators["linear"] == 3
    assert not any("stands" in str(func) for func in mod.functions.values())
    packed = [str(name) for name in mod["main"].attrs["halo.params"]]
    assert len(packed) == 3 and not set(packed) & set(WEIGHTS)  # none is kept as it was
    assert len(set(_calls(mod, "fused_linear"))) == 3  # a kernel in each branch and one in the step, none in main
    _, scheduled = schedule(mod, compilation)
    assert scheduled.rules["gemm"] >= 2 and not {"search", "fallback"} & set(scheduled.rules)


def _two_equal_branches() -> ImportedModel:
    """(c, x [n, 32]) -> x a or x b, behind x step: the branches differ in their weights alone."""
    n = tirx.Var("n", "int64")
    c, x = inputs = [relax.Var("c", relax.TensorType((), "bool")), relax.Var("x", relax.TensorType([n, K], "float32"))]
    a, b, w = tensors = [relax.Var(name.replace(".", "_"), relax.TensorType((K, K), "float32")) for name in WEIGHTS]
    bb = relax.BlockBuilder()
    with bb.function("main", [*inputs, *tensors]):
        with bb.dataflow():
            h = bb.emit(R.matmul(x, w))
            (y,) = if_then_else(bb, c, lambda: [bb.emit(R.matmul(h, a))], lambda: [bb.emit(R.matmul(h, b))])
            result = bb.emit_output(y)
        bb.emit_func_output(result)
    mod = bb.finalize()
    mod["main"] = mod["main"].with_attrs({"num_input": 2, "halo.params": list(WEIGHTS)})
    sources = {n: ParamSource(v.shape, "float32", lambda v=v: v) for n, v in WEIGHTS.items()}
    specs = (InputSpec("c", (), "bool"), InputSpec("x", ("n", K), "float32"))
    return ImportedModel("t", mod, ParamTable(sources), specs, ("y",), {"n": (0, 64)}, {"n": 8}, {}, {})


def _quantised(skip: list[str]) -> QuantiseReport:
    overrides = {"passes": {"quantise": {"skip": skip}}}
    config = CompileConfig(model="t", target="x86:avx2", records=False, precision="int8", overrides=overrides)
    report = lower(_two_equal_branches(), Compilation.of(replace(config, force_precision=True)))[1].optimise.quantise
    assert report is not None
    return report


@pytest.mark.parametrize(("skip", "kept"), [([], []), (["step*"], ["step.w"]), (["a.*"], ["a.w"])])
def test_linears_in_branches_are_quantised_and_told(skip: list[str], kept: list[str]) -> None:
    """Equal branches with weights of their own are functions of their own; a glob may name something in any of them."""
    report = _quantised(skip)
    assert report.linears == 3 - len(kept) and [entry.weight for entry in report.kept] == kept


def test_a_glob_that_names_nothing_in_any_function_is_refused() -> None:
    with pytest.raises(UsageError, match="found none: the names are a.w, b.w, step.w; correct"):
        _quantised(["none*"])


@pytest.mark.parametrize("level", [0, 3])
def test_values(level: int) -> None:
    program = compile_in_process(_model(), threads=1, level=level)
    erf = np.vectorize(math.erf)
    for rows in (1, 5, 64):
        x = _RANDOM.standard_normal((rows, K)).astype("float32")
        z = x.astype("float64") @ WEIGHTS["b.w"]
        found = program(np.bool_(False), np.int64(3), x)["y"]
        np.testing.assert_allclose(found, z * (1 + erf(z / 2**0.5)) / 2, rtol=1e-4, atol=1e-5)
        for steps in (0, 1, 6):
            y = np.maximum(x.astype("float64") @ WEIGHTS["a.w"], 0) + 1
            for _ in range(steps):
                y = np.tanh(y @ WEIGHTS["step.w"])
            np.testing.assert_allclose(program(np.bool_(True), np.int64(steps), x)["y"], y, rtol=1e-4, atol=1e-5)


def test_an_append_in_a_branch_is_refused() -> None:
    bb = relax.BlockBuilder()
    cache, new = (relax.Var(name, relax.TensorType((1, n, 2, 8), "float32")) for name, n in (("cache", 16), ("new", 1)))
    at, c = relax.Var("at", relax.TensorType((1,), "int32")), relax.Var("c", relax.TensorType((), "bool"))
    with bb.function("main", [c, cache, new, at]):
        append = OPERATORS["kv_append"].call(cache, new, at)
        (y,) = if_then_else(bb, c, lambda: [bb.emit(append)], lambda: [cache])
        bb.emit_func_output(y)
    with pytest.raises(UnsupportedModel, match="found it in a branch"):
        apart(bb.finalize())
