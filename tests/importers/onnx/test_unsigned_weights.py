"""The reference of quantised products: unsigned weights stand for the same numbers, and no sum saturates."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from halo_tvm.importers.onnx import OnnxRuntime
from halo_tvm.importers.onnx.unsigned import with_unsigned_weights

RANDOM = np.random.default_rng(0)
SCALE, POINT = np.float32(0.02), np.uint8(7)
MATRIX = RANDOM.integers(-63, 64, (16, 6)).astype(np.int8)  # seven bits: onnxruntime itself is exact everywhere
FILTERS = RANDOM.integers(-63, 64, (6, 4, 3, 3)).astype(np.int8)
GATES = RANDOM.integers(-63, 64, (2, 2, 4, 16)).astype(
    np.int8
)  # of input and state, both directions: [.., size, 4 * 4]
EACH = np.full(6, 0.01, np.float32)
QUANTISED = {"a_scale": SCALE, "a_point": POINT, "scale": SCALE, "y_scale": np.float32(0.3), "y_point": np.uint8(90)}
# operator -> (its inputs, constants of them, example input)
CASES = {
    "MatMulInteger": (["x", "w", "a_point"], {"a_point": POINT, "w": MATRIX}, (5, 16)),
    "ConvInteger": (["x", "w", "a_point"], {"a_point": POINT, "w": FILTERS}, (1, 4, 7, 7)),
    "QLinearMatMul": (
        ["x", "a_scale", "a_point", "w", "scale", "point", "y_scale", "y_point"],
        {**QUANTISED, "w": MATRIX, "point": np.int8(0)},
        (5, 16),
    ),
    "QLinearConv": (
        ["x", "a_scale", "a_point", "w", "scales", "points", "y_scale", "y_point"],
        {**QUANTISED, "w": FILTERS, "scales": EACH, "points": np.zeros(6, np.int8)},
        (1, 4, 7, 7),
    ),
    "DynamicQuantizeMatMul": (
        ["x", "w", "scale", "point"],
        {"w": MATRIX, "scale": SCALE, "point": np.int8(3)},
        (5, 16),
    ),
    "DynamicQuantizeLSTM": (
        ["x", "w", "r", "", "", "", "", "", "scales", "points", "scales", "points"],
        {"w": GATES[:, 0], "r": GATES[:, 1], "scales": EACH[:2], "points": np.zeros(2, np.int8)},
        (3, 2, 4),
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_numbers_are_the_same(kind: str) -> None:
    names, constants, shape = CASES[kind]
    real = kind.startswith("Dynamic")
    x = RANDOM.standard_normal(shape).astype(np.float32) if real else RANDOM.integers(0, 256, shape).astype(np.uint8)
    model = one_node(kind, names, constants, x)
    changed = with_unsigned_weights(model)
    weights = {t.name for t in onnx.load_model_from_string(changed).graph.initializer if t.data_type == T.UINT8}
    assert "w/unsigned" in weights
    np.testing.assert_allclose(computed(changed, x), computed(model, x, as_it_is=True), rtol=1e-6, atol=1e-6)


def test_sums_do_not_saturate() -> None:
    weight = np.full((64, 5), 127, np.int8)
    weight[:, 1::2] = -128
    x = np.full((3, 64), 255, np.uint8)
    found = computed(one_node("MatMulInteger", ["x", "w"], {"w": weight}, x), x)
    assert np.array_equal(found, x.astype(np.int32) @ weight.astype(np.int32))


def test_other_models_stay_as_they_are() -> None:
    model = one_node("MatMulInteger", ["x", "w"], {"w": MATRIX.view(np.uint8)}, np.zeros((5, 16), np.uint8))
    assert with_unsigned_weights(model) is model


def one_node(kind: str, names: list[str], constants: dict[str, object], x: np.ndarray) -> bytes:
    contrib = kind.startswith("Dynamic")
    options = {"hidden_size": 4, "direction": "bidirectional"} if kind == "DynamicQuantizeLSTM" else {}
    node = helper.make_node(kind, names, ["y"], domain="com.microsoft" if contrib else "", **options)
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    result = T.FLOAT if contrib else T.INT32 if kind.endswith("Integer") else T.UINT8
    graph = helper.make_graph([node], "g", [given], [helper.make_tensor_value_info("y", result, None)], kept)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def computed(model: bytes, x: np.ndarray, as_it_is: bool = False) -> np.ndarray:
    return OnnxRuntime(model, "one node", ("y",), rounds=not as_it_is)({"x": x})["y"]
