"""halo.toml: what is asked for an operator or a layer reaches its functions, and only those; mistakes are refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import tvm
from graphs import context_of, small_model
from tvm import relax

from halo_tvm.compilation import Compilation
from halo_tvm.entry_points import functions_of
from halo_tvm.errors import UnknownName, UsageError
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.in_process import config_of
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.passes import PASSES, Overrides, pipeline
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.phases import lower
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import resolve

SCHEDULED = sorted(name for name, operator in OPERATORS.items() if not operator.semantic)


def call_of(name: str) -> tvm.IRModule:
    case = OPERATORS[name].cases()[0]
    arrays = [a if isinstance(a, np.ndarray) else np.zeros(a, "float32") for a in case["args"]]
    bb = relax.BlockBuilder()
    params = [relax.Var(f"arg{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(OPERATORS[name].call(*params, **case["attrs"], layer="some.layer")))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("tables", ["operators", "layers"])
def test_a_rule_asked_for_is_used(name: str, tables: str) -> None:
    key = name if tables == "operators" else "some.*"
    model = small_model((InputSpec("x", (1,), "float32"),), lambda m: {"y": m.emit(relax.op.nn.relu(m.inputs["x"]))})
    context = context_of(model, **{tables: {key: {"rule": "fallback"}}})
    mod, report = PASSES["legalize"]()(call_of(name), context)
    assert report["overridden"] == [f"{name} of some.layer"]
    (entry,) = schedule_functions(mod, resolve("cpu"))[1].functions
    assert (entry.rule, entry.origin) == ("fallback", "override")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"passes": {"prune_hedz": {}}}, "unknown pass 'prune_hedz'.*did you mean 'prune_heads'"),
        ({"operators": {"atention": {}}}, "unknown scheduled operator 'atention'.*did you mean 'attention'"),
        ({"operators": {"ffn": {}}}, "unknown scheduled operator 'ffn'"),
        ({"operators": {"linear": {"rul": "gemm"}}}, "unknown override 'rul'.*did you mean 'rule'"),
        ({"operators": {"linear": 5}}, r"expected a table \[operators.linear\], found 5"),
        ({"layers": {"h.*": {"decision": 3}}}, "expected a table as decision, found 3"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(tables: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Overrides(**tables)


def test_a_decision_of_another_type_is_refused() -> None:
    model = small_model(
        (InputSpec("x", ("rows", 32), "float32"),), lambda m: {"y": m.linear(m.inputs["x"], "a", 32, 48)}
    )
    context = context_of(model, operators={"linear": {"decision": {"mr": "a"}}})
    mod, _ = pipeline.Pipeline.of(3).run(pipeline.OPTIMISE, model.mod, context)
    with pytest.raises(UsageError, match="mr of gemm is a int, not 'a'"):
        schedule_functions(mod, context.target)


def test_a_layer_that_does_not_exist_is_refused() -> None:
    model = small_model((InputSpec("x", (1,), "float32"),), lambda m: {"y": m.emit(relax.op.nn.relu(m.inputs["x"]))})
    with pytest.raises(UsageError, match=r"expected a layer for .*, found none: the layers are some.layer"):
        PASSES["legalize"]()(call_of("linear"), context_of(model, layers={"h.9": {"rule": "fallback"}}))


def _of_layer(name: str) -> ImportedModel:
    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        m.layer = f"{name}.0"
        return {"y": m.op("linear", m.inputs["x"], m.weight(f"{name}.weight", (32, 16)), layout="kn", n=16)}

    return small_model((InputSpec("x", ("rows", 32), "float32"),), body)


@pytest.mark.parametrize(
    ("tables", "refused"),
    [
        ({"passes": {"quantise": {"skip": ["decoder.w*"]}}}, ""),
        ({"passes": {"quantise": {"mixed": ["decoder.0=w8a8"]}}}, ""),
        (
            {"passes": {"quantise": {"skip": ["decodr.*"]}}},
            "the names are decoder.0, decoder.weight, encoder.0, encoder.w",
        ),
        ({"layers": {"decoder.0": {"rule": "fallback"}}}, ""),
        ({"layers": {"decodr.0": {"rule": "fallback"}}}, "the layers are decoder.0, encoder.0; correct"),
    ],
)
def test_a_glob_may_name_something_in_any_function(tables: dict[str, object], refused: str) -> None:
    main, decode = _of_layer("encoder"), _of_layer("decoder")
    functions = functions_of(replace(main, entries={"decode": lambda caches: decode}), (), gpu=False)
    config = config_of("m", precision="int8", force_precision=True, overrides=tables)
    for name, function in functions.items():
        with pytest.raises(UsageError, match=refused) if refused else nullcontext():
            lower(function, replace(Compilation.of(config), function=name))


def test_a_pass_cannot_be_enabled_and_disabled() -> None:
    with pytest.raises(UnknownName):
        pipeline.Pipeline.of(3, ("no_such",))
    with pytest.raises(UsageError, match="pass cse is both in --enable and in --disable"):
        pipeline.Pipeline.of(3, ("cse",), ("cse",))
