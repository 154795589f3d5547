"""Kernels as nodes of ONNX, and nodes that stay with the graphs inside them: onnxruntime computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax, te, tirx

from halo_tvm.errors import UnsupportedModel
from halo_tvm.exporters._graph import Spelling
from halo_tvm.exporters.onnx import PLAIN, spelled, write_onnx
from halo_tvm.exporters.optimised import optimised
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.importers.onnx import import_proto
from halo_tvm.params import ParamTable

ort = pytest.importorskip("onnxruntime")
Kernel = Callable[..., te.Tensor]
ZERO = tirx.const(0.0, "float32")


def model_of(kernel: Kernel, places: bool) -> ImportedModel:
    """`kernel` of x [n, 4] and, with `places`, of integers [2, 3]."""
    n, bb = tirx.Var("n", "int64"), relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType((n, 4), "float32"))]
    params += [relax.Var("at", relax.TensorType((2, 3), "int64"))] if places else []
    with bb.function("main", params, attrs={"num_input": len(params)}):
        bb.emit_func_output(bb.emit_te(kernel, *params, primfunc_name_hint="kernel"))
    specs = (InputSpec("x", ("n", 4), "float32"), InputSpec("at", (2, 3), "int64"))[: len(params)]
    return ImportedModel("net", bb.get(), ParamTable({}), specs, ("y",), {"n": (1, 9)}, {}, {"kind": "test"}, {})


def run(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    onnx.checker.check_model(str(path), full_check=True)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def padded(x: te.Tensor) -> te.Tensor:
    def element(i: ir.Expr, j: ir.Expr) -> ir.Expr:
        inside = tirx.all(i >= 2, i < x.shape[0] + 2, j >= 1, j < 5)
        return tirx.if_then_else(inside, x[i - 2, j - 1], tirx.const(7.0, "float32"))

    return te.compute((x.shape[0] + 3, 6), element)


def windows(x: te.Tensor) -> te.Tensor:
    """sum over k, c of x[i + k - 1, c] * (k + 1), of rows that are there"""
    k, c = te.reduce_axis((0, 3), "k"), te.reduce_axis((0, 4), "c")

    def element(i: ir.Expr) -> ir.Expr:
        inside = tirx.all(i + k >= 1, i + k <= x.shape[0])
        product = x[i + k - 1, c] * (k.var + 1).astype("float32")
        return te.sum(tirx.if_then_else(inside, product, ZERO), axis=[k, c])

    return te.compute((x.shape[0],), element)


def two_stages(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 4), "k")
    largest = te.compute((x.shape[0],), lambda i: te.max(x[i, k], axis=k))
    return te.compute(x.shape, lambda i, j: tirx.exp(x[i, j] - largest[i]) / tirx.Cast("float32", i + 1))


def products(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 4), "k")
    return te.compute((x.shape[0], x.shape[0]), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k))


def rows_of(x: np.ndarray) -> np.ndarray:
    wide = np.pad(x, ((1, 1), (0, 0)))
    return sum((wide[k : k + len(x)] * (k + 1)).sum(1) for k in range(3))


KERNELS: dict[str, tuple[Kernel, Callable[..., np.ndarray]]] = {
    "triangle": (
        lambda x: te.compute(x.shape, lambda i, j: tirx.Select(j <= i - 1, x[i, j], ZERO)),
        lambda x: np.tril(x, -1),
    ),
    "padded": (padded, lambda x: np.pad(x, ((2, 1), (1, 1)), constant_values=7)),
    "rolled": (
        lambda x: te.compute(x.shape, lambda i, j: x[tirx.floormod(i - 2, x.shape[0]), 3 - j]),
        lambda x: np.roll(x, 2, 0)[:, ::-1],
    ),
    "rows by places": (
        lambda x, at: te.compute((4, 2, 3), lambda c, a, b: x[at[a, b], c]),
        lambda x, at: np.moveaxis(x[at], -1, 0),
    ),
    "elements by places": (
        lambda x, at: te.compute((2, 3), lambda a, b: x[at[a, b], b]),
        lambda x, at: np.take_along_axis(x[:, :3], at, 0),
    ),
    "windows": (windows, rows_of),
    "two stages": (
        two_stages,
        lambda x: np.exp(x - x.max(1, keepdims=True)) / np.arange(1, len(x) + 1)[:, None],
    ),
    "products": (products, lambda x: x @ x.T),
    "an axis of one": (lambda x: te.compute((4, x.shape[0], 1), lambda i, j, k: x[j, i]), lambda x: x.T[..., None]),
    "quotients below zero": (
        lambda x: te.compute((3,), lambda i: tirx.floordiv(i - 5, 2)),
        lambda x: np.array([-3, -2, -2]),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_written_as_nodes(name: str, tmp_path: Path) -> None:
    kernel, want = KERNELS[name]
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)}
    if "places" in name:
        feeds["at"] = np.array([[1, 0, 4], [2, 2, 3]])
    write_onnx(model_of(kernel, "at" in feeds), tmp_path / "net.onnx", PLAIN)
    np.testing.assert_allclose(run(tmp_path / "net.onnx", feeds), want(*feeds.values()), rtol=1e-5, atol=1e-6)


def test_a_kernel_of_more_than_stores_is_named(tmp_path: Path) -> None:
    def smallest(x: te.Tensor) -> te.Tensor:
        pair = te.comm_reducer(
            lambda a, b: (tirx.min(a[0], b[0]), tirx.max(a[1], b[1])),
            lambda a, b: (tirx.const(9.0, a), tirx.const(-9.0, b)),
        )
        k = te.reduce_axis((0, 4), "k")
        return te.compute((x.shape[0],), lambda i: pair((x[i, k], x[i, k]), axis=k))[0]

    with pytest.raises(UnsupportedModel, match="the kernel kernel, a kernel that does more than to store an element"):
        write_onnx(model_of(smallest, False), tmp_path / "net.onnx", PLAIN)


def proto_of(nodes: list[onnx.NodeProto], opset: int, **weights: np.ndarray) -> onnx.ModelProto:
    """y of x [2, 3, 4, 4]."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    values[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 4])
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def branches() -> list[onnx.NodeProto]:
    """A branch and a loop that read values around them, under names that both use."""
    node, info = helper.make_node, helper.make_tensor_value_info
    outer = [node("Exp", ["x"], ["e"]), node("ReduceSum", ["x"], ["s"], keepdims=0), node("Less", ["s", "zero"], ["c"])]
    then = helper.make_graph([node("Add", ["e", "x"], ["t"])], "then", [], [info("t", 1, None)])
    other = helper.make_graph([node("Mul", ["e", "x"], ["t"])], "else", [], [info("t", 1, None)])
    inside = [node("Identity", ["go"], ["on"]), node("Celu", ["v"], ["r"]), node("Add", ["r", "e"], ["t"])]
    carried = [info("i", 7, []), info("go", 9, []), info("v", 1, None)]
    body = helper.make_graph(inside, "body", carried, [info("on", 9, []), info("t", 1, None)])
    count = [
        node("Sign", ["s"], ["g"]),
        node("Abs", ["g"], ["a"]),
        node("Mul", ["a", "three"], ["m"]),
    ]  # 3, at run time
    loop = [*count, node("Cast", ["m"], ["n"], to=7), node("Loop", ["n", "", "k"], ["y"], body=body)]
    return [*outer, node("If", ["c"], ["k"], then_branch=then, else_branch=other), *loop]


NODES = {
    "branches and loops": (branches(), 18, {"zero": np.float32(0), "three": np.float32(3)}),
    "an operator that is defined otherwise now": (
        [helper.make_node("Resize", ["x", "roi", "by"], ["y"], mode="linear")],
        12,
        {"roi": np.zeros(0, np.float32), "by": np.array([1, 1, 2, 2], np.float32)},
    ),
    "an operator that is gone": (
        [helper.make_node("Upsample", ["x", "by"], ["y"], mode="nearest")],
        9,
        {"by": np.array([1, 1, 2, 2], np.float32)},
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_what_has_no_spelling_of_its_own_comes_back(name: str, tmp_path: Path) -> None:
    nodes, opset, weights = NODES[name]
    proto = proto_of(nodes, opset, **{key: np.asarray(value) for key, value in weights.items()})
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    (want,) = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    model = import_proto(proto, name="net", spelled=spelled(20))
    write_onnx(optimised(model), tmp_path / "net.onnx", Spelling.of("portable", 20))
    np.testing.assert_allclose(run(tmp_path / "net.onnx", {"x": x}), want, rtol=1e-5, atol=1e-6)
