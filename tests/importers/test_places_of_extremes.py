"""Where the extremes of rows are: the first or the last of equal ones, a NaN before all, as in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("kind", ["ties", "nan", "infinities", "int8"])
@pytest.mark.sampled(5, 10)
def test_places(op: str, last: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, (5, 70, 33)).astype("int8" if kind == "int8" else "float32")
    if kind == "nan":
        x[rng.random(x.shape) < 0.03] = np.nan
    if kind == "infinities":
        x[1:3] = np.inf if op == "ArgMin" else -np.inf
    types = {"int8": TensorProto.INT8, "float32": TensorProto.FLOAT}
    nodes = [helper.make_node(op, ["x"], [f"y{a}"], axis=a, keepdims=0, select_last_index=last) for a in range(3)]
    outputs = [helper.make_tensor_value_info(f"y{a}", TensorProto.INT64, None) for a in range(3)]
    info = helper.make_tensor_value_info("x", types[x.dtype.name], [5, "n", 33])
    graph = helper.make_graph(nodes, "g", [info], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    found = compile_in_process(import_proto(model, name="places"))(x=x)
    numpy_place = np.argmax if op == "ArgMax" else np.argmin
    for axis in range(3):
        wanted = numpy_place(np.flip(x, axis) if last else x, axis)
        np.testing.assert_array_equal(found[f"y{axis}"], x.shape[axis] - 1 - wanted if last else wanted)
