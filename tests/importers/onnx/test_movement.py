"""ONNX operators that move data, with symbolic sizes and with bounds known at run time only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

X = np.arange(12, dtype=np.float32).reshape(3, 4)
KEEP = np.array([True, False, True])
FLOATS = ("x", T.FLOAT, ["n", 4])


def run(
    node: onnx.NodeProto, inputs: Sequence[tuple[str, int, list]], dtype: int, values: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The first output of a model of one node."""
    infos = [helper.make_tensor_value_info(*i) for i in inputs]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", dtype, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return compile_in_process(import_proto(model, name="t"), threads=1)(**values)["y"]


def _scalars(dtype: int) -> list[tuple[str, int, list]]:
    return [(name, dtype, []) for name in "abc"]


CASES = {
    "range-float": (
        helper.make_node("Range", ["a", "b", "c"], ["y"]),
        _scalars(T.FLOAT),
        T.FLOAT,
        dict(zip("abc", np.array([1, 5, 2], np.float32))),
        np.array([1, 3], np.float32),
    ),
    "range-down": (
        helper.make_node("Range", ["a", "b", "c"], ["y"]),
        _scalars(T.INT32),
        T.INT32,
        dict(zip("abc", np.array([10, 6, -3], np.int32))),
        np.array([10, 7], np.int32),
    ),
    "concat-of-two-symbols": (
        helper.make_node("Concat", ["x", "z"], ["y"], axis=1),
        [FLOATS, ("z", T.FLOAT, ["m", 2])],
        T.FLOAT,
        {"x": X, "z": X[:, :2]},
        np.concatenate([X, X[:, :2]], 1),
    ),
    "slice-at-run-time": (
        helper.make_node("Slice", ["x", "s", "e", "", "p"], ["y"]),
        [FLOATS, *((name, T.INT64, [2]) for name in "sep")],
        T.FLOAT,
        {"x": X, "s": np.array([-1, -9]), "e": np.array([-9, 99]), "p": np.array([-2, 1])},
        X[::-2],
    ),
    "gather-negative": (
        helper.make_node("Gather", ["x", "i"], ["y"], axis=0),
        [FLOATS, ("i", T.INT64, ["k"])],
        T.FLOAT,
        {"x": X, "i": np.array([-1, 0, -3])},
        X[[-1, 0, -3]],
    ),
    "compress": (
        helper.make_node("Compress", ["x", "c"], ["y"], axis=0),
        [FLOATS, ("c", T.BOOL, ["k"])],
        T.FLOAT,
        {"x": X, "c": KEEP},
        X[KEEP],
    ),
    "nonzero": (helper.make_node("NonZero", ["x"], ["y"]), [FLOATS], T.INT64, {"x": X}, np.array(np.nonzero(X))),
}


@pytest.mark.parametrize("name", CASES)
def test_matches_numpy(name: str) -> None:
    node, inputs, dtype, values, wanted = CASES[name]
    found = run(node, inputs, dtype, values)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("op", "names", "axis"),
    [("GatherElements", "xi", 5), ("Gather", "xi", 2), ("Concat", "xx", -3), ("LayerNormalization", "xx", 7)],
)
def test_an_axis_that_a_tensor_has_not_is_refused(op: str, names: str, axis: int) -> None:
    node = helper.make_node(op, list(names), ["y"], axis=axis)
    with pytest.raises(UnsupportedModel, match=f"expected an axis from -2 to 1, found {axis}"):
        run(node, [FLOATS, ("i", T.INT64, ["n", 4])], T.FLOAT, {})


def test_code_of_a_scatter_is_generated_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM writes its own to stderr, below Python."""
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add")
    inputs = [("x", T.FLOAT, [4, "n"]), ("i", T.INT64, [2, 1]), ("u", T.FLOAT, [2, "n"])]
    infos = [helper.make_tensor_value_info(*item) for item in inputs]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", T.FLOAT, [4, "n"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    program = compile_in_process(import_proto(model, name="g"))
    y = program(np.zeros((4, 3), np.float32), np.array([[1], [1]]), np.ones((2, 3), np.float32))["y"]
    assert y[1].tolist() == [2, 2, 2] and y.sum() == 6
    assert "pragma" not in capfd.readouterr().err
