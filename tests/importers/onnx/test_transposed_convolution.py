"""Transposed convolutions as phases, against onnxruntime: known and open sizes, and what serves them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
# groups, channels and results of a group, kernel, sizes of x, attributes
CASES = {
    "kernel of two strides": (1, 3, 5, [16], [7], {"strides": [8], "pads": [4, 4]}),
    "phases of unequal kernels": (1, 4, 3, [3, 5], [5, 6], {"strides": [2, 3], "pads": [1, 2, 0, 3]}),
    "kernel within the stride": (2, 2, 3, [2, 1], [4, 5], {"strides": [3, 2], "output_padding": [2, 1]}),
    "dilation of whole strides": (1, 2, 3, [3, 3], [6, 5], {"strides": [2, 1], "dilations": [4, 3]}),
    "dilation between strides": (1, 2, 16, [4, 3], [6, 5], {"strides": [2, 3], "dilations": [3, 2]}),
    "stride of one": (4, 2, 2, [3, 2], [5, 5], {"pads": [1, 0, 0, 1]}),
    "more is cut off than a kernel": (1, 3, 2, [2, 3], [7, 6], {"strides": [2, 2], "pads": [4, 5, 3, 6]}),
    "channel by channel": (8, 1, 1, [4, 4], [5, 7], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "volumes": (1, 2, 3, [2, 3, 4], [3, 4, 2], {"strides": [2, 2, 2], "pads": [0, 1, 1, 0, 0, 2]}),
    "size times stride": (1, 2, 3, [5, 2], [4, 6], {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    "given sizes": (2, 2, 3, [5, 4], [4, 6], {"strides": [2, 3], "output_shape": [10, 18]}),
}


def model_of(
    groups: int, inner: int, outer: int, kernel: list[int], space: list[int] | None, attrs: dict[str, object]
) -> onnx.ModelProto:
    """relu(ConvTranspose(x) + b); all sizes but the channels are open without `space`."""
    w = RNG.standard_normal((groups * inner, outer, *kernel)).astype(np.float32)
    b = RNG.standard_normal(groups * outer).astype(np.float32)
    held = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    sizes = [2, groups * inner, *space] if space else ["n", groups * inner, *(f"s{i}" for i in range(len(kernel)))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(sizes))
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["t"], group=groups, **attrs),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "image", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def check(model: onnx.ModelProto, channels: int, *spaces: list[int]) -> None:
    program = compile_in_process(import_proto(model, name="image"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for space in spaces:
        x = RNG.standard_normal((2, channels, *space)).astype(np.float32)
        np.testing.assert_allclose(program(x=x)["y"], session.run(None, {"x": x})[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sizes", ["open", pytest.param("known", marks=pytest.mark.slow)])
@pytest.mark.sampled(5, 10)
def test_phases(case: str, sizes: str) -> None:
    groups, inner, outer, kernel, space, attrs = CASES[case]
    model = model_of(groups, inner, outer, kernel, space if sizes == "known" else None, attrs)
    others = [[n + i + 1 for i, n in enumerate(space)]] if sizes == "open" and "output_shape" not in attrs else []
    check(model, groups * inner, space, *others)


def test_everything_is_cut_off() -> None:
    """A result without elements compiles, and has none; onnxruntime refuses to run it."""
    program = compile_in_process(
        import_proto(model_of(1, 2, 3, [3], [3], {"dilations": [3], "pads": [5, 4]}), name="x")
    )
    assert program(x=np.ones((2, 2, 3), np.float32))["y"].shape == (2, 3, 0)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[onnx.ModelProto, int, list[int]]:
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    groups, inner, outer = draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(1, 5)), draw(st.integers(1, 20))
    kernel, strides, dilations, space = each(1, 5), each(1, 4), each(1, 4), each(2, 6)
    extents = [(k - 1) * d for k, d in zip(kernel, dilations)]
    # as much is left as one stride of every axis at least
    rooms = [(n - 1) * s + e for n, s, e in zip(space, strides, extents)]
    pads = [draw(st.integers(0, min(e, r // 2))) for e, r in zip(extents * 2, rooms * 2)]
    attrs = {"strides": strides, "dilations": dilations, "pads": pads}
    attrs["output_padding"] = [draw(st.integers(0, s - 1)) for s in strides]
    is_open = draw(st.booleans())
    return model_of(groups, inner, outer, kernel, None if is_open else space, attrs), groups * inner, space


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn())
def test_any_window(given_: tuple[onnx.ModelProto, int, list[int]]) -> None:
    model, channels, space = given_
    check(model, channels, space)


def test_upsamplers_are_convolutions_with_the_channels_last() -> None:
    """The sums are the rule's for convolutions, and nothing is transposed but the input and the output."""
    held = [numpy_helper.from_array(RNG.standard_normal((8, 8, 4, 4)).astype(np.float32), name) for name in "vw"]
    nodes = [
        helper.make_node("ConvTranspose", ["x", "v"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.1),
        helper.make_node("ConvTranspose", ["b", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, 6, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8, 24, 20])
    graph = helper.make_graph(nodes, "image", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    found = compile_in_process(import_proto(model, name="image")).reports.schedule
    assert found.rules.get("convolution") == 2, found.rules
    names = [f.function for f in found.functions]
    assert sum("transpose" in name for name in names) == 2, names
