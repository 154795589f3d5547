"""Convolution, pooling and resizing with symbolic batch, height and width, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halo_tvm.errors import InputError, UnsupportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


ROIS = numpy_helper.from_array(np.array([[1, 2, 9, 5], [0, -3, 4, 12], [3, 3, 3, 3]], np.float32), "rois")
CASES = {
    "conv-strided": ("Conv", [weight("w", 6, 4, 3, 3), weight("b", 6)], {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "conv-1x1": ("Conv", [weight("w", 5, 4, 1, 1)], {}),
    "conv-depthwise": ("Conv", [weight("w", 4, 1, 3, 3)], {"group": 4, "pads": [1, 1, 1, 1]}),
    "conv-same": ("Conv", [weight("w", 3, 4, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "conv-transposed": ("ConvTranspose", [weight("w", 4, 3, 3, 3)], {"strides": [2, 2], "output_padding": [1, 0]}),
    "max-pool": ("MaxPool", [], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    "max-pool-same": ("MaxPool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "average-pool": ("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    "lrn": ("LRN", [], {"size": 3}),
    # as many samples as a bin has pixels, which only a run knows
    "roi-align": ("RoiAlign", [ROIS, numpy_helper.from_array(np.zeros(3, int), "i")], {"output_height": 3}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(3, 6)
def test_symbolic_sizes(case: str) -> None:
    op, weights, attrs = CASES[case]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, "h", "w_"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    node = helper.make_node(op, ["x", *(w.name for w in weights)], ["y"], **attrs)
    graph = helper.make_graph([node], "image", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    program = compile_in_process(import_proto(model, name="image"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((2, 4, 9, 11), (1, 4, 16, 8), (3, 4, 7, 7)):
        data = RNG.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(program(x=data)["y"], session.run(None, {"x": data})[0], rtol=1e-4, atol=1e-5)


def pooled(op: str, space: tuple[int | str, ...], **attrs: object) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, *space])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attrs)], "image", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 0), (5, 4, 1)])
@pytest.mark.sampled(2)
def test_a_window_beyond_the_end_of_a_small_image(op: str, kernel: int, stride: int, pad: int) -> None:
    """With ceil_mode it may be the only one: it sees what there is, of open sizes as of fixed ones."""
    attrs = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": 1}
    model = pooled(op, ("h", "w"), **attrs)
    program = compile_in_process(import_proto(model, name="image"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    least = max(1, kernel - 2 * pad - stride + 1)
    for h, w in ((least, least), (least, 5), (4, least), (7, 6)):
        data = RNG.standard_normal((1, 2, h, w)).astype(np.float32)
        wanted = session.run(None, {"x": data})[0]
        np.testing.assert_allclose(program(x=data)["y"], wanted, rtol=1e-5)
        if h == least == w:
            fixed = compile_in_process(import_proto(pooled(op, (h, w), **attrs), name="image"))
            np.testing.assert_allclose(fixed(x=data)["y"], wanted, rtol=1e-5)
    if least > 1:  # onnxruntime has no elements left, torch refuses
        with pytest.raises(InputError, match="sizes do not fit each other"):
            program(x=np.ones((1, 2, least - 1, 7), np.float32))
        with pytest.raises(UnsupportedModel, match=f"an image under a window of {kernel} x {kernel} of size at least"):
            import_proto(pooled(op, (least - 1, 7), **attrs), name="image")


@pytest.mark.slow
def test_layers_between_convolutions_keep_the_channels_last() -> None:
    """Slopes, gates, padding, slices, resizing, pooling of padded sizes and softmax over channels: no transposition."""
    nodes = [
        ("Conv", ["x", "w"], "a", {"pads": [1, 1, 1, 1]}),
        ("PRelu", ["a", "slope"], "b", {}),
        ("MaxPool", ["b"], "c", {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("Pad", ["c", "around"], "d", {}),
        ("Slice", ["d", "begin", "end", "axes"], "e", {}),
        ("Resize", ["e", "", "twice"], "f", {"mode": "nearest"}),
        ("GlobalAveragePool", ["f"], "g", {}),
        ("HardSigmoid", ["g"], "h", {}),
        ("Mul", ["f", "h"], "i", {}),
        ("Conv", ["i", "v"], "j", {}),
        ("Softmax", ["j"], "y", {"axis": 1}),
    ]
    held = [weight("w", 6, 4, 3, 3), weight("slope", 6, 1, 1), weight("v", 5, 6, 2, 2)]
    numbers = {"around": [0, 0, 1, 0, 0, 0, 0, 2], "begin": [1, 0], "end": [9999, 9999], "axes": [2, 3]}
    held += [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items()]
    held.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "twice"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, "h", "w_"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    steps = [helper.make_node(op, ins, [out], **attrs) for op, ins, out, attrs in nodes]
    graph = helper.make_graph(steps, "image", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    program = compile_in_process(import_proto(model, name="image"))
    functions = [f.function for f in program.reports.schedule.functions]
    assert sum("transpose" in name for name in functions) == 2, functions  # of the input and of the output
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((2, 4, 9, 11), (1, 4, 16, 8)):
        data = RNG.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(program(x=data)["y"], session.run(None, {"x": data})[0], rtol=1e-4, atol=1e-5)
