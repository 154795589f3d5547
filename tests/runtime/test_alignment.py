"""Compiled kernels read inputs wherever NumPy put them; static shapes are where vector loads are widest."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from test_inputs import at_offset

from halo_tvm.cli import main
from halo_tvm.errors import ArtifactCorrupt
from halo_tvm.runtime import Module, load
from halo_tvm.runtime.tensors import numpy_dtype, to_arrays, to_tensor

SHAPE = (16, 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """x -> relu(x), softmax(x), transpose(x)."""
    nodes = [
        helper.make_node("Relu", ["x"], ["relu"]),
        helper.make_node("Softmax", ["x"], ["softmax"], axis=-1),
        helper.make_node("Transpose", ["x"], ["transpose"], perm=[1, 0]),
    ]
    shapes = {"relu": SHAPE, "softmax": SHAPE, "transpose": SHAPE[::-1]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
    )
    directory: Path = tmp_path_factory.mktemp("alignment")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), directory / "m.onnx")
    artifact = directory / "m.halo"
    assert main(["compile", "--model", str(directory / "m.onnx"), "-o", str(artifact), "--no-validate"]) == 0
    return load(artifact)


@pytest.mark.parametrize("offset", [0, 4, 16, 32])
def test_inputs_at_any_address(model: Module, offset: int) -> None:
    x = at_offset(np.random.default_rng(offset).standard_normal(SHAPE).astype("float32"), offset)
    relu, softmax, transpose = model(x)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    np.testing.assert_allclose(softmax, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(transpose, x.T)


def test_a_type_that_nobody_has_is_refused() -> None:
    with pytest.raises(ArtifactCorrupt, match="expected a type of elements that NumPy or ml_dtypes has, found 'x'"):
        numpy_dtype("x")


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "complex64", "bfloat16", "float8_e5m2"])
def test_arrays_behind_a_pickle_are_taken(dtype: str) -> None:
    """As another process sends them; NumPy gives them a type that is equal to its own, and another object."""
    sent = np.arange(6).reshape(2, 3).astype(numpy_dtype(dtype))
    (found,) = to_arrays([to_tensor(pickle.loads(pickle.dumps(sent)))])
    assert found.tobytes() == sent.tobytes()
