"""Passes on the graph: Before -> After structure, and what each leaves alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from graphs import context_of, run_model, small_model
from tolerances import assert_close
from tvm import relax, te, tirx
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from halo_tvm.errors import UnknownName, UnsupportedModel, UsageError
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.params import ParamRecipe, ParamSource, ParamTable
from halo_tvm.passes import PASSES, pipeline
from halo_tvm.passes._cast_operands import keep_for_casts
from halo_tvm.passes._sizes import one_name_each
from halo_tvm.passes.graph_pass import bindings, count_calls, replace_main, with_options
from halo_tvm.passes.kernel_count import count_kernels
from halo_tvm.passes.lift import apply_lift
from halo_tvm.passes.name_rows import name_rows, resolve_rows
from halo_tvm.passes.pipeline import check_verified
from halo_tvm.passes.weights import param_names
from halo_tvm.relay_ops import OPERATORS, Lift
from halo_tvm.relay_ops.convolution import Convolution
from halo_tvm.relay_ops.operator import attrs_of, op_name

X2 = (InputSpec("x", ("rows", 32), "float32"),)
X3 = (InputSpec("x", ("batch", "sequence", 32), "float32"),)


def applied(name: str, model: ImportedModel, **options: object):
    mod, report = PASSES[name](**options)(model.mod, context_of(model))
    return mod["main"], report


def call_list(func: relax.Function) -> list[relax.Call]:
    return [b.value for b in bindings(func) if isinstance(b.value, relax.Call)]


def calls(func: relax.Function) -> dict[str, int]:
    return count_calls(func)


def inputs_of(model: ImportedModel, **dims: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {s.name: rng.standard_normal([dims.get(d, d) for d in s.shape]).astype("float32") for s in model.inputs}


# ------------------------------------------------------------------ canonicalise, simplify


def test_power_of_two_becomes_a_product() -> None:
    model = small_model(X2, lambda m: {"y": m.emit(relax.op.power(m.inputs["x"], relax.const(2.0)))})
    func, report = applied("canonicalise", model)
    assert calls(func) == {"multiply": 1} and report["rewritten"] == {"power of two as product": 1}


def test_division_by_a_constant_becomes_a_product() -> None:
    model = small_model(X2, lambda m: {"y": m.emit(relax.op.divide(m.inputs["x"], relax.const(4.0)))})
    assert calls(applied("canonicalise", model)[0]) == {"multiply": 1}


def test_other_powers_stay() -> None:
    model = small_model(X2, lambda m: {"y": m.emit(relax.op.power(m.inputs["x"], relax.const(3.0)))})
    assert calls(applied("canonicalise", model)[0]) == {"power": 1}


@pytest.mark.parametrize("divisor", [3.0, 1e-39, 2.0**127, 2.0**-140])
def test_divisions_that_a_product_would_round_otherwise_stay(divisor: float) -> None:
    model = small_model(X2, lambda m: {"y": m.emit(relax.op.divide(m.inputs["x"], relax.const(divisor)))})
    assert calls(applied("canonicalise", model)[0]) == {"divide": 1}


@pytest.mark.parametrize("name", ["power", "divide"])
def test_a_constant_of_higher_rank_keeps_the_shape_it_makes(name: str) -> None:
    vector = (InputSpec("x", (3,), "float32"),)
    two = relax.const(np.full((1, 1), 2.0, "float32"))
    model = small_model(vector, lambda m: {"y": m.emit(getattr(relax.op, name)(m.inputs["x"], two))})
    assert calls(applied("canonicalise", model)[0]) == {name: 1}


def gelu_of(m: ModelBuilder, x: relax.Expr, order: str, root: float = 2.0**0.5, half: float = 0.5) -> relax.Expr:
    """The exact GELU as exporters write it."""
    op, emit, c = relax.op, m.emit, lambda v: relax.const(v, "float32")
    scaled = emit(op.multiply(c(1 / root), x) if order == "inverse" else op.divide(x, c(root)))
    bent = emit(op.add(c(1.0), emit(op.erf(scaled))) if order == "left" else op.add(emit(op.erf(scaled)), c(1.0)))
    if order == "left":  # 0.5 * x first
        return emit(op.multiply(emit(op.multiply(c(half), x)), bent))
    if order == "nested":  # x * (0.5 * (1 + erf))
        return emit(op.multiply(x, emit(op.multiply(bent, c(half)))))
    return emit(op.multiply(emit(op.multiply(x, bent)), c(half)))


def gelu_tanh_of(m: ModelBuilder, x: relax.Expr, order: str, cubic: float = 0.044715) -> relax.Expr:
    op, emit, c = relax.op, m.emit, lambda v: relax.const(v, "float32")
    if order == "power":
        cube = emit(op.power(x, c(3.0)))
    else:
        cube = emit(op.multiply(emit(op.multiply(x, x)), x))
    if order == "factored":
        square = emit(op.multiply(emit(op.multiply(c(cubic), x)), x))
        inner = emit(op.multiply(emit(op.multiply(c(0.7978845608), x)), emit(op.add(c(1.0), square))))
    else:
        inner = emit(op.multiply(emit(op.add(x, emit(op.multiply(cube, c(cubic))))), c(0.7978845608)))
    bent = emit(op.add(emit(op.tanh(inner)), c(1.0)))
    return emit(op.multiply(emit(op.multiply(c(0.5), x)), bent))


def half_of(m: ModelBuilder, x: relax.Expr, bend: str) -> relax.Expr:
    """0.5 * x * erf(x / sqrt(2)), or with the tangent of the other GELU: their 1 is missing."""
    op, emit, c = relax.op, m.emit, lambda v: relax.const(v, "float32")
    if bend == "erf":
        bent = emit(op.erf(emit(op.divide(x, c(2.0**0.5)))))
    else:
        cube = emit(op.multiply(emit(op.multiply(x, x)), x))
        moved = emit(op.add(x, emit(op.multiply(cube, c(0.044715)))))
        bent = emit(op.tanh(emit(op.multiply(moved, c(0.7978845608)))))
    return emit(op.multiply(emit(op.multiply(c(0.5), x)), bent))


@pytest.mark.parametrize("order", ["last", "left", "nested", "inverse"])
def test_decomposed_gelu_is_one_operator(order: str) -> None:
    model = small_model(X2, lambda m: {"y": gelu_of(m, m.inputs["x"], order)})
    assert calls(applied("canonicalise", model)[0]) == {"nn.gelu": 1}


@pytest.mark.parametrize("order", ["product", "power", "factored"])
def test_decomposed_gelu_tanh_is_one_operator(order: str) -> None:
    model = small_model(X2, lambda m: {"y": gelu_tanh_of(m, m.inputs["x"], order)})
    assert calls(applied("canonicalise", model)[0]) == {"nn.gelu_tanh": 1}


def test_gelu_of_a_product_and_of_a_linear_is_recognised() -> None:
    def body(m: ModelBuilder):
        x = m.emit(relax.op.multiply(m.inputs["x"], m.emit(relax.op.exp(m.inputs["x"]))))
        hidden = gelu_of(m, raw_linear(m, x, "up", 32, 48), "last")
        return {"y": raw_linear(m, hidden, "down", 48, 32), "z": gelu_of(m, x, "left")}

    model = small_model(X2, body)
    mod, _ = pipeline.Pipeline.of(1).run(pipeline.LIFT, model.mod, context_of(model))
    assert calls(mod["main"]) == {"exp": 1, "halo.ffn": 1, "multiply": 1, "nn.gelu": 1}


def test_decomposed_silu_is_one_operator() -> None:
    def body(m: ModelBuilder):
        return {"y": m.emit(relax.op.multiply(m.emit(relax.op.sigmoid(m.inputs["x"])), m.inputs["x"]))}

    assert calls(applied("canonicalise", small_model(X2, body))[0]) == {"nn.silu": 1}


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: gelu_of(m, x, "last", root=1.5),
        lambda m, x: gelu_of(m, x, "last", half=0.25),
        lambda m, x: gelu_tanh_of(m, x, "product", cubic=0.05),
        lambda m, x: half_of(m, x, "erf"),
        lambda m, x: half_of(m, x, "tanh"),
        lambda m, x: m.emit(relax.op.multiply(x, m.emit(relax.op.sigmoid(m.emit(relax.op.exp(x)))))),
        lambda m, x: m.emit(relax.op.multiply(x, m.emit(relax.op.multiply(x, m.emit(relax.op.sigmoid(x)))))),
    ],
)
def test_activations_with_other_constants_stay(body) -> None:
    model = small_model(X2, lambda m: {"y": body(m, m.inputs["x"])})
    found = calls(applied("canonicalise", model)[0])
    assert not {"nn.gelu", "nn.gelu_tanh"} & set(found)


def test_reshapes_and_transposes_are_joined() -> None:
    def body(m: ModelBuilder):
        x = m.emit(relax.op.reshape(m.inputs["x"], (m.dim("rows"), 4, 8)))
        x = m.emit(relax.op.reshape(x, (m.dim("rows"), 8, 4)))
        x = m.emit(relax.op.permute_dims(x, [0, 2, 1]))
        x = m.emit(relax.op.permute_dims(x, [0, 2, 1]))
        return {"y": m.emit(relax.op.multiply(x, relax.const(1.0)))}

    func, report = applied("simplify", small_model(X2, body))
    assert calls(func) == {"reshape": 1}
    assert report["rewritten"] == {
        "reshape of a reshape": 1,
        "transpose of a transpose": 1,
        "identity transpose": 1,
        "neutral element": 1,
    }


def test_a_neutral_element_that_changes_the_type_stays() -> None:
    model = small_model(
        X2, lambda m: {"y": m.emit(relax.op.add(m.inputs["x"], relax.const(np.zeros((1, 1, 1), "float32"))))}
    )
    assert calls(applied("simplify", model)[0]) == {"add": 1}


# ------------------------------------------------------------------ lifts of linear, ffn, embedding, matmul


def raw_linear(
    m: ModelBuilder, x: relax.Expr, name: str, k: int, n: int, *, transposed: bool = False, bias: bool = True
) -> relax.Expr:
    weight = m.weight(f"{name}.weight", (n, k) if transposed else (k, n))
    y = m.emit(relax.op.matmul(x, m.emit(relax.op.permute_dims(weight)) if transposed else weight))
    return m.emit(relax.op.add(y, m.weight(f"{name}.bias", (n,)))) if bias else y


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_with_a_parameter_and_bias_is_linear(transposed: bool) -> None:
    model = small_model(X2, lambda m: {"y": raw_linear(m, m.inputs["x"], "a", 32, 24, transposed=transposed)})
    func, report = applied("lift", model)
    (call,) = call_list(func)
    assert attrs_of(call) == {"layout": "nk" if transposed else "kn", "n": 24} and len(call.args) == 3
    assert report["operators"] == {"linear": 1}


def test_matmul_of_two_activations_is_no_linear_and_says_why() -> None:
    model = small_model(
        X2, lambda m: {"y": m.emit(relax.op.matmul(m.inputs["x"], m.emit(relax.op.permute_dims(m.inputs["x"]))))}
    )
    func, report = applied("lift", model)
    assert calls(func) == {"halo.matmul": 1}
    assert {r["reason"] for r in report["rejected"]} <= {"the weight is no parameter of the function"}


def test_a_vector_of_another_length_is_no_bias() -> None:
    def body(m: ModelBuilder):
        y = raw_linear(m, m.inputs["x"], "a", 32, 24, bias=False)
        return {"y": m.emit(relax.op.add(y, m.weight("b", (1, 24))))}

    func, report = applied("lift", small_model(X2, body))
    assert calls(func) == {"add": 1, "halo.linear": 1}
    assert any("the bias must be a parameter, a vector of 24" in r["reason"] for r in report["rejected"])


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_plain_feed_forward_is_lifted(activation: str) -> None:
    def body(m: ModelBuilder):
        hidden = m.emit(getattr(relax.op.nn, activation)(raw_linear(m, m.inputs["x"], "up", 32, 48)))
        return {"y": raw_linear(m, hidden, "down", 48, 32)}

    model = small_model(X2, body)
    func, report = applied("lift", model)
    assert calls(func) == {"halo.ffn": 1} and report["applied"]["ffn.linears"] == 1


def test_gated_feed_forward_is_lifted() -> None:
    def body(m: ModelBuilder):
        gate = m.emit(relax.op.nn.silu(raw_linear(m, m.inputs["x"], "gate", 32, 48, bias=False)))
        hidden = m.emit(relax.op.multiply(gate, raw_linear(m, m.inputs["x"], "up", 32, 48, bias=False)))
        return {"y": raw_linear(m, hidden, "down", 48, 32, bias=False)}

    model = small_model(X2, body)
    func, _ = applied("lift", model)
    (call,) = call_list(func)
    assert attrs_of(call)["gated"] is True and [a.name for a in call.args[1:]] == [
        "gate_weight",
        "up_weight",
        "down_weight",
    ]


def test_feed_forward_of_mixed_bias_is_rejected_with_the_reason() -> None:
    def body(m: ModelBuilder):
        hidden = m.emit(relax.op.nn.relu(raw_linear(m, m.inputs["x"], "up", 32, 48, bias=False)))
        return {"y": raw_linear(m, hidden, "down", 48, 32)}

    func, report = applied("lift", small_model(X2, body))
    assert calls(func) == {"halo.linear": 2, "nn.relu": 1}
    assert [r["reason"] for r in report["rejected"]] == [
        "projections must agree in layout and bias, found layouts ['kn'], bias [False, True]"
    ]


def test_take_from_a_table_is_an_embedding() -> None:
    ids = InputSpec("ids", ("batch", "sequence"), "int64")
    model = small_model(
        (ids,), lambda m: {"y": m.emit(relax.op.take(m.weight("table", (50, 8)), m.inputs["ids"], axis=0))}
    )
    func, _ = applied("lift", model)
    assert calls(func) == {"halo.embedding": 1}


@pytest.mark.parametrize("mode", ["wrap", "nan"])
def test_take_that_makes_something_of_outside_indices_is_no_embedding(mode: str) -> None:
    ids = InputSpec("ids", ("n",), "int64")

    def body(m: ModelBuilder):
        return {"y": m.emit(relax.op.take(m.weight("table", (50, 8)), m.inputs["ids"], axis=0, mode=mode))}

    func, report = applied("lift", small_model((ids,), body))
    assert calls(func) == {"take": 1} and f"found mode {mode}" in report["rejected"][0]["reason"]


def test_take_along_another_axis_is_no_embedding() -> None:
    ids = InputSpec("ids", ("n",), "int64")
    model = small_model(
        (ids,), lambda m: {"y": m.emit(relax.op.take(m.weight("table", (50, 8)), m.inputs["ids"], axis=1))}
    )
    func, report = applied("lift", model)
    assert calls(func) == {"take": 1}
    assert report["rejected"][0]["reason"] == "expected integer indices into axis 0, found int64 into axis 1"


def test_rows_of_a_table_for_constant_ids_are_a_weight() -> None:
    ids = np.array([0, 4, -1, 9, 1])

    def body(m: ModelBuilder):
        return {"y": m.op("embedding", relax.const(ids, "int64"), m.weight("table", (5, 8)), layout="nk", n=5)}

    model = small_model((X2[0],), body)
    func, _ = applied("hoist_weights", model)
    assert calls(func) == {}
    (name,) = param_names(func)
    table = model.params.materialise("table")
    np.testing.assert_array_equal(model.params.materialise(name), table[np.clip(ids, 0, 4)])


def test_parts_of_a_weight_that_products_read_are_linears() -> None:
    """As torch writes cross attention: the rows of one weight that make queries, and those that make the rest."""

    def body(m: ModelBuilder):
        def part(name: str, begin: int, end: int) -> relax.Var:
            return m.emit(relax.op.strided_slice(whole[name], [0], [begin], [end], [1]))

        whole = {"w": m.weight("w", (12, 8)), "b": m.weight("b", (12,)), "cube": m.weight("cube", (2, 4, 5))}
        first = m.emit(relax.op.matmul(m.inputs["x"], m.emit(relax.op.permute_dims(part("w", 0, 8)))))
        first = m.emit(relax.op.add(first, part("b", 0, 8)))
        second = m.emit(relax.op.matmul(first, m.emit(relax.op.permute_dims(part("w", 4, 12)))))
        cube = m.emit(relax.op.reshape(m.emit(relax.op.permute_dims(whole["cube"], [1, 0, 2])), (8, 5)))
        turned = m.emit(relax.op.permute_dims(part("w", 2, 6)))  # the sum reads it, too
        third = m.emit(relax.op.matmul(second, turned))
        both = m.emit(relax.op.add(third, m.emit(relax.op.sum(turned))))
        return {"y": m.emit(relax.op.matmul(second, cube)), "z": both}

    model = small_model((InputSpec("x", ("n", 8), "float32"),), body)
    mod, report = PASSES["hoist_parts"]()(model.mod, context_of(model))
    assert report["hoisted"] == {"strided_slice": 3, "permute_dims": 1, "reshape": 1}  # and not `turned`
    lifted, _ = PASSES["lift"]()(mod, context_of(model))
    assert calls(lifted["main"])["halo.linear"] == 3
    x = np.random.default_rng(0).standard_normal((3, 8)).astype("float32")
    before, after = (evaluate(dataclasses.replace(model, mod=m), {"x": x}) for m in (model.mod, mod))
    for name in ("y", "z"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_halves_are_rounded_once(dtype: str) -> None:
    ones = np.ones((5000, 4), np.dtype(dtype))
    params = ParamTable({"ones": ParamSource(ones.shape, dtype, lambda: ones)})
    params.add_recipe(ParamRecipe("total", "sum", ("ones",), {"axes": [0], "keepdims": False}, (4,), dtype))
    found = params.materialise("total")
    assert str(found.dtype) == dtype and found.tolist() == [np.dtype(dtype).type(5000)] * 4


@pytest.mark.parametrize(("dtype", "result"), [("float32", np.inf), ("int64", 0)])
def test_a_quotient_of_constants_is_folded_where_its_divisor_is_no_zero(dtype: str, result: float) -> None:
    """TVM would refuse the one, and end this process by the other."""
    divide = relax.op.divide if dtype == "float32" else relax.op.floor_divide

    def body(factor: int):
        def build(m: ModelBuilder):
            two = m.emit(relax.op.multiply(relax.const(factor, dtype), relax.const(2, dtype)))
            return {"y": m.emit(relax.op.add(m.inputs["x"], m.emit(divide(relax.const(6, dtype), two))))}

        return build

    inputs = (InputSpec("x", ("rows", 4), dtype),)
    assert calls(applied("fold", small_model(inputs, body(1)))[0]) == {"add": 1}
    by_zero = small_model(inputs, body(0))
    assert calls(applied("fold", by_zero)[0]) == {"add": 1, divide.__name__: 1}
    x = np.arange(8).reshape(2, 4).astype(dtype)
    np.testing.assert_array_equal(run_model(by_zero, {"x": x}), x + np.array(result, dtype))


# ------------------------------------------------------------------ what lifts must leave alone


def test_a_product_that_is_an_output_too_keeps_its_bias_apart() -> None:
    def body(m: ModelBuilder):
        product = raw_linear(m, m.inputs["x"], "a", 32, 24, bias=False)
        biased = m.emit(relax.op.add(product, m.weight("b", (24,))))
        return {"y": biased, "z": product}

    model = small_model(X2, body)
    model = dataclasses.replace(model, mod=relax.transform.CanonicalizeBindings()(model.mod))
    func, report = applied("lift", model)
    assert calls(func) == {"add": 1, "halo.linear": 1}
    assert any("the product is used elsewhere too" in r["reason"] for r in report["rejected"])


def test_a_hidden_layer_that_is_read_elsewhere_is_no_feed_forward() -> None:
    def body(m: ModelBuilder):
        up = raw_linear(m, m.inputs["x"], "up", 32, 48)
        y = raw_linear(m, m.emit(relax.op.nn.relu(up)), "down", 48, 32)
        return {"y": y, "z": m.emit(relax.op.exp(up))}

    func, report = applied("lift", small_model(X2, body))
    assert calls(func)["halo.linear"] == 2
    assert any("the hidden layer is used elsewhere too" in r["reason"] for r in report["rejected"])


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_products_that_float32_cannot_hold_stay(dtype: str) -> None:
    inputs = (InputSpec("a", ("n", 8), dtype), InputSpec("b", (8, 4), dtype))
    model = small_model(inputs, lambda m: {"y": m.emit(relax.op.matmul(m.inputs["a"], m.inputs["b"]))})
    func, report = applied("lift", model)
    assert calls(func) == {"matmul": 1}
    assert all("accumulates in float32" in r["reason"] for r in report["rejected"])


def test_a_lift_of_another_result_type_is_rejected() -> None:
    x = wildcard()
    taller = Lift("taller", is_op("relax.exp")(x), lambda m: relax.op.expand_dims(m[x], 0))
    ill_typed = Lift("ill_typed", is_op("relax.exp")(x), lambda m: OPERATORS["attention"].call(m[x]))
    mixed = Lift("mixed", is_op("relax.exp")(x), lambda m: relax.op.multiply(m[x], relax.const(2.0, "float64")))
    model = small_model(X2, lambda m: {"y": m.emit(relax.op.exp(m.inputs["x"]))})
    rejected: list[dict[str, str]] = []
    for lift in (taller, ill_typed, mixed):
        mod, count = apply_lift(model.mod, lift, rejected)
        assert count == 0 and calls(mod["main"]) == {"exp": 1}
    assert "the operator's result would be" in rejected[0]["reason"]
    assert "halo.attention: attributes" in rejected[1]["reason"]
    assert "must have the same datatype" in rejected[2]["reason"]


# ------------------------------------------------------------ expand, fuse_projections, flatten_rows, pack_weights


def transformer_layer(m: ModelBuilder, shared: bool = True):
    """x [batch, sequence, 32] through attention of 2 heads and a feed-forward network."""
    x, b, s = m.inputs["x"], m.dim("batch"), m.dim("sequence")
    m.layer = "0.attn"
    other = m.layer_norm(x, "norm", 32, 1e-5)

    def project(part: str) -> relax.Expr:
        source = x if shared or part != "v" else other
        return m.emit(relax.op.reshape(m.linear(source, part, 32, 32), (b, s, 2, 16)))

    heads = m.op("attention", *map(project, "qkv"), num_heads=2, num_kv_heads=2, head_dim=16, scale=0.25, causal=True)
    joined = m.emit(relax.op.reshape(heads, (b, s, 32)))
    x = m.emit(relax.op.add(m.linear(joined, "o", 32, 32), x))
    m.layer = "0.ffn"
    normed = m.layer_norm(x, "norm2", 32, 1e-5)
    weights = [*m.linear_weights("up", 32, 48), *m.linear_weights("down", 48, 32)]
    return {
        "y": m.emit(
            relax.op.add(m.op("ffn", normed, *weights, activation="gelu", gated=False, bias=True, layout="nk"), x)
        )
    }


def test_expand_makes_two_linears_of_a_feed_forward() -> None:
    func, report = applied("expand", small_model(X3, transformer_layer))
    assert report == {"expanded": {"ffn": 1}}
    assert calls(func)["halo.linear"] == 6 and "halo.ffn" not in calls(func)


def test_three_projections_become_one_and_attention_reads_them_in_place() -> None:
    model = small_model(X3, transformer_layer)
    func, report = applied("fuse_projections", model)
    assert report == {"fused": ["0.attn"], "declined": []}
    assert calls(func)["halo.linear"] == 2
    assert "q.weight+k.weight+v.weight" in [str(n) for n in func.attrs["halo.params"]]
    assert model.params.materialise("q.weight+k.weight+v.weight").shape == (96, 32)


def parts_of_one(m: ModelBuilder, order: str = "qkv", split: bool = False, kv_heads: int = 1):
    """Attention of 2 query heads of 16 over columns of one projection."""
    y = m.linear(m.inputs["x"], "qkv", 32, 32 + 32 * kv_heads)
    ends = {"q": (0, 32), "k": (32, 32 + 16 * kv_heads), "v": (32 + 16 * kv_heads, 32 + 32 * kv_heads)}
    pieces = m.emit(relax.op.split(y, [32, 32 + 16 * kv_heads], axis=2)) if split else None
    operands = []
    for name in order:
        begin, end = ends[name]
        index = "qkv".index(name)
        part = relax.TupleGetItem(pieces, index) if split else relax.op.strided_slice(y, [2], [begin], [end])
        heads = (m.dim("batch"), m.dim("sequence"), (end - begin) // 16, 16)
        operands.append(m.emit(relax.op.reshape(m.emit(part), heads)))
    return {"y": m.op("attention", *operands, num_heads=2, num_kv_heads=kv_heads, head_dim=16, scale=0.25)}


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("split", [False, True])
def test_attention_reads_the_columns_of_one_projection_in_place(split: bool, kv_heads: int) -> None:
    model = small_model(X3, lambda m: parts_of_one(m, split=split, kv_heads=kv_heads))
    func, report = applied("fuse_projections", model)
    assert len(report["fused"]) == 1 and calls(func) == {"halo.attention": 1, "halo.linear": 1}
    assert count_kernels(optimised(model)[0]).kernels == 2


def parts_behind_a_transposition(m: ModelBuilder, last: str = "v"):
    """Attention as vision transformers spell it; `last` is the part that gives the values."""
    b, s = m.dim("batch"), m.dim("sequence")
    y = m.emit(relax.op.reshape(m.linear(m.inputs["x"], "qkv", 32, 96), (b, s, 3, 2, 16)))
    y = m.emit(relax.op.permute_dims(y, [2, 0, 3, 1, 4]))
    heads = []
    for index in ("qkv".index(name) for name in ("q", "k", last)):
        part = m.emit(relax.op.strided_slice(y, [0], [index], [index + 1]))
        part = m.emit(relax.op.reshape(part, (b, 2, s, 16)))
        heads.append(m.emit(relax.op.permute_dims(part, [0, 2, 1, 3])))
    return {"y": m.op("attention", *heads, num_heads=2, num_kv_heads=2, head_dim=16, scale=0.25)}


@pytest.mark.slow
def test_parts_behind_a_transposition_are_columns_of_their_projection() -> None:
    model = small_model(X3, parts_behind_a_transposition)
    func, report = applied("fuse_projections", dataclasses.replace(model, mod=PASSES["simplify"]()(model.mod, None)[0]))
    assert len(report["fused"]) == 1 and calls(func) == {"halo.attention": 1, "halo.linear": 1}
    assert count_kernels(optimised(model)[0]).kernels == 2
    x = inputs_of(model, batch=2, sequence=5)
    assert_close(run_model(model, x), evaluate(model, x)["y"])


@pytest.mark.slow
def test_parts_behind_a_transposition_that_nobody_reads_in_place_move_once() -> None:
    """Queries that are values, too: no three parts side by side, but each is still one copy, or none."""
    model = small_model(X3, lambda m: parts_behind_a_transposition(m, last="q"))
    mod = PASSES["simplify"]()(model.mod, None)[0]
    assert "permute_dims" not in calls(mod["main"])
    x = inputs_of(model, batch=2, sequence=5)
    assert_close(run_model(model, x), evaluate(model, x)["y"])


def test_columns_in_another_order_are_declined() -> None:
    func, report = applied("fuse_projections", small_model(X3, lambda m: parts_of_one(m, "qvk", kv_heads=2)))
    assert len(report["declined"]) == 1 and calls(func)["strided_slice"] == 3


def test_projections_of_different_inputs_are_declined() -> None:
    _, report = applied("fuse_projections", small_model(X3, lambda m: transformer_layer(m, shared=False)))
    assert report["declined"] == [
        {"layer": "0.attn", "reason": "query, key and value are projections of different inputs"}
    ]


def test_computed_queries_are_declined() -> None:
    def body(m: ModelBuilder):
        q = m.emit(relax.op.tanh(m.emit(relax.op.reshape(m.inputs["x"], (m.dim("batch"), m.dim("sequence"), 2, 16)))))
        return {"y": m.op("attention", q, q, q, num_heads=2, num_kv_heads=2, head_dim=16, scale=1.0)}

    _, report = applied("fuse_projections", small_model(X3, body))
    assert [d["reason"] for d in report["declined"]] == ["query, key or value is computed by tanh, not projected"]


def test_attention_over_a_cache_is_declined() -> None:
    def body(m: ModelBuilder):
        x, b, s = m.inputs["x"], m.dim("batch"), m.dim("sequence")
        q, k, v = (m.emit(relax.op.reshape(m.linear(x, part, 32, 32), (b, s, 2, 16))) for part in "qkv")
        sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "causal": True}
        return {"y": m.op("attention", q, k, v, m.inputs["lengths"], **sizes, has_lengths=True)}

    inputs = (*X3, InputSpec("lengths", ("batch",), "int32"))
    func, report = applied("fuse_projections", small_model(inputs, body))
    assert [d["reason"] for d in report["declined"]] == ["attention over a cache reads other keys than it projects"]
    assert calls(func)["halo.linear"] == 3


def test_projections_per_head_are_declined() -> None:
    x = (InputSpec("x", ("batch", "sequence", 2, 16), "float32"),)

    def body(m: ModelBuilder):
        q, k, v = (m.linear(m.inputs["x"], part, 16, 16) for part in "qkv")
        return {"y": m.op("attention", q, k, v, num_heads=2, num_kv_heads=2, head_dim=16, scale=0.25)}

    func, report = applied("fuse_projections", small_model(x, body))
    assert calls(func)["halo.linear"] == 3
    assert "is not [batch, sequence, width] whose columns a reshape splits" in report["declined"][0]["reason"]


def test_projections_of_flat_rows_are_declined() -> None:
    def body(m: ModelBuilder):
        heads = [m.emit(relax.op.reshape(m.linear(m.inputs["x"], part, 32, 32), (2, 5, 2, 16))) for part in "qkv"]
        return {"y": m.op("attention", *heads, num_heads=2, num_kv_heads=2, head_dim=16, scale=0.25)}

    func, report = applied("fuse_projections", small_model((InputSpec("x", (10, 32), "float32"),), body))
    assert calls(func)["halo.linear"] == 3 and len(report["declined"]) == 1


def test_projections_whose_reshape_moves_rows_are_declined() -> None:
    def body(m: ModelBuilder):
        heads = [m.emit(relax.op.reshape(m.linear(m.inputs["x"], part, 32, 32), (2, 10, 2, 16))) for part in "qkv"]
        return {"y": m.op("attention", *heads, num_heads=2, num_kv_heads=2, head_dim=16, scale=0.25)}

    func, report = applied("fuse_projections", small_model((InputSpec("x", (4, 5, 32), "float32"),), body))
    assert calls(func)["halo.linear"] == 3 and len(report["declined"]) == 1


def test_operators_without_arguments_and_unknown_shapes_are_not_flattened() -> None:
    b, s = relax.Var("x", relax.TensorType(ndim=3, dtype="float32")), relax.BlockBuilder()
    with s.function("main", [b], attrs={"num_input": 1, "halo.params": []}):
        with s.dataflow():
            y = s.emit(relax.op.nn.relu(b))
            z = s.emit_output(relax.op.add(y, s.emit(relax.op.zeros((2, 3, 4), "float32"))))
        s.emit_func_output(z)
    mod, report = PASSES["flatten_rows"]()(s.get(), context_of(small_model(X3, lambda m: {"y": m.inputs["x"]})))
    assert report == {"flattened": {}} and calls(mod["main"]) == {"add": 1, "nn.relu": 1, "zeros": 1}


def test_only_float32_weights_are_packed() -> None:
    def body(m: ModelBuilder):
        w = m.weight("w", (32, 32))
        return {"y": m.op("linear", m.inputs["x"], w, layout="nk", n=32)}

    model = small_model(X2, body)
    model.params.sources["w"] = dataclasses.replace(model.params.sources["w"], dtype="float16")
    _, report = applied("pack_weights", model)
    reason = "only float32 is packed, it is float16"
    assert report == {"formats": {}, "kept": [{"weight": "w", "reason": reason}], "wide": []}


def test_row_variables_are_named_unlike_the_models_dimensions() -> None:
    x = (InputSpec("x", ("rows", "columns", 32), "float32"),)
    model = small_model(x, lambda m: {"y": m.emit(relax.op.nn.relu(m.linear(m.inputs["x"], "a", 32, 24)))})
    func, _ = applied("flatten_rows", model)
    named = name_rows(replace_main(model.mod, func))["main"]
    casts = [b for block in named.body.blocks for b in block.bindings if isinstance(b, relax.MatchCast)]
    assert {str(b.ty.shape.values[0].name) for b in casts} == {"rows_"}


def test_a_size_whose_name_would_hide_a_shape_keeps_its_spelling() -> None:
    """An importer's cast follows the name, its neighbour of rank 3 does not: what both become had no shape.

    The product behind is typed by that shape.
    """

    @I.ir_module
    class Model:
        @R.function
        def main(
            x: R.Tensor((2, "m"), "float32"), y: R.Tensor(("k", "n"), "float32"), sizes: R.Shape(["p", "q", "r", "t"])
        ) -> R.Tensor(dtype="float32", ndim=3):
            p, q, r, t = T.int64(), T.int64(), T.int64(), T.int64()
            with R.dataflow():
                known = R.match_cast(x, R.Tensor((2, p * q + r * t), "float32"))
                rows = R.reshape(known, R.shape([1, 2 * (p * q + r * t)]))
                flat = R.reshape(rows, R.shape([2, p * q + r * t]))
                doubled = R.add(flat, flat)
                apart = R.reshape(doubled, R.shape([1, 2, p * q + r * t]))
                scale = R.match_cast(y, R.Tensor((1, p * q + r * t), "float32"))
                scaled = R.multiply(apart, scale)
                out = R.halo.matmul(scaled, scaled, transpose_b=True)
                R.output(out)
            return out

    shapes = [b.var.ty.shape for block in name_rows(Model)["main"].body.blocks for b in block.bindings]
    assert all(isinstance(shape, relax.ShapeExpr) for shape in shapes)
    names = {dim.name for shape in shapes for dim in shape.values if isinstance(dim, tirx.Var)}
    assert "rows" in names  # of the product that meets no other spelling


def test_a_product_that_is_part_of_a_size_keeps_its_spelling() -> None:
    """Places of several grids side by side, as detectors have them: FuseTIR takes no name that no tensor has alone."""

    @I.ir_module
    class Model:
        @R.function
        def main(x: R.Tensor(("n", 4, "h", "w"), "float32"), y: R.Tensor(("n", 4, 2), "float32")) -> R.Tensor(
            dtype="float32", ndim=3
        ):
            n, h, w = T.int64(), T.int64(), T.int64()
            with R.dataflow():
                places = R.reshape(x, R.shape([n, 4, h * w]))
                both = R.concat((places, y), axis=2)
                out = R.nn.softmax(R.nn.relu(both), axis=1)
                R.output(out)
            return out

    func = name_rows(Model)["main"]
    sizes = [dim for block in func.body.blocks for b in block.bindings for dim in b.var.ty.shape.values]
    assert {v.name for dim in sizes for v in tirx.analysis.undefined_vars(dim)} == {"n", "h", "w"}


def test_rows_beside_an_open_width_have_no_name_in_the_end() -> None:
    """Scores [batch * sequence * 4, sequence]: the width is a size of the model, and stays."""

    @I.ir_module
    class Model:
        @R.function
        def main(x: R.Tensor(("batch", 4, "sequence", "sequence"), "float32")) -> R.Tensor(dtype="float32", ndim=2):
            batch, sequence = T.int64(), T.int64()
            with R.dataflow():
                scores = R.reshape(x, R.shape([batch * sequence * 4, sequence]))
                out = R.add(scores, scores)
                R.output(out)
            return out

    resolved = resolve_rows(name_rows(Model))
    types = [str(b.var.ty) for block in resolved["main"].body.blocks for b in block.bindings]
    assert not [ty for ty in types if "rows" in ty]


def test_what_the_verifier_refuses_is_a_sentence() -> None:
    x, other = (relax.Var(name, relax.TensorType([2], "float32")) for name in "xy")
    func = relax.Function([x], relax.SeqExpr([], other), other.ty).with_attr("global_symbol", "main")
    with pytest.raises(UnsupportedModel, match=r"behind pass fuse, found .* \(Var y is not defined.\): report"):
        check_verified("fuse", tvm.IRModule({"main": func}))


def test_what_a_cast_reads_is_not_fused_around_it() -> None:
    """half -> cast -> product -> concat with half: as one function half and concat would wait for themselves."""

    @I.ir_module
    class Model:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            with R.dataflow():
                half = R.strided_slice(x, (1,), (0,), (4,), (1,))
                known = R.match_cast(half, R.Tensor((4, 4), "float32"))
                rows = R.matmul(known, known)
                out = R.concat((half, rows), axis=1)
                R.output(out)
            return out

    steps = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    legal = tvm.transform.Sequential(steps)(Model)
    assert not relax.analysis.check_well_formed(relax.transform.FuseOps()(legal)), "TVM sees casts: drop the pass"
    assert relax.analysis.check_well_formed(relax.transform.FuseOps()(keep_for_casts(legal)))


def test_a_size_that_is_named_twice_has_one_name() -> None:
    """In types, shapes and numbers; a cast that says nothing new is gone, one that checks stays."""

    @I.ir_module
    class Model:
        @R.function
        def main(x: R.Tensor((3, "k"), "float32"), y: R.Tensor((3, "n"), "float32")) -> R.Tensor("float32", ndim=2):
            m = T.int64()
            with R.dataflow():
                named = R.match_cast(x, R.Tensor((3, m), "float32"))
                steps = R.arange(0, m, 1, dtype="float32")
                wide = R.broadcast_to(steps, R.shape([3, m]))
                checked = R.match_cast(y, R.Tensor((3, m), "float32"))
                out = R.add(R.add(named, wide), checked)
                R.output(out)
            return out

    @I.ir_module
    class Wanted:
        @R.function
        def main(x: R.Tensor((3, "k"), "float32"), y: R.Tensor((3, "n"), "float32")) -> R.Tensor("float32", ndim=2):
            k = T.int64()
            with R.dataflow():
                steps = R.arange(0, k, 1, dtype="float32")
                wide = R.broadcast_to(steps, R.shape([3, k]))
                checked = R.match_cast(y, R.Tensor((3, k), "float32"))
                out = R.add(R.add(x, wide), checked)
                R.output(out)
            return out

    tvm.ir.assert_structural_equal(one_name_each(Model, Model["main"]), Wanted["main"])


def test_row_operators_run_on_matrices() -> None:
    model = small_model(X3, lambda m: {"y": m.emit(relax.op.nn.relu(m.linear(m.inputs["x"], "a", 32, 24)))})
    func, report = applied("flatten_rows", model)
    assert report["flattened"] == {"halo.linear": 1, "nn.relu": 1}
    assert [b.var.ty.ndim for b in bindings(func)] == [2, 2, 2, 3]  # reshape, linear, relu, reshape back


def test_broadcasting_over_the_sequence_stays_as_it_is() -> None:
    model = small_model(X3, lambda m: {"y": m.emit(relax.op.add(m.inputs["x"], m.weight("w", (1, 1, 32))))})
    assert applied("flatten_rows", model)[1]["flattened"] == {}


def test_packing_keeps_tied_weights_once() -> None:
    ids = InputSpec("ids", ("n",), "int64")

    def body(m: ModelBuilder):
        table = m.weight("table", (50, 32))
        x = m.op("embedding", m.inputs["ids"], table, layout="nk", n=50)
        return {"y": m.op("linear", x, table, layout="nk", n=50)}

    model = small_model((ids,), body)
    func, report = applied("pack_weights", model)
    names = [str(n) for n in func.attrs["halo.params"]]
    assert len(names) == 1 and names[0].startswith("table|f32/k1/n") and report["kept"] == []
    assert {attrs_of(c)["layout"] for c in call_list(func)} == {"packed"}


def test_a_weight_read_in_two_layouts_is_not_packed_and_the_report_says_so() -> None:
    def body(m: ModelBuilder):
        w = m.weight("w", (32, 32))
        return {"y": m.op("linear", m.op("linear", m.inputs["x"], w, layout="nk", n=32), w, layout="kn", n=32)}

    _, report = applied("pack_weights", small_model(X2, body))
    assert report["kept"] == [{"weight": "w", "reason": "its linears read it in the layouts kn, nk"}]


# ------------------------------------------------------------------ fuse, merge, whole pipeline


def optimised(model: ImportedModel, level: int = 3, enable: tuple[str, ...] = (), disable: tuple[str, ...] = ()):
    steps = pipeline.Pipeline.of(level, enable, disable)
    return steps.run(pipeline.OPTIMISE, model.mod, context_of(model))


def test_fusion_reports_the_bytes_it_saves() -> None:
    model = small_model(X2, lambda m: {"y": m.emit(relax.op.nn.relu(m.linear(m.inputs["x"], "a", 32, 24)))})
    _, reports = optimised(model)
    (candidate,) = reports["fuse"]["candidates"]
    # At 8 typical rows the intermediate of 8 x 24 floats is neither written nor read again.
    assert candidate["taken"] and candidate["benefit_bytes"] == 2 * 8 * 24 * 4


def test_fusion_leaves_its_input_alone_and_reports_what_was_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    from halo_tvm.passes import fuse

    def body(m: ModelBuilder):
        x = m.emit(relax.op.nn.relu(m.linear(m.inputs["x"], "a", 32, 24)))
        return {"y": m.emit(relax.op.nn.relu(m.linear(x, "b", 24, 40)))}

    model = small_model(X2, body)
    mod, _ = PASSES["legalize"]()(model.mod, context_of(model))
    before = mod.script()
    real = fuse._candidates

    def worthless_first(grouped, sizes):
        found = real(grouped, sizes)
        return [{**c, "benefit_bytes": -1} if i == 0 and len(found) == 2 else c for i, c in enumerate(found)]

    monkeypatch.setattr(fuse, "_candidates", worthless_first)
    fused, report = PASSES["fuse"]()(mod, context_of(model))
    assert mod.script() == before
    taken = [c for c in report["candidates"] if c["taken"]]
    assert len(taken) == 1 and {c["taken"] for c in report["candidates"]} == {True, False}
    assert {c["function"] for c in taken} <= {g.name_hint for g in fused.get_global_vars()}
    assert report["saved_bytes"] == taken[0]["benefit_bytes"]


def test_a_size_by_itself_is_not_fused_with_sizes_that_no_tensor_has() -> None:
    """The length, for each row: a layer that is read from its end, masked, counts so."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        rows, columns = m.inputs["x"].ty.shape
        length = m.emit(relax.op.arange(columns, columns + 1, 1, "int64"))
        return {"y": m.emit(relax.op.broadcast_to(length, relax.ShapeExpr([rows])))}

    model = small_model((InputSpec("x", ("rows", "columns"), "float32"),), body)
    found = run_model(model, inputs_of(model, rows=3, columns=5))
    np.testing.assert_array_equal(found, [5, 5, 5])


def test_equal_layers_share_their_functions() -> None:
    def body(m: ModelBuilder):
        x = m.inputs["x"]
        for i in range(3):
            x = m.emit(relax.op.nn.relu(m.linear(x, f"layers.{i}", 32, 32)))
        return {"y": x}

    mod, reports = optimised(small_model(X2, body))
    assert reports["merge_functions"]["functions_after"] == 1
    assert len(mod.functions) == 2


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.slow
@pytest.mark.sampled(2)
def test_every_level_computes_the_same(level: int) -> None:
    model = small_model(X3, transformer_layer)
    for batch, sequence in ((1, 1), (2, 7), (1, 33)):
        x = inputs_of(model, batch=batch, sequence=sequence)
        assert_close(run_model(model, x, level=level), evaluate(model, x)["y"])


def test_static_shapes_compute_the_same() -> None:
    static = (InputSpec("x", (2, 5, 32), "float32"),)

    def body(m: ModelBuilder):
        m._dims.update(batch=2, sequence=5)
        return transformer_layer(m)

    model = small_model(static, body)
    x = inputs_of(model)
    assert_close(run_model(model, x), evaluate(model, x)["y"])


# ------------------------------------------------------------------ pipeline options


def test_disabled_pass_does_not_run_and_enabled_one_does() -> None:
    model = small_model(X3, transformer_layer)
    assert "fuse_projections" not in optimised(model, disable=("fuse_projections",))[1]
    assert "fuse_projections" in optimised(model, level=0, enable=("fuse_projections",))[1]
    assert "prune_heads" not in optimised(model)[1]


def test_unknown_pass_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"unknown pass 'fuse_projection'.*did you mean 'fuse_projections'"):
        pipeline.Pipeline.of(3, ("fuse_projection",))


def test_required_pass_cannot_be_disabled() -> None:
    with pytest.raises(UsageError, match="pass legalize is needed to lower any model"):
        pipeline.Pipeline.of(3, (), ("legalize",))


def test_unknown_pass_option_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected options of pass prune_heads among heads, threshold, found 'head'"):
        with_options(PASSES["prune_heads"], {"head": 1})


IN_A_BRANCH = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((1, 4, 6, 8), "float32"), cond: R.Tensor((), "bool"), w: R.Tensor(SHAPE, "float32")):
        R.func_attr({"num_input": 2, "halo.params": ["w"]})
        if cond:
            y = CALL
        else:
            y = CALL
        z = CALL
        return (y, z)
"""
CONVOLUTION = 'R.halo.convolution(x, w, layout="first", strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0), groups=1)'


@pytest.mark.parametrize(
    ("name", "call", "shape", "made"),
    [
        ("channels_last", CONVOLUTION, (5, 4, 3, 3), "R.permute_dims"),
        ("flatten_rows", 'R.halo.linear(x, w, layout="nk", n=5)', (5, 8), "R.reshape"),
    ],
)
def test_what_a_branch_makes_of_a_value_stays_in_the_branch(
    name: str, call: str, shape: tuple[int, ...], made: str
) -> None:
    weight = small_model((), lambda m: {"y": m.weight("w", shape)})
    text = IN_A_BRANCH.replace("CALL", call).replace("SHAPE", str(shape))
    mod, _ = PASSES[name]()(tvm.script.from_source(text), context_of(weight))
    assert relax.analysis.check_well_formed(mod) and mod.script().count(made) == 3 * 2


def test_element_wise_operators_that_no_row_reads_keep_their_shape() -> None:
    """An image made of bytes: its cast and its scaling stay beside the transposition, to be one kernel with it."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([1, 6, 8, 3], "uint8"))
    with builder.function("main", [x], attrs={"num_input": 1, "halo.params": []}):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
            scaled = builder.emit(relax.op.multiply(relax.op.astype(turned, "float32"), relax.const(0.5, "float32")))
            shifts = relax.const(np.ones((3, 1, 1), np.float32))
            out = builder.emit_output(relax.op.subtract(scaled, shifts))
        builder.emit_func_output(out)
    weight = small_model((), lambda m: {"y": m.weight("w", (5, 4))})
    mod, report = PASSES["flatten_rows"]()(builder.get(), context_of(weight))
    assert report["flattened"] == {} and "reshape" not in mod.script()


def test_kernels_of_an_importer_move_with_the_channels() -> None:
    weight = small_model((), lambda m: {"y": m.weight("w", (5, 4, 3, 3))})
    context = context_of(weight)
    x = relax.Var("x", relax.TensorType([1, 4, 6, 8], "float32"))
    w = relax.Var("w", relax.TensorType([5, 4, 3, 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], attrs={"num_input": 1, "halo.params": ["w"]}):
        with builder.dataflow():
            attrs = {"layout": "first", "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "groups": 1}
            y = builder.emit(Convolution.call(x, w, **attrs))
            y = builder.emit_te(lambda t: te.compute(t.shape, lambda *i: tirx.min(t[i], tirx.const(6.0))), y)
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    mod, _ = PASSES["channels_last"]()(builder.get(), context)
    kernels = [b.value for b in bindings(mod["main"]) if op_name(b.value) == "relax.call_tir"]
    assert [list(map(int, kernel.ty_args[0].shape.values)) for kernel in kernels] == [[1, 4, 6, 5]]
