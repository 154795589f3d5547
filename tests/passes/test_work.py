"""What the schedule report says a function does: equal to the operators' own counts, for symbolic sizes, too."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from halo_tvm.artifact.formula import DEPTH_LIMIT, evaluate, sizes_of
from halo_tvm.errors import ArtifactCorrupt
from halo_tvm.passes.work import work_of
from halo_tvm.relay_ops import OPERATORS


def function_of(op: str, shapes: list[tuple], dtypes: list[str] | None = None, **attrs: object) -> tirx.PrimFunc:
    """The one PrimFunc of an operator; names in shapes are dimensions."""
    dims: dict[str, tirx.Var] = {}
    builder, params = relax.BlockBuilder(), []
    for i, shape in enumerate(shapes):
        sizes = [dims.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else d for d in shape]
        params.append(relax.Var(f"a{i}", relax.TensorType(sizes, (dtypes or ["float32"] * len(shapes))[i])))
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(OPERATORS[op].call(*params, **attrs))
        builder.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(builder.get())
    (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return func


def at(report: dict, **sizes: int) -> tuple[int, int]:
    """(flops, bytes) of a report that went through JSON."""
    report = json.loads(json.dumps(report))
    return evaluate(report["flops"], sizes), sum(evaluate(b, sizes) for b in report["bytes"])


def numbers(shapes: list[tuple], **sizes: int) -> list[tuple[int, ...]]:
    return [tuple(sizes.get(d, d) if isinstance(d, str) else d for d in shape) for shape in shapes]


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("linear", [("m", 24), (24, 10)], {"layout": "kn", "n": 10}),
        ("matmul", [("m", 12), (12, 7)], {}),
        (
            "attention",
            [("b", "m", 96)],
            {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "scale": 1.0, "packed": True, "causal": True},
        ),
    ],
)
def test_counts_are_the_operators_own(op: str, shapes: list[tuple], attrs: dict[str, object]) -> None:
    report = work_of(function_of(op, shapes, **attrs))
    assert report["operator"] == op
    for m in (1, 2, 7, 64):
        concrete = numbers(shapes, m=m, b=3)
        flops, moved = at(report, m=m, b=3)
        assert flops == OPERATORS[op].flops(concrete, **attrs)
        result = OPERATORS[op].reference(*map(np.zeros, concrete), **attrs)
        assert moved == 4 * (sum(map(math.prod, concrete)) + result.size)


def test_a_window_counts_what_it_lets_see() -> None:
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "scale": 1.0, "packed": True, "causal": True}
    report = work_of(function_of("attention", [("b", "m", 48)], **attrs, window=4))
    exact = OPERATORS["attention"].flops([(1, 64, 48)], **attrs, window=4)
    assert exact <= at(report, m=64, b=1)[0] <= 1.1 * exact


def test_an_attention_over_a_cache_counts_the_whole_cache() -> None:
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "scale": 1.0, "causal": True}
    shapes = [(1, 1, 2, 16), *[(1, "capacity", 2, 16)] * 2]
    lengths = ([*shapes, (1,)], [*["float32"] * 3, "int32"])
    whole = at(work_of(function_of("attention", *lengths, **attrs, has_lengths=True)), capacity=1024)
    without = at(work_of(function_of("attention", shapes, **attrs)), capacity=1024)
    assert whole[0] == without[0] and 0 <= whole[1] - without[1] <= 8


def test_a_fault_in_a_count_is_no_other_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def flops(shapes: list[tuple], **attrs: object) -> int:
        raise TypeError("a fault")

    func = function_of("attention", [("b", "m", 96)], num_heads=4, num_kv_heads=4, head_dim=8, scale=1.0, packed=True)
    monkeypatch.setattr(OPERATORS["attention"], "flops", flops)
    with pytest.raises(TypeError, match="a fault"):
        work_of(func)


def test_norms_count_every_element_once() -> None:
    report = work_of(function_of("layer_norm", [("m", 64), (64,), (64,)], eps=1e-5))
    flops, moved = at(report, m=10)
    assert moved == 4 * (2 * 640 + 128)
    own = OPERATORS["layer_norm"].flops([(10, 64), (64,), (64,)], eps=1e-5)
    assert flops == pytest.approx(own, rel=0.2)


def test_a_gather_moves_the_rows_it_reads() -> None:
    report = work_of(function_of("embedding", [("m",), (1000, 32)], ["int64", "float32"], layout="nk", n=1000))
    assert at(report, m=5) == (0, 5 * 8 + 2 * 5 * 32 * 4)


def test_products_of_bytes_are_integer_operations() -> None:
    report = work_of(
        function_of(
            "linear_w8a8",
            [("m", 8), ("m",), (1, 1, 2, 48, 4), (20,), (20,)],
            ["uint8", "float32", "int8", "float32", "int32"],
            layout="packed",
            n=20,
        )
    )
    assert report["operator"] == "linear_w8a8"
    assert evaluate(report["integer_ops"], {"m": 3}) >= 2 * 3 * 8 * 48


def test_products_of_words_are_integer_operations() -> None:
    """16 products of 6 channels for each of 5 x 6 tiles and 10 channels of the result."""
    ones = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    shapes, types = [(1, 9, 11, 6), (), (2, 16, 3, 8, 2), (10,)], ["uint8", "uint8", "int16", "int32"]
    report = work_of(function_of("convolution_integer_winograd", shapes, types, kernel=(3, 3), m=10, **ones))
    assert evaluate(report["integer_ops"], {}) >= 2 * 16 * 6 * 5 * 6 * 10


def test_what_may_be_multiplied_in_16_bits_is_told_apart() -> None:
    shapes, attrs = [("m", 16), (1, 1, 8, 48, 2), (48,)], {"layout": "packed", "n": 48}
    func = function_of("linear", shapes, ["float32", "bfloat16", "float32"], **attrs)
    report = work_of(func, ("bfloat16",))
    products, flops = (evaluate(report[name], {"m": 3}) for name in ("narrow_flops", "flops"))
    assert products == 2 * 3 * 16 * 48 and flops - products == 3 * 48, "the bias is added in float32"
    assert "narrow_flops" not in work_of(func) and "narrow_flops" not in work_of(func, ("float16",))
    assert work_of(func)["flops"] == report["flops"]


def test_attention_that_may_round_its_operands() -> None:
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "scale": 1.0, "packed": True}
    for products, narrow, told in (
        ("bfloat16", ("bfloat16",), True),
        ("bfloat16", (), False),
        ("float32", ("bfloat16",), False),
    ):
        report = work_of(function_of("attention", [("b", "m", 48)], **attrs, products=products), narrow)
        assert ("narrow_flops" in report) is told and report.get("narrow_flops", report["flops"]) == report["flops"]


def test_a_loop_of_unknown_length_is_said_to_be_unknown() -> None:
    from tvm.script import tirx as T

    @T.prim_func
    def counted(n: T.Buffer((1,), "int64"), x: T.Buffer((8,), "float32")):
        for i in range(n[0]):
            x[i] = x[i] + T.float32(1)

    report = work_of(counted)
    assert report["flops"] is None and report["bytes"] is None and report["shapes"] == [[1], [8]]


def test_dimensions_of_one_name_stay_apart() -> None:
    first, second = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    params = [
        relax.Var("x", relax.TensorType([first, 1], "float32")),
        relax.Var("y", relax.TensorType([second], "float32")),
    ]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(*params))
        builder.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(builder.get())
    (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    report = work_of(func)
    sizes = sizes_of(report["shapes"], [(3, 1), (5,), (3, 5)])
    assert sorted(sizes.values()) == [3, 5] and evaluate(report["flops"], sizes) == 15


def test_sizes_come_from_the_arguments_of_a_call() -> None:
    shapes = [["m", 4], "k", [None, "m"]]
    assert sizes_of(shapes, [(3, 4), 7, (9, 3)]) == {"m": 3, "k": 7}
    for wrong in ([(3, 5), 7, (9, 3)], [(3, 4), 7, (9, 2)], [(3, 4), None, (9, 3)], [(3, 4)], [(3,), 7, (9, 3)]):
        assert sizes_of(shapes, wrong) is None
    assert sizes_of("nothing", []) is None


@pytest.mark.parametrize(
    "hostile",
    [
        "unknown",
        ["**", 2, 3],
        ["*", 1],
        ["//", 1, 0],
        ["%", 1, ["-", 1, 1]],
        None,
        1.5,
        True,
        {"op": "+"},
        [["+"], 1, 2],
        ["__import__", "os", 1],
        1 << 200,
    ],
)
def test_hostile_formulas_are_refused(hostile: object) -> None:
    with pytest.raises(ArtifactCorrupt, match="expected a formula of numbers, dimensions"):
        evaluate(hostile, {"m": 1})


def test_deep_and_growing_formulas_are_refused() -> None:
    deep: object = 1
    for _ in range(DEPTH_LIMIT + 2):
        deep = ["+", 1, deep]
    growing: object = 1 << 62
    for _ in range(8):
        growing = ["*", growing, growing]
    for formula in (deep, growing):
        with pytest.raises(ArtifactCorrupt):
            evaluate(formula, {})


def test_every_function_of_a_model_says_its_work() -> None:
    from halo_tvm.compilation import Compilation
    from halo_tvm.config import CompileConfig
    from halo_tvm.importers import import_model
    from halo_tvm.phases import lower
    from halo_tvm.targets import resolve

    mod, _ = lower(import_model("mlp"), Compilation.of(CompileConfig(model="mlp"), resolve("x86:avx2")))
    reports = [work_of(f) for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert reports and all(r["flops"] is not None and r["operator"] for r in reports)
    assert np.isfinite([math.prod(at(r, **dict.fromkeys(_dims(r), 8))) for r in reports]).all()


def _dims(report: dict) -> set[str]:
    return {d for shape in report["shapes"] for d in shape if isinstance(d, str)}


def test_many_statements_make_no_deep_formula_and_loops_without_a_length_none() -> None:
    """A manifest of deep formulas cannot be opened."""

    def stores(ins: list, outs: list, again: bool) -> tirx.Stmt:
        x, y = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        with IRBuilder() as builder, T.serial(ins[0].shape[0]) as i:
            for _ in range(80):
                y[i] = y[i] + x[i]
            if again:
                with T.While(y[i] < 0):
                    y[i] = y[i] + x[i]
        return builder.get()

    def report(again: bool) -> dict:
        x = te.placeholder((tirx.Var("n", "int64"),), "float32")
        y = te.extern([x.shape], [x], lambda ins, outs: stores(ins, outs, again), dtype=["float32"])
        return work_of(te.create_prim_func([x, y]))

    assert report(again=False)["flops"] == ["*", "n", 80]
    assert report(again=True)["flops"] is None
