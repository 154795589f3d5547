"""Running sums and products along every axis, on tasks and alone, equal to NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

SHAPES = {"vectors of several tasks": (2, 5, 96), "vectors of one": (3, 7, 33), "a row": (11,)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.sampled(8, 16)
def test_running_sums(shape: tuple[int, ...], exclusive: int, reverse: int, is_open: bool) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    sizes = [f"d{a}" for a in range(len(shape))] if is_open else list(shape)
    names = [f"y{axis}" for axis in range(len(shape))]
    how = {"exclusive": exclusive, "reverse": reverse}
    nodes = [helper.make_node("CumSum", ["x", f"a{axis}"], [name], **how) for axis, name in enumerate(names)]
    axes = [helper.make_tensor(f"a{axis}", TensorProto.INT64, [], [axis]) for axis in range(len(shape))]
    info = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in ("x", *names)}
    graph = helper.make_graph(nodes, "g", [info["x"]], [info[name] for name in names], axes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=9)
    found = compile_in_process(import_proto(model, name="scan"))(x=x)
    for axis, name in enumerate(names):
        given = np.flip(x, axis) if reverse else x
        wanted = np.cumsum(given, axis, dtype="float64")
        wanted = wanted - given if exclusive else wanted
        np.testing.assert_allclose(found[name], np.flip(wanted, axis) if reverse else wanted, rtol=1e-5, atol=1e-5)
