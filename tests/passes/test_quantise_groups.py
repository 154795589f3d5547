"""Schemes of integers in groups: what `quantise` makes by each; numbers on a grid come back as its integers."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from graphs import built_module, context_of, small_model, tied
from tvm import relax

from halo_tvm.errors import UsageError
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.params import RECIPE_OPS, ParamSource, squares_of
from halo_tvm.passes import pipeline
from halo_tvm.passes.graph_pass import count_calls
from halo_tvm.passes.quantise import Quantise
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.passes.weights import param_names
from halo_tvm.targets import resolve
from halo_tvm.weight_groups import group_grid, group_pack, unpacked

X = (InputSpec("x", ("rows", 192), "float32"),)


def layers(m: ModelBuilder) -> Mapping[str, relax.Expr]:
    """x [rows, 192] through an up and a down projection and a head."""

    def linear(x: relax.Expr, name: str, k: int, n: int) -> relax.Var:
        return m.op("linear", x, m.weight(f"{name}.weight", (n, k)), m.weight(f"{name}.bias", (n,)), layout="nk", n=n)

    up = m.emit(relax.op.nn.relu(linear(m.inputs["x"], "up", 192, 96)))
    return {"y": linear(linear(up, "down", 96, 64), "head", 64, 50)}


def quantised(model: ImportedModel, precision: str, **options: object) -> tuple[relax.Function, Mapping[str, object]]:
    context = dataclasses.replace(context_of(model, resolve("x86:avx2")), precision=precision)
    mod, report = Quantise(**options)(model.mod, context)
    return mod["main"], report


@pytest.mark.parametrize(
    ("precision", "options", "formats"),
    [
        ("int4", {}, {"i4g32m/k8/n16": 2, "i8g32/k4/n16": 1}),
        (
            "int4",
            {"scheme": "w4g128a8g128", "head": "w4g64m"},
            {"i4g64/k8/n16": 1, "i4g32/k8/n16": 1, "i4g64m/k8/n16": 1},
        ),
        ("int4", {"mixed": ("down*=w8a8",)}, {"i4g32m/k8/n16": 1, "i8/k4/n16": 1, "i8g32/k4/n16": 1}),
        ("int4", {"narrowing": "w8a8"}, {"i8/k4/n16": 2, "i8g32/k4/n16": 1}),
        ("int8", {"scheme": "w8g64a8g64"}, {"i8g64/k4/n16": 2, "i8g32/k4/n16": 1}),
    ],
)
def test_linears_by_scheme(precision: str, options: dict[str, object], formats: dict[str, int]) -> None:
    """Groups that do not divide k become the largest that do; the head has a scheme of its own."""
    func, report = quantised(small_model(X, layers), precision, **options)
    assert report["formats"] == formats and report["linears"] == 3 and report["kept"] == []
    assert "halo.linear" not in count_calls(func) and "up.bias" in param_names(func)
    assert not any(name.endswith(".weight") for name in param_names(func))


@pytest.mark.parametrize(
    ("caches", "options", "formats"),
    [
        (True, {}, {"i8g32/k4/n16": 1, "i8/k4/n16": 1}),  # 36 columns are no whole number of groups
        (False, {}, {"i8/k4/n16": 2}),
        (True, {"scheme": "w8a8"}, {"i8/k4/n16": 2}),
    ],
)
def test_eight_bits_of_a_model_with_caches_are_in_groups(caches: bool, options: dict, formats: dict[str, int]) -> None:
    inputs = (
        InputSpec("x", ("b", "s", 64), "float32"),
        InputSpec("keys", ("b", 24, 3, 12), "float32"),
        InputSpec("lengths", ("b",), "int32"),
    )

    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        keys = m.op("linear", m.inputs["x"], m.weight("key", (36, 64)), layout="nk", n=36)
        y = m.op("linear", keys, m.weight("out", (20, 36)), layout="nk", n=20)
        new = m.emit(relax.op.reshape(keys, (m.dim("b"), m.dim("s"), 3, 12)))
        kept = {"kept": m.op("kv_append", m.inputs["keys"], new, m.inputs["lengths"])} if caches else {}
        return {"y": y, **kept}

    assert quantised(small_model(inputs, body), "int8", **options)[1]["formats"] == formats


def test_a_depth_that_no_group_divides_stays() -> None:
    inputs = (InputSpec("x", ("rows", 40), "float32"),)
    model = small_model(
        inputs, lambda m: {"y": m.op("linear", m.inputs["x"], m.weight("w", (40, 8)), layout="kn", n=8)}
    )
    _, report = quantised(model, "int4")
    assert report["kept"] == [{"weight": "w", "reason": "k = 40 is no multiple of 32, the smallest group"}]


def test_a_tied_table_in_groups_gives_its_rows() -> None:
    func, report = quantised(tied(), "int4")
    assert report["tied_embeddings"] == ["wte"] and "wte" not in param_names(func)
    _, report = quantised(tied(), "int4", head="w4g32m")
    assert report["tied_embeddings"] == [], "rows are read of eight bits only"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "w4"}, "expected a scheme called w8a8, .* found 'w4'"),
        ({"scheme": "w8g32m"}, "expected a scheme called .* found 'w8g32m'"),
        ({"head": "w4g32a8g64"}, "expected a scheme called .* found 'w4g32a8g64'"),
        ({"method": "guess"}, "expected method among search, round, found 'guess'"),
        ({"mixed": ("up*",)}, 'expected mixed as a list of "glob=scheme"'),
        ({"mixed": ("nothing*=w8a8",)}, "layer for mixed = 'nothing\\*', found none"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quantised(small_model(X, layers), "int4", **options)


@pytest.mark.parametrize("scheme", ["w4g32m", "w4g32a8g32"])
def test_scales_lose_least_where_inputs_are_large(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the search by mean squares, where a text was read; without it only for scales beside least values."""
    searches = []
    monkeypatch.setitem(RECIPE_OPS, "group_grid", lambda *a, **how: searches.append(how) or group_grid(*a, **how))
    model = small_model(X, layers)
    squares = np.random.default_rng(3).lognormal(sigma=1.5, size=192).astype(np.float32)
    model.params.add_source(squares_of("up.weight"), ParamSource((192,), "float32", lambda: squares))
    report, found = {}, {}
    for method in ("round", "search"):
        chosen = dataclasses.replace(model, params=copy.deepcopy(model.params))
        func, report[method] = quantised(chosen, "int4", scheme=scheme, method=method)
        stored = [name for name in param_names(func) if name.startswith("up.weight|")]
        *grid, packed = (array for _, array in chosen.params.stream(stored))
        found[method] = unpacked(packed, *grid, bits=4, n=96) - chosen.params.materialise("up.weight").T
    assert len(searches) == 2, "a weight is searched once, whatever is made of it"
    unmeasured = "searched" if scheme == "w4g32m" else "rounded"
    assert report["round"]["methods"] == {"rounded": 3}
    assert report["search"]["methods"] == Counter(["searched, inputs measured", unmeasured, "rounded"])
    lost = {method: (squares @ error**2).sum() for method, error in found.items()}
    assert lost["search"] < 0.65 * lost["round"], "and more where they are small"
    assert (found["search"][squares < 0.3] ** 2).sum() > (found["round"][squares < 0.3] ** 2).sum()


@pytest.mark.slow
def test_compiled_linears_are_near_float64_and_rows_do_not_depend_on_their_number() -> None:
    model, target = small_model(X, layers), resolve("x86:avx2")
    context = dataclasses.replace(context_of(model, target), precision="int4")
    steps = pipeline.Pipeline.of(3)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    mod, _ = steps.run(pipeline.OPTIMISE, mod, context)
    mod, report = schedule_functions(mod, target)
    assert report.rules == {"gemm": 3}
    run = built_module(mod, model, target)
    x = np.random.default_rng(0).standard_normal((17, 192), dtype=np.float32)
    whole, expected = run(x), evaluate(model, {"x": x})["y"]
    assert np.linalg.norm(whole - expected) < 0.2 * np.linalg.norm(expected)
    for begin, end in ((0, 1), (3, 8), (8, 17)):
        np.testing.assert_array_equal(run(np.ascontiguousarray(x[begin:end])), whole[begin:end])


@pytest.mark.parametrize(("kind", "bits", "least"), [("Q8_0", 8, False), ("Q4_0", 4, False), ("Q4_1", 4, True)])
def test_numbers_of_a_file_come_back_as_its_integers(kind: str, bits: int, least: bool) -> None:
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(1)
    stored = gguf.quants.quantize(rng.standard_normal((40, 96), dtype=np.float32), gguf.GGMLQuantizationType[kind])
    weight = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    how = {"layout": "nk", "group": 32, "nr": 16}
    grid = group_grid(weight, **how, bits=bits, least=least, search=bits == 4)  # which keeps what costs nothing
    scale, packed = grid[0], group_pack(weight, grid, **how, bits=bits)
    blocks = stored.reshape(40, 3, -1)
    steps = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]  # [n, groups]
    np.testing.assert_array_equal(scale.swapaxes(1, 2).reshape(48, 3)[:40], steps)
    found = unpacked(packed, *grid, bits=bits, n=40)
    np.testing.assert_allclose(found, weight.T, rtol=1e-6, atol=1e-7)
    one = unpacked(packed, np.ones_like(scale), *map(np.zeros_like, grid[1:]), bits=bits, n=40).T
    data = blocks[..., 4 if least else 2 :]
    integers = data.view(np.int8) if bits == 8 else np.concatenate([data & 15, data >> 4], -1).astype(int)
    np.testing.assert_array_equal(one.reshape(40, 3, 32), integers - (0 if least or bits == 8 else 8))


@pytest.mark.parametrize(("bits", "least"), [(8, False), (4, False), (4, True)])
def test_groups_of_zeros_and_of_what_is_no_number(bits: int, least: bool) -> None:
    weight = np.random.default_rng(0).standard_normal((96, 6), dtype=np.float32)
    weight[:32, 0], weight[32:64, 1], weight[5, 2], weight[6, 3] = 0.0, 0.25, np.nan, np.inf
    weight[:32, 4] *= 1e-12  # smaller than float16 has scales for
    how = {"layout": "kn", "group": 32, "nr": 8}
    grid = group_grid(weight, **how, bits=bits, least=least, search=bits == 4)
    found = unpacked(group_pack(weight, grid, **how, bits=bits), *grid, bits=bits, n=6)
    assert np.abs(found[:32, 0]).max() == 0 and np.abs(found[32:64, 1] - 0.25).max() < 1e-3
    assert np.isnan(found[:32, 2:4]).all() and np.isfinite(found[32:, 2:4]).all()
    assert np.abs(found[:32, 4]).max() < 1e-6 and np.isfinite(found[:, [0, 1, 4, 5]]).all()


@pytest.mark.parametrize("factor", [1e-7, 1e7])
@pytest.mark.parametrize(("bits", "least"), [(8, False), (4, False), (4, True)])
def test_scales_that_float16_does_not_hold_are_refused(bits: int, least: bool, factor: float) -> None:
    weight = np.random.default_rng(0).standard_normal((96, 6), dtype=np.float32) * np.float32(factor)
    with pytest.raises(UsageError, match="largest scale lies in 1.9e-06 to 65504, the range of float16, found"):
        group_grid(weight, layout="kn", group=32, nr=8, bits=bits, least=least)


def test_a_search_in_parts_finds_the_same(monkeypatch) -> None:
    """Whatever the columns of a part, and the threads that search them."""
    weight = np.random.default_rng(0).standard_normal((96, 41)).astype(np.float32)
    importance = np.linspace(0.1, 3, 96, dtype=np.float32)
    how = {"layout": "kn", "group": 32, "bits": 4, "least": True, "nr": 16, "search": True}
    whole = group_grid(weight, importance, **how)
    monkeypatch.setattr("halo_tvm.scale_search._BLOCK", 96 * 3)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1, 2})
    np.testing.assert_array_equal(group_grid(weight, importance, **how), whole)
    assert (group_grid(weight, None, **{**how, "search": False}) != whole).any()
