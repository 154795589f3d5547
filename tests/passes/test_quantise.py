"""The pass `quantise`: what becomes int8, what stays and why, and that rows do not depend on their number."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from graphs import built_module, context_of, small_model, tied
from tvm import relax, te

from halo_tvm.compilation import Compilation
from halo_tvm.errors import UsageError
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.in_process import config_of
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.params import ParamRecipe, ParamSource, ParamTable
from halo_tvm.passes import Context, pipeline
from halo_tvm.passes.graph_pass import count_calls
from halo_tvm.passes.quantise import Quantise
from halo_tvm.passes.schedule import schedule_functions, scheduled_by
from halo_tvm.passes.weights import param_names
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.relay_ops.linear_w8a8 import DEEPEST
from halo_tvm.targets import Target, resolve
from halo_tvm.tir_schedules import RULES

X = (InputSpec("x", ("rows", 32), "float32"),)


def linear(m: ModelBuilder, x: relax.Expr, name: str, n: int, *, k: int = 32, bias: bool = False) -> relax.Var:
    args = [x, m.weight(f"{name}.weight", (k, n))] + ([m.weight(f"{name}.bias", (n,))] if bias else [])
    return m.op("linear", *args, layout="kn", n=n)


def quantised(model: ImportedModel, **options: object) -> tuple[relax.Function, Mapping[str, object]]:
    context = dataclasses.replace(context_of(model), precision="int8")
    mod, report = Quantise(**options)(model.mod, context)
    return mod["main"], report


def compiled(model: ImportedModel, target: Target, *, level: int = 3, **passes: object):
    """A function of the inputs: `model` at int8, compiled in this process."""
    context = dataclasses.replace(context_of(model, target, passes=passes), precision="int8")
    steps = pipeline.Pipeline.of(level)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    mod, report = steps.run(pipeline.OPTIMISE, mod, context)
    mod, _ = schedule_functions(mod, target)
    build = functools.cache(lambda: built_module(mod, model, target))  # where a test asks for numbers
    return (lambda **inputs: build()(*(inputs[s.name] for s in model.inputs))), report


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# ------------------------------------------------------------------ structure


def test_linears_of_one_input_share_its_integers() -> None:
    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        q, k, v = (linear(m, m.inputs["x"], name, 16, bias=name == "v") for name in "qkv")
        return {"y": linear(m, m.emit(relax.op.add(q, relax.op.add(k, v))), "out", 8, k=16)}

    func, report = quantised(small_model(X, body))
    counts = count_calls(func)
    assert counts["halo.quantize"] == 2 and counts["halo.linear_w8a8"] == 4 and "halo.linear" not in counts
    assert report["linears"] == 4 and report["activations"] == 2 and report["kept"] == []
    assert sum(report["formats"].values()) == 4 and all(name.startswith("i8/k") for name in report["formats"])
    names = param_names(func)
    assert "q.weight" not in names and "v.bias" in names, "the float32 weight is gone, the bias stays"


@pytest.mark.parametrize(
    ("k", "skip", "reason"),
    [
        (30, (), "k = 30 is no multiple of 4"),
        (DEEPEST + 4, (), f"k = {DEEPEST + 4} is no multiple of 4 up to {DEEPEST}"),
        (32, ("w.*",), "skip names it: w.*"),
    ],
)
def test_what_stays_has_its_reason(k: int, skip: tuple[str, ...], reason: str) -> None:
    inputs = (InputSpec("x", ("rows", k), "float32"),)
    func, report = quantised(small_model(inputs, lambda m: {"y": linear(m, m.inputs["x"], "w", 8, k=k)}), skip=skip)
    assert count_calls(func) == {"halo.linear": 1}
    (kept,) = report["kept"]
    assert kept["weight"] == "w.weight" and reason in kept["reason"]


def test_a_weight_read_in_two_layouts_stays() -> None:
    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        w = m.weight("w", (32, 32))
        a = m.op("linear", m.inputs["x"], w, layout="kn", n=32)
        return {"y": m.op("linear", a, w, layout="nk", n=32)}

    func, report = quantised(small_model(X, body))
    assert count_calls(func) == {"halo.linear": 2}
    assert report["kept"] == [{"weight": "w", "reason": "its linears read it in the layouts kn, nk"}]


def test_a_computed_weight_stays() -> None:
    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        m.layer = "h.0"
        total = m.emit(relax.op.add(m.weight("w", (32, 8)), m.weight("v", (32, 8))))
        return {"y": m.op("linear", m.inputs["x"], total, layout="kn", n=8)}

    func, report = quantised(small_model(X, body))
    assert count_calls(func)["halo.linear"] == 1
    assert report["kept"] == [{"weight": "h.0", "reason": "its weight is computed"}]


@pytest.mark.parametrize(
    ("taken", "reason"),
    [
        (lambda w: w, "its product is no linear"),
        (lambda w: relax.op.permute_dims(w, (1, 0)), "it is read in another shape"),
        (lambda w: relax.op.permute_dims(relax.op.strided_slice(w, [0], [0], [32]), (1, 0)), "it is taken in parts"),
    ],
)
def test_a_product_that_is_no_linear_has_its_reason(taken: Callable[[relax.Expr], relax.Expr], reason: str) -> None:
    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        return {"y": m.emit(relax.op.matmul(m.inputs["x"], m.emit(taken(m.weight("w", (32, 32))))))}

    func, report = quantised(small_model(X, body))
    assert "halo.linear" not in count_calls(func)
    assert report["kept"] == [{"weight": "w", "reason": reason}]


@pytest.mark.parametrize(("table", "stored"), [("int8", False), ("fp32", True)])
def test_a_tied_embedding_reads_the_head_or_keeps_its_own_table(table: str, stored: bool) -> None:
    func, report = quantised(tied(), tied_embedding=table)
    assert ("wte" in param_names(func)) is stored
    assert report["tied_embeddings"] == ([] if stored else ["wte"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"skip": ("nothing*",)},
            "expected a linear's weight or layer for skip = 'nothing\\*', found none: .*w.weight",
        ),
        ({"skip": "w*"}, "expected a list of name globs as skip, found 'w\\*'"),
        ({"tied_embedding": "int4"}, "expected tied_embedding among int8, fp32, found 'int4'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    model = small_model(X, lambda m: {"y": linear(m, m.inputs["x"], "w", 8)})
    with pytest.raises(UsageError, match=message):
        quantised(model, **options)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_options_are_checked_at_every_precision(precision: str) -> None:
    for options, message in (
        ({"shceme": "w8a8"}, "expected options of pass quantise among .*, found 'shceme'"),
        ({"scheme": "w9a9"}, "w9a9"),
    ):
        with pytest.raises(UsageError, match=message):
            Compilation.of(config_of("m", precision=precision, overrides={"passes": {"quantise": options}}))


@pytest.mark.parametrize(
    ("precision", "passes", "said"),
    [
        (
            "fp32",
            {"quantise": {"scheme": "w8a8"}},
            "[passes.quantise] of halo.toml has no effect here: the pass computes",
        ),
        ("fp32", {"prune_heads": {"threshold": 0.5}}, "the pass runs with --enable prune_heads"),
        ("int8", {"quantise": {"scheme": "w8a8"}}, ""),
    ],
)
def test_options_that_have_no_effect_are_told(precision: str, passes: dict, said: str, caplog) -> None:
    options = {"precision": precision, "force_precision": True, "overrides": {"passes": passes}}
    Compilation.of(config_of("m", **options)).warn_of_unread()
    assert (said in caplog.text) if said else not caplog.text


def test_a_precision_whose_passes_do_not_run_is_refused() -> None:
    for steps in (pipeline.Pipeline.of(0), pipeline.Pipeline.of(3, disable=("quantise",))):
        with pytest.raises(UsageError, match="--precision int8 needs opt level 1 or more and the pass quantise"):
            steps.check_precision("int8")
        steps.check_precision("fp32")
    model = small_model(X, lambda m: {"y": linear(m, m.inputs["x"], "w", 8)})
    with pytest.raises(
        UsageError, match="pass quantise computes in int8 or int4, found it in --enable at --precision fp32"
    ):
        pipeline.Pipeline.of(3, enable=("quantise",)).run(pipeline.OPTIMISE, model.mod, context_of(model))


# ------------------------------------------------------------------ numbers


def two_layers(m: ModelBuilder) -> Mapping[str, relax.Expr]:
    hidden = m.emit(relax.op.nn.relu(linear(m, m.inputs["x"], "up", 100, bias=True)))
    normed = m.op("rms_norm", hidden, m.weight("norm", (100,)), eps=1e-5)
    return {"y": linear(m, normed, "down", 50, k=100)}


@pytest.mark.parametrize("target", ["x86:avx2", "x86:avx512-vnni"])
def test_results_are_near_float64_and_rows_do_not_depend_on_their_number(target: str) -> None:
    model = small_model(X, two_layers)
    run, report = compiled(model, _here(target))
    assert report["quantise"]["linears"] == 2
    x = np.random.default_rng(3).standard_normal((33, 32)).astype("float32")
    whole = run(x=x)
    assert relative_error(whole, evaluate(model, {"x": x})["y"]) < 0.03
    for at in (0, 7, 32):
        np.testing.assert_array_equal(run(x=x[at : at + 1])[0], whole[at])
    np.testing.assert_array_equal(run(x=x[5:18]), whole[5:18])


@pytest.mark.parametrize("normed", [False, True])
def test_a_row_with_what_is_no_number_is_that_and_no_other_row(normed: bool) -> None:
    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        x = m.op("rms_norm", m.inputs["x"], m.weight("norm", (32,)), eps=1e-5) if normed else m.inputs["x"]
        return {"y": linear(m, x, "w", 24, bias=True)}

    run, _ = compiled(small_model(X, body), _here("x86:avx2"))
    x = np.random.default_rng(3).standard_normal((7, 32)).astype("float32")
    wanted = run(x=x)
    x[2, 5], x[6, 31] = np.nan, -np.float32(np.nan)
    found = run(x=x)
    assert np.isnan(found[[2, 6]]).all()
    np.testing.assert_array_equal(found[[0, 1, 3, 4, 5]], wanted[[0, 1, 3, 4, 5]])


# ------------------------------------------------------------------ fusion


def after_a_norm(m: ModelBuilder) -> Mapping[str, relax.Expr]:
    """As in BERT: the normalised rows are quantised, and added again behind the linears."""
    first = m.op("layer_norm", m.inputs["x"], m.weight("n1.w", (32,)), m.weight("n1.b", (32,)), eps=1e-5)
    inner = m.emit(relax.op.nn.gelu(linear(m, first, "up", 96)))
    total = m.emit(relax.op.add(linear(m, inner, "down", 32, k=96), first))
    second = m.op("rms_norm", total, m.weight("n2.w", (32,)), eps=1e-5)
    return {"y": linear(m, m.emit(relax.op.multiply(second, m.inputs["x"])), "out", 48)}


@pytest.mark.parametrize("target", ["x86:avx2", "x86:avx512-vnni"])
@pytest.mark.slow
def test_a_quantise_joins_its_norm_and_leaves_the_rows_where_they_are_read(target: str) -> None:
    model = small_model(X, after_a_norm)
    run, report = compiled(model, _here(target))
    joined = {entry["rows"]: entry for entry in report["fuse"]["quantised"]}
    assert joined["layer_norm"] == {"rows": "layer_norm", "joined": True, "rule": "row_reduction", "rows_kept": True}
    (behind_rms,) = [entry for name, entry in joined.items() if "rms_norm" in name]
    assert behind_rms["joined"] and not behind_rms["rows_kept"], "what follows a norm is in the same kernel"
    (linear_rows,) = [entry for name, entry in joined.items() if "linear" in name]
    assert not linear_rows["joined"] and "row_reduction" in linear_rows["reason"], (
        "a row maximum over panels of columns"
    )
    apart, _ = compiled(model, _here(target), level=1)
    for rows in (1, 7, 64):
        x = np.random.default_rng(rows).standard_normal((rows, 32)).astype("float32")
        expected = evaluate(model, {"x": x})["y"]
        assert relative_error(run(x=x), expected) < 0.05
        assert relative_error(run(x=x), apart(x=x)) < 0.02


def test_rows_of_a_product_of_sizes_keep_their_kernel() -> None:
    """The norm is told both sizes beside its tensors, which FuseTIR does not take: as in a mixture of experts."""

    def flattened(m: ModelBuilder, written: bool = True) -> Mapping[str, relax.Expr]:
        batch, sequence, _ = m.inputs["x"].ty.shape.values
        rows = m.emit(relax.op.reshape(m.inputs["x"], (batch * sequence, 32)))
        # A kernel of the importer's own, whose size keeps its spelling.
        own = m._bb.emit_te(lambda a: te.compute(a.shape, lambda i, j: a[i, j] + 0), rows) if written else rows
        first = linear(m, own, "first", 32)
        return {"y": linear(m, m.op("rms_norm", first, m.weight("n.w", (32,)), eps=1e-5), "out", 48)}

    inputs = (InputSpec("x", ("batch", "sequence", 32), "float32"),)
    model, plain = small_model(inputs, flattened), small_model(inputs, lambda m: flattened(m, written=False))
    run, report = compiled(model, resolve("x86:avx2"))
    norm = next(rows for rows in report["fuse"]["quantised"] if rows["rows"] == "rms_norm")
    assert not norm["joined"] and "sizes beside tensors" in norm["reason"]
    x = np.random.default_rng(0).standard_normal((3, 5, 32)).astype("float32")
    assert relative_error(run(x=x), evaluate(plain, {"x": x})["y"]) < 0.05


def test_groups_and_their_parts_are_not_left_behind() -> None:
    from tvm import tirx

    model = small_model(X, after_a_norm)
    context = dataclasses.replace(context_of(model), precision="int8")
    mod, _ = pipeline.Pipeline.of(3).run(pipeline.OPTIMISE, model.mod, context)
    names = [gvar.name_hint for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert sum("quantize" in name and "norm" in name for name in names) == 2
    assert "layer_norm" not in names and not any(
        isinstance(f, relax.Function) for g, f in mod.functions_items() if g.name_hint != "main"
    )


@pytest.mark.slow
def test_a_tied_table_of_int8_gives_its_rows() -> None:
    model = tied()
    ids = np.array([0, 130, 7, 64])
    run, _ = compiled(model, resolve("cpu"))
    table = model.params.materialise("wte").astype(np.float64)
    assert relative_error(run(ids=ids), table[ids] @ table.T) < 0.02
    precise, _ = compiled(tied(), resolve("cpu"), quantise={"tied_embedding": "fp32"})
    assert relative_error(precise(ids=ids), table[ids] @ table.T) < 0.02


@pytest.mark.parametrize("target", ["x86:avx2", "x86:avx512", "x86:avx512-vnni"])
@pytest.mark.parametrize("shape", [(7, 1), (3, 67), (64, 100), (2, 3072)])
def test_every_instruction_set_gives_the_same_integers(target: str, shape: tuple[int, int]) -> None:
    quantize = OPERATORS["quantize"]
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) * rng.uniform(1e-3, 1e3, (shape[0], 1))).astype("float32")
    bound = np.abs(x).max(1)
    x[:, 0] = bound * np.float32(0.5) / np.float32(127)  # on the edge between two integers
    expected = quantize.reference(x)
    for rule in ("row_reduction", "fallback"):
        for result, wanted in zip(_run_quantize(x, _here(target), rule), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


def _run_quantize(x: np.ndarray, target: Target, rule: str) -> list[np.ndarray]:
    import tvm
    from executables import executable_of

    builder = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType([tvm.tirx.Var("rows", "int64"), x.shape[1]], "float32"))
    with builder.function("main", [var]):
        with builder.dataflow():
            out = builder.emit_output(OPERATORS["quantize"].call(var))
        builder.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(builder.get()).clone()
    func = mod["quantize"]
    mod["quantize"] = scheduled_by(RULES[rule], func, target, RULES[rule].default(func, target)).with_attr(
        "tirx.is_scheduled", True
    )
    executable = executable_of(mod, target, plan_memory=False)
    return [part.numpy() for part in relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))]


def _here(name: str) -> Target:
    from halo_tvm.targets import can_run_here

    target = resolve(name)
    answer = can_run_here(target)
    if not answer:
        pytest.skip(answer.reason)
    return target


# ------------------------------------------------------------------ weights


def table_of(**weights: np.ndarray) -> tuple[ParamTable, list[str]]:
    """Weights "kn" with the recipes of the pass, and a list of the tensors that were read."""
    params, read = ParamTable(), []

    def source(name: str, value: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: read.append(name) or value

    for name, value in weights.items():
        k, n = value.shape
        params.add_source(name, ParamSource(value.shape, "float32", source(name, value)))
        params.add_recipe(ParamRecipe(f"{name}.s", "w8_scale", (name,), {"layout": "kn"}, (n,), "float32"))
        attrs, shape = {"layout": "kn", "kc": k, "nr": 16}, (1, -(-n // 16), k // 4, 16, 4)
        params.add_recipe(ParamRecipe(f"{name}.q", "w8_pack", (name, f"{name}.s"), attrs, shape, "int8"))
        fields = {"n": n, "zero_point": 128}
        params.add_recipe(ParamRecipe(f"{name}.c", "w8_correction", (f"{name}.q",), fields, (n,), "int32"))
    return params, read


def test_recipes_give_integers_scales_and_column_sums() -> None:
    w = np.random.default_rng(0).standard_normal((12, 19)).astype("float32")
    params, read = table_of(w=w)
    made = dict(params.stream(["w.s", "w.q", "w.c"]))
    assert read == ["w"], "what three recipes are made of is read once"
    columns = made["w.q"].transpose(0, 2, 4, 1, 3).reshape(12, 32)
    assert np.abs(columns).max() == 127 and (columns[:, 19:] == 0).all()
    np.testing.assert_allclose(columns[:, :19] * made["w.s"], w, atol=0.51 * made["w.s"].max())
    np.testing.assert_array_equal(made["w.c"], -128 * columns[:, :19].astype(np.int32).sum(0))
    for name, value in made.items():
        np.testing.assert_array_equal(params.materialise(name), value)


def test_columns_of_zeros_and_of_nan() -> None:
    w = np.ones((4, 5), np.float32)
    w[:, 1], w[2, 2], w[1, 3] = 0, np.nan, np.inf
    made = dict(table_of(w=w)[0].stream(["w.s", "w.q", "w.c"]))
    np.testing.assert_array_equal(np.isnan(made["w.s"]), [False, False, True, True, False])
    columns = made["w.q"].transpose(0, 2, 4, 1, 3).reshape(4, 16)
    np.testing.assert_array_equal(columns[:, :5], [[127, 0, 0, 0, 127]] * 4)


def test_no_pass_reads_a_weight() -> None:
    params, read = table_of(w=np.ones((32, 8), np.float32))
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (4, 32)), ("w", (32, 8))))
    with builder.function("main", [x, w], attrs={"num_input": 1, "halo.params": ["w"]}):
        with builder.dataflow():
            y = builder.emit_output(OPERATORS["linear"].call(x, w, layout="kn", n=8))
        builder.emit_func_output(y)
    Quantise()(builder.get(), Context(params, resolve("cpu"), {}, {}, precision="int8"))
    assert read == []
