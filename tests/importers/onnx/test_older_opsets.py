"""What operators meant in earlier opsets, of weights and of inputs alike, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)
STATISTICS = [RNG.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4)]
ENDS = [np.array([n], np.int64) for n in (-10, -100, 2, -1)]
SCALES = np.array([1, 1, 0.6, 1.7], np.float32)
REGIONS = np.array([[0, 1, 3, 9, 11]], np.float32)
# operator: opset, operands, those that are constants in every case, attributes
CASES = {
    "Softmax": (11, [X], (), {}),
    "LogSoftmax": (11, [X], (), {"axis": 2}),
    "Hardmax": (11, [X], (), {}),
    "BatchNormalization": (9, [IMAGE, *STATISTICS], (1, 2, 3, 4), {}),
    "LpNormalization": (17, [X], (), {"p": 1}),
    "Slice": (13, [X, *ENDS], (1, 2, 3, 4), {}),
    "Resize": (10, [IMAGE, SCALES], (1,), {}),
    "MaxRoiPool": (11, [IMAGE + np.arange(16, dtype=np.float32).reshape(4, 4), REGIONS], (), {"pooled_shape": [2, 2]}),
}


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("known", [True, False], ids=["weights", "inputs"])
def test_same_as_onnxruntime(op: str, known: bool) -> None:
    opset, operands, constants, attributes = CASES[op]
    if op == "MaxRoiPool":
        attributes = {**attributes, "spatial_scale": 0.5}
    names = [f"x{i}" for i in range(len(operands))]
    held = [numpy_helper.from_array(x, n) for i, (n, x) in enumerate(zip(names, operands)) if known or i in constants]
    feeds = {n: x for i, (n, x) in enumerate(zip(names, operands)) if not known and i not in constants}
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    nodes = [helper.make_node(op, names, ["y"], **attributes), helper.make_node("Add", ["y", "zero"], ["out"])]
    zero = helper.make_tensor_value_info("zero", 1, [1])
    out = helper.make_tensor_value_info("out", 1, None)
    graph = helper.make_graph(nodes, "older", [*given, zero], [out], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = {**feeds, "zero": np.zeros(1, np.float32)}
    (expected,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    found = compile_in_process(import_proto(model, name="older"))(**feeds)["out"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_slopes_of_channels_before_opset_7() -> None:
    """onnxruntime takes no such file any more."""
    x, slope = IMAGE, np.array([0.1, 0.2, 0.3], np.float32)
    x = np.concatenate([x, x], axis=3)[..., :3]  # as wide as there are channels
    given = helper.make_tensor_value_info("x", 1, x.shape)
    out = helper.make_tensor_value_info("y", 1, x.shape)
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    graph = helper.make_graph([node], "slopes", [given], [out], [numpy_helper.from_array(slope, "slope")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    found = compile_in_process(import_proto(model, name="slopes"))(x=x)["y"]
    np.testing.assert_array_equal(found, np.where(x < 0, x * slope[:, None, None], x))
