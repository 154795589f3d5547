"""Kernels as nodes of ONNX, and nodes that stay with the graphs inside them: onnxruntime computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax, te, tirx

import halo_tvm
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


def test_operators_of_other_domains_keep_their_version(tmp_path: Path) -> None:
    """Trees of ai.onnx.ml 3, which its later versions have no more."""
    tree = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0]}
    tree |= {"nodes_values": [0.25, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"]}
    tree |= {"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "n_targets": 1}
    tree |= {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [3.0, -2.0]}
    node = helper.make_node("TreeEnsembleRegressor", ["rows"], ["y"], domain="ai.onnx.ml", **tree)
    proto = proto_of([helper.make_node("Reshape", ["x", "to"], ["rows"]), node], 18, to=np.array([-1, 4]))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    (want,) = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    write_onnx(
        optimised(import_proto(proto, name="net", spelled=spelled(20))),
        tmp_path / "net.onnx",
        Spelling.of("portable", 20),
    )
    np.testing.assert_array_equal(run(tmp_path / "net.onnx", {"x": x}), want)


def open_loops() -> onnx.ModelProto:
    """y, rows and z of x [n, 4]: a branch; a loop of n rows; a loop whose state grows. ReduceSum is another later."""
    node, info = helper.make_node, helper.make_tensor_value_info
    total = node("ReduceSum", ["x"], ["s"], keepdims=0)
    own = node("ReduceSum", ["x"], ["t"], axes=[1], keepdims=1)
    other = node("Mul", ["x", "w"], ["t"])
    k = node(
        "If",
        ["c"],
        ["k"],
        **{
            f"{name}_branch": helper.make_graph(
                [inner, node("MatMul", ["x", "m"], ["q"]), node("Add", ["t", "q"], ["r"])],
                name,
                [],
                [info("r", 1, None)],
            )
            for name, inner in (("then", own), ("else", other))
        },
    )
    inside = [
        node("Identity", ["go"], ["on"]),
        node("ReduceSum", ["v"], ["r"], axes=[0], keepdims=0),
        node("Add", ["v", "r"], ["wide"]),
        node("Tanh", ["wide"], ["t"]),
    ]
    carried = [info("i", 7, []), info("go", 9, []), info("v", 1, None)]
    results = [info("on", 9, []), info("t", 1, None), info("r", 1, None)]
    steps = helper.make_graph(inside, "steps", carried, results)
    inside = [
        node("ReduceSum", ["v"], ["r"], axes=[0], keepdims=1),
        node("Concat", ["v", "r"], ["t"], axis=0),
        node("ReduceSum", ["r"], ["size"], keepdims=0),
        node("Less", ["size", "limit"], ["on"]),
    ]
    grows = helper.make_graph(inside, "grows", carried, results[:2])
    nodes = [
        total,
        node("Less", ["s", "zero"], ["c"]),
        k,
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "first"], ["n"]),
        node("Loop", ["n", "", "k"], ["y", "rows"], body=steps),
        node("Abs", ["x"], ["a"]),
        node("Loop", ["", "true", "a"], ["z"], body=grows),
    ]
    held = {
        "zero": np.float32(0),
        "limit": np.float32(50),
        "w": np.arange(4, dtype=np.float32),
        "true": np.array(True),
        "m": np.eye(4, dtype=np.float32) * 0.5,
        "first": np.int64(0),
    }
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    outputs = [info(name, 1, None) for name in ("y", "rows", "z")]
    graph = helper.make_graph(nodes, "net", [info("x", 1, ["n", 4])], outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)


def test_branches_and_loops_of_another_opset_are_graphs_again(tmp_path: Path) -> None:
    proto = open_loops()
    model = optimised(import_proto(proto, name="net", spelled=spelled(20)))
    write_onnx(model, path := tmp_path / "net.onnx", Spelling.of("portable", 20))
    onnx.checker.check_model(str(path), full_check=True)
    engines = [
        ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        for file in (proto.SerializeToString(), str(path))
    ]
    for sign in (1, -1):  # either branch
        x = sign * np.random.default_rng(0).random((3, 4)).astype(np.float32)
        wanted, found = (engine.run(None, {"x": x}) for engine in engines)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert [n.op_type for n in onnx.load(str(path)).graph.node if n.op_type in ("If", "Loop")] == ["If", "Loop", "Loop"]


def test_a_loop_of_another_importer_is_one(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    def net(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jax.numpy.tanh(state @ weight + row) + jax.numpy.sin(state)
            return state, row.sum() + state

        return jax.lax.scan(step, x[0], x)

    weight = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    model = halo_tvm.import_jax(net, weight, ("length, 4", "float32"))
    write_onnx(optimised(model), tmp_path / "net.onnx", PLAIN)
    engine = ort.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    for length in (1, 6):
        x = np.random.default_rng(length).standard_normal((length, 4)).astype(np.float32)
        found = engine.run(None, {model.inputs[0].name: x})
        for got, want in zip(found, net(weight, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_kernel_whose_symbols_are_those_of_main(swapped: bool, tmp_path: Path) -> None:
    """Each variable stands for itself, or for the other one: in the kernel's sense, then in the sense of `main`."""
    n, m = (tirx.Var(name, "int64") for name in ("n", "m"))
    rows, columns = (m, n) if swapped else (n, m)
    x = te.placeholder((rows, columns), "float32", name="x")
    number = te.compute(x.shape, lambda i, j: x[i, j] + tirx.Cast("float32", rows * 10 + columns))
    kernel = te.create_prim_func([x, number])
    bb, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType((n, m), "float32"))
    with bb.function("main", [given], attrs={"num_input": 1}):
        made = relax.call_tir(bb.add_func(kernel, "kernel"), [given], relax.TensorType((n, m), "float32"))
        bb.emit_func_output(bb.emit(made))
    specs = (InputSpec("x", ("n", "m"), "float32"),)
    ranges = {"n": (1, 9), "m": (1, 9)}
    imported = ImportedModel("net", bb.get(), ParamTable({}), specs, ("y",), ranges, {}, {"kind": "test"}, {})
    write_onnx(imported, tmp_path / "net.onnx", PLAIN)
    np.testing.assert_array_equal(run(tmp_path / "net.onnx", {"x": np.zeros((2, 3), "float32")}), np.full((2, 3), 23.0))
