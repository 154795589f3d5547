"""The plan of activations: nothing alive is overwritten, and it is never larger than TVM's own."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from test_general_graphs import imported
from tvm import relax
from tvm.relax import op

from halo_tvm import build
from halo_tvm.build import planned_bytes, with_bounds
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.in_process import compile_in_process
from halo_tvm.memory_plan import Activation, PlanActivations, place
from halo_tvm.models import FAMILIES
from halo_tvm.models._t5 import T5Config
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.models.mlp import MLPConfig
from halo_tvm.phases import lower

_SIZES = {"layers": 3, "hidden": 64, "heads": 4, "vocabulary": 67, "feed_forward": 256}
TENSORS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=40)


@settings(deadline=None)
@given(TENSORS)
def test_no_two_tensors_that_are_alive_together_share(spans: list[tuple[int, int, int]]) -> None:
    tensors = [Activation(size, first, first + length) for size, first, length in spans]
    sizes = place(tensors)
    alive = [sum(t.size for t in tensors if t.first <= step <= t.last) for step in {t.first for t in tensors}]
    assert sum(sizes) >= max(alive), "no plan can go below what is alive at once"
    for i, a in enumerate(tensors):
        assert a.size <= sizes[a.storage]
        for b in tensors[:i]:
            assert a.storage != b.storage or a.last < b.first or b.last < a.first


def test_sizes_that_nobody_has_memory_for_are_not_planned() -> None:
    """Three open dimensions of an image, each with a bound: 256 GiB at all of them together."""

    def shares(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        e = bb.emit(op.exp(x))
        return bb.emit(op.divide(e, bb.emit(op.sum(e, -1, True))))

    shape = ("batch", "height", "width", 64)
    model = imported({"x": (shape, "float32")}, shares)
    model = replace(model, ranges=dict.fromkeys(shape[:3], (1, 1024)), typical=dict.fromkeys(shape[:3], 8))
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 64), dtype=np.float32)
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(compile_in_process(model)(x=x)["y"], expected, rtol=1e-5)


def test_the_largest_choose_first() -> None:
    """In their order 10, 40 and 50 would take 90: the small one first, and the largest one beside it."""
    tensors = [Activation(10, 0, 1), Activation(40, 1, 2), Activation(50, 3, 4), Activation(10, 4, 5)]
    assert place(tensors) == [50, 10]
    assert [t.storage for t in tensors] == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("family", "config", "saves"),
    [
        ("gpt2", gpt2(**_SIZES, positions=64), True),
        ("bert", BertConfig(**_SIZES, positions=64), False),  # TVM's plan is the least there is
        ("t5", T5Config(**_SIZES, decoder_layers=3, head_dim=16), True),
        ("t5-decoder", T5Config(**_SIZES, decoder_layers=3, head_dim=16), False),
        ("mlp", MLPConfig(layers=6, width=32), False),
    ],
)
def test_the_plan_is_no_larger_than_tvms(monkeypatch, family: str, config: object, saves: bool) -> None:
    ours, theirs, unshared = plans(monkeypatch, family, config, "fp32")
    assert ours < theirs < unshared if saves else ours == theirs < unshared


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gpt2", gpt2(**_SIZES, positions=64)),
        ("bert", BertConfig(**_SIZES, positions=64)),
        ("t5-decoder", T5Config(**_SIZES, decoder_layers=3, head_dim=16)),
    ],
)
def test_the_plan_of_kernels_with_two_results_is_no_larger_either(monkeypatch, family: str, config: object) -> None:
    ours, theirs, unshared = plans(monkeypatch, family, config, "int8")
    assert ours <= theirs < unshared


def plans(monkeypatch, family: str, config: object, precision: str) -> tuple[int, int, int]:
    """Bytes of activations: of our plan, of TVM's alone, and unshared."""
    model = FAMILIES[family].build(family, config, RandomWeights(0), {})
    lowered, _ = lower(model, Compilation.of(CompileConfig("model", precision=precision, force_precision=True)))
    mod = with_bounds(lowered, model.ranges)

    def bytes_of(plan: bool) -> int:
        return planned_bytes(mod, plan, model.ranges, model.typical)

    ours, unshared = bytes_of(True), bytes_of(False)
    monkeypatch.setattr(build, "PlanActivations", lambda: tvm.transform.Sequential([]))
    return ours, bytes_of(True), unshared


def _lowered(body) -> tvm.IRModule:
    """`body(bb, x)` of x [n, 8], n up to 16, with kernels that write to tensors they are given."""
    bb = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 8], "float32"))
    with bb.function("main", [x], attrs={"num_input": 1}):
        with bb.dataflow():
            out = bb.emit_output(body(bb, x))
        bb.emit_func_output(out)
    mod = with_bounds(bb.get(), {"n": (1, 16)})
    t = relax.transform
    legalize = t.LegalizeOps({"relax.reshape": lambda _bb, call: call})
    steps = [legalize, t.ToNonDataflow(), t.RemovePurityChecking(), t.CallTIRRewrite()]
    return tvm.transform.Sequential(steps)(mod)


def test_a_view_keeps_its_tensor_and_a_result_is_left_alone() -> None:
    def body(bb, x):
        a = bb.emit(op.exp(x))
        view = bb.emit(op.reshape(a, [a.ty.shape.values[0] * 8]))  # a is alive as long as its view
        b = bb.emit(op.exp(x))
        c = bb.emit(op.tanh(b))
        d = bb.emit(op.add(c, bb.emit(op.reshape(view, [a.ty.shape.values[0], 8]))))
        return bb.emit(op.tanh(d))

    assert places(body) == [0, 1, 2, 1]  # a, b, c, d: d takes b's place, never a's


def test_two_results_of_one_kernel_live_as_long_as_each_is_used() -> None:
    def body(bb, x):
        a = bb.emit(op.exp(x))
        parts = bb.emit(op.split(a, 2, axis=1))
        left, right = bb.emit(parts[0]), bb.emit(parts[1])
        b = bb.emit(op.tanh(left))
        c = bb.emit(op.exp(b))
        d = bb.emit(op.add(c, right))
        return bb.emit(op.tanh(d))

    assert places(body) == [0, 1, 2, 0, 1, 0]  # a, left, right, b, c in left's place, d: right's is taken to the end


def places(body) -> list[int]:
    """The allocation of every tensor of `body` but the result, in order."""
    text = PlanActivations()(_lowered(body))["main"].script()
    assert text.count("builtin.alloc_tensor") == 1
    return [int(number) for number in re.findall(r"memory.alloc_tensor\(storage(\d+),", text)]


def test_every_part_of_a_result_is_left_alone() -> None:
    """The caller keeps both parts of the tuple: neither may lie in memory that is used again."""

    def body(bb, x):
        return bb.emit(op.split(bb.emit(op.tanh(bb.emit(op.exp(bb.emit(op.tanh(x)))))), 2, axis=1))

    assert PlanActivations()(_lowered(body))["main"].script().count("builtin.alloc_tensor") == 2


def test_unbounded_sizes_are_left_to_tvm() -> None:
    mod = _lowered(lambda bb, x: bb.emit(op.tanh(bb.emit(op.tanh(bb.emit(op.exp(x)))))))
    mod["main"] = mod["main"].without_attr("tir_var_upper_bound")
    assert "alloc_storage" not in PlanActivations()(mod)["main"].script()


def test_a_size_found_in_the_run_has_no_bound_of_a_declared_size_that_is_named_alike() -> None:
    def body(bb, x):
        count = tvm.tirx.Var("n", "int64")
        found = bb.match_cast(bb.emit(op.exp(x)), relax.TensorType([count, 8], "float32"))
        return bb.emit(op.tanh(bb.emit(op.exp(bb.emit(op.tanh(found))))))

    assert "alloc_storage" not in PlanActivations()(_lowered(body))["main"].script()
