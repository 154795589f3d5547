"""Interpolated images: one kernel where channels lie last, the axes apart where they do not, nothing dear repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import Program, compile_in_process


def made(nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str], held: dict[str, np.ndarray]) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph(list(nodes), "images", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") / 4


def resize(x: str, y: str, **attributes: object) -> onnx.NodeProto:
    given = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", **attributes}
    return helper.make_node("Resize", [x, "", "scales"], [y], **given)


def checked(model: onnx.ModelProto, *shapes: Sequence[int]) -> Program:
    """The program of `model`, which computes what onnxruntime does."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    program = compile_in_process(import_proto(model, name="images"))
    for shape in shapes:
        x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype("float32")
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(program(x=x)["y"], wanted, rtol=1e-5, atol=1e-5)
    return program


def kernels(program: Program) -> dict[str, str]:
    """Function -> the rule that serves it."""
    return {f.function: f.rule for f in program.reports.schedule.functions}


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("space", [(9, 20), ("h", "w")])
@pytest.mark.sampled(1)
def test_channels_lie_last_from_one_convolution_to_the_next(mode: str, space: tuple[int | str, ...]) -> None:
    scales = np.float32([1, 1, 2, 1.5])
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], pads=[1] * 4),
        resize("c", "r", mode=mode),
        helper.make_node("Conv", ["r", "b"], ["y"], pads=[1] * 4),
    ]
    held = {"a": weights(24, 3, 3, 3), "b": weights(8, 24, 3, 3), "scales": scales}
    found = kernels(checked(made(nodes, (1, 3, *space), held), (1, 3, 9, 20)))
    resized = [name for name in found if "resize" in name and "table" not in name]
    assert len(resized) == 1 and resized[0].count("resize") == 2 and found[resized[0]] == "elementwise"
    assert sum("transpose" in name for name in found) <= 2  # of the input and of the output


@pytest.mark.parametrize("attributes", [{"antialias": 1}, {"mode": "cubic", "exclude_outside": 1}])
def test_shares_are_brought_to_one_where_sizes_are_open(attributes: dict[str, object]) -> None:
    scales = np.float32([1, 1, 0.5, 1.5])
    checked(made([resize("x", "y", **attributes)], (1, 3, "h", "w"), {"scales": scales}), (1, 3, 20, 30), (1, 3, 9, 7))


def test_antialiasing_takes_as_many_neighbours_as_the_sizes_of_a_run_say() -> None:
    """Positions of a transformer are resized so, to the number of patches that an image has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["given"]),
        helper.make_node("Add", ["given", "more"], ["most"]),
        helper.make_node("Div", ["most", "parts"], ["sizes"]),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", antialias=1),
    ]
    held = {"more": np.int64([0, 0, 30, 1]), "parts": np.int64([1, 1, 2, 3])}
    checked(made(nodes, (1, 3, "h", "w"), held), (1, 3, 20, 30), (1, 3, 9, 98), (1, 3, 70, 2))


def test_an_image_of_rows_is_no_transposition() -> None:
    """Rows of tokens, transposed and reshaped into an image as transformers do, are its places with channels last."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["t"]),
        helper.make_node("Transpose", ["t"], ["u"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["u", "image"], ["i"]),
        resize("i", "r"),
        helper.make_node("Conv", ["r", "b"], ["c"], pads=[1] * 4),
        helper.make_node("ReduceMean", ["c", "axes"], ["y"], keepdims=0),
    ]
    held = {"a": weights(12, 20), "image": np.int64([1, 20, 6, 8]), "scales": np.float32([1, 1, 2, 2])}
    held |= {"b": weights(8, 20, 3, 3), "axes": np.int64([2, 3])}
    found = kernels(checked(made(nodes, (1, 48, 12), held), (1, 48, 12)))
    assert not [name for name in found if "transpose" in name], found


@pytest.mark.parametrize(("function", "apart"), [("Div", True), ("Sub", False)])
def test_only_what_is_cheap_is_computed_where_it_is_read_often(function: str, apart: bool) -> None:
    nodes = [helper.make_node(function, ["d", "x"], ["f"]), resize("f", "y")]
    held = {"d": weights(3, 1, 1), "scales": np.float32([1, 1, 2, 2])}
    found = kernels(checked(made(nodes, (2, 3, 10, 12), held), (2, 3, 10, 12)))
    assert any("resize" not in name for name in found) == apart, found
    # The innermost axis is gathered: it is one kernel, the other axis is another.
    assert not any(name.count("resize") > 1 for name in found), found


def test_one_channel_is_as_many_vectors_as_its_places() -> None:
    """Maps of one channel, as side outputs have, interpolated and put beside each other."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"]),
        resize("c", "r"),
        helper.make_node("Conv", ["x", "b"], ["d"]),
        resize("d", "s"),
        helper.make_node("Concat", ["r", "s"], ["t"], axis=1),
        helper.make_node("Conv", ["t", "e"], ["y"]),
    ]
    held = {"a": weights(1, 6, 1, 1), "b": weights(1, 6, 1, 1), "e": weights(1, 2, 1, 1)}
    held["scales"] = np.float32([1, 1, 4, 4])
    found = kernels(checked(made(nodes, (1, 6, 12, 16), held), (1, 6, 12, 16)))
    assert "fallback" not in found.values(), found
