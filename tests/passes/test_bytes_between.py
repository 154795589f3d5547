"""Two quantised products that are added up: what the first of them writes, and the other reads, are bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process


def block(stride: int, shortcut_first: bool) -> onnx.ModelProto:
    """y = q(main(x) + shortcut(x)) as quantisers write it: rounded behind each convolution, and restored."""
    rng = np.random.default_rng(0)
    held: dict[str, np.ndarray] = {"s": np.float32(0.02), "z": np.uint8(128), "o": np.float32(0.037), "wz": np.int8(0)}
    steps = [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xd"])]

    def convolution(name: str, source: str, channels: int, step: int) -> list[onnx.NodeProto]:
        held[f"{name}w"] = rng.integers(-128, 128, (48, channels, 1, 1)).astype("int8")
        held[f"{name}ws"] = np.float32(0.0007)
        held[f"{name}s"] = np.float32(0.011 * (1 + len(name)))
        return [
            helper.make_node("DequantizeLinear", [f"{name}w", f"{name}ws", "wz"], [f"{name}wd"]),
            helper.make_node("Conv", [source, f"{name}wd"], [f"{name}y"], strides=[step, step]),
            helper.make_node("QuantizeLinear", [f"{name}y", f"{name}s", "z"], [f"{name}q"]),
            helper.make_node("DequantizeLinear", [f"{name}q", f"{name}s", "z"], [f"{name}d"]),
        ]

    main = convolution("a", "xd", 32, stride) + convolution("main", "ad", 48, 1)
    shortcut = convolution("cut", "xd", 32, stride)
    steps += shortcut + main if shortcut_first else main + shortcut
    steps += [
        helper.make_node("Add", ["maind", "cutd"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "o", "z"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.UINT8, [1, c, "h", "w"]) for n, c in (("x", 32), ("y", 48))]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    graph = helper.make_graph(steps, "block", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shortcut_first", [True, False])
@pytest.mark.sampled(1, 2)
def test_no_product_writes_floats(stride: int, shortcut_first: bool) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = block(stride, shortcut_first)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    program = compile_in_process(import_proto(model, name="block"))
    x = np.random.default_rng(1).integers(0, 256, (1, 32, 10, 12)).astype("uint8")
    (wanted,) = session.run(None, {"x": x})
    found = program(x=x)["y"]
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert np.mean(found != wanted) < 0.01
    functions = [f.function for f in program.reports.schedule.functions]
    products = [name for name in functions if "integer" in name]
    assert len(products) == 3
    assert all(name.rstrip("0123456789").endswith("round_to_grid") for name in products), products
