"""Loops whose states and rows have sizes that only a run knows, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper

from halo_tvm.errors import InputError
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

NODE = helper.make_node
LIMIT = numpy_helper.from_array(np.array(30, np.float32), "limit")
START = [numpy_helper.from_array(np.ones((1, 3), np.float32), name) for name in ("a0", "b0")]


def value(name: str, kind: int = TensorProto.FLOAT, shape: list | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(body: onnx.GraphProto, inputs: list[str], given: list, held: list) -> onnx.ModelProto:
    """A loop with two results."""
    node = NODE("Loop", inputs, ["y", "z"], body=body)
    graph = helper.make_graph([node], "loop", given, [value("y"), value("z")], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def control(body: list, states: list, results: list) -> onnx.GraphProto:
    given = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), *states]
    return helper.make_graph(body, "body", given, [value("co", TensorProto.BOOL, []), *results])


def summing(shape: list) -> onnx.GraphProto:
    """x is added until the sum reaches the limit; a row of squares each time."""
    steps = [NODE("Add", ["a", "x"], ["ao"]), NODE("ReduceSum", ["ao"], ["s"], keepdims=0)]
    steps += [NODE("Less", ["s", "limit"], ["co"]), NODE("Mul", ["ao", "ao"], ["row"])]
    return control(steps, [value("a", shape=shape)], [value("ao", shape=shape), value("row")])


def check(proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    program = compile_in_process(import_proto(proto, name="loop"))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        for found, expected in zip(program(**feed).values(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [[3], ["n"]], ids=["fixed", "open"])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.sampled(2)
def test_rows_of_a_loop_that_a_condition_ends(shape: list, limited: bool) -> None:
    most = numpy_helper.from_array(np.array(np.iinfo(np.int64).max), "most")
    proto = model(summing(shape), ["most" if limited else "", "", "x"], [value("x", shape=shape)], [LIMIT, most])
    check(proto, [{"x": np.ones(3, np.float32)}])


@pytest.mark.slow
def test_no_limit_at_run_time_is_refused_with_the_number() -> None:
    given = [value("m", TensorProto.INT64, []), value("x", shape=[3])]
    proto = model(summing([3]), ["m", "", "x"], given, [LIMIT])
    x = np.ones(3, np.float32)
    check(proto, [{"m": np.array(m), "x": x} for m in (0, 2, 1 << 10)])
    program = compile_in_process(import_proto(proto, name="loop"))
    with pytest.raises(InputError, match="more than 16777216 iterations for Loop"):
        program(m=np.array(np.iinfo(np.int64).max), x=x)


def test_a_state_takes_on_the_sizes_of_another_one_step_later() -> None:
    steps = [
        NODE("Identity", ["c"], ["co"]),
        NODE("Identity", ["b"], ["ao"]),
        NODE("Concat", ["b", "x"], ["bo"], axis=0),
    ]
    body = control(steps, [value("a"), value("b")], [value("ao"), value("bo")])
    given = [value("m", TensorProto.INT64, []), value("x", shape=[1, 3])]
    x = np.full((1, 3), 2, np.float32)
    check(model(body, ["m", "", "a0", "b0"], given, START), [{"m": np.array(m), "x": x} for m in (0, 1, 2, 5)])
