"""Sizes of several inputs that must fit each other: refused at import where known, else when the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

TYPES = {np.dtype("float32"): T.FLOAT, np.dtype("int64"): T.INT64, np.dtype("int32"): T.INT32, np.dtype("bool"): T.BOOL}
NAMES = "abcd"
MISFIT = "(?i)match|shape|size|dim"


def built(node: onnx.NodeProto, shapes: Sequence[Sequence[int | str]], values: Sequence[np.ndarray]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, TYPES[v.dtype], list(s)) for n, s, v in zip(NAMES, shapes, values)]
    kinds = {"NonMaxSuppression": T.INT64}
    outs = [
        helper.make_tensor_value_info(n, T.INT64 if place else kinds.get(node.op_type, T.FLOAT), None)
        for place, n in enumerate(node.output)
    ]
    graph = helper.make_graph([node], "g", infos, outs)
    version = 24 if node.op_type == "TensorScatter" else 20
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def compiled(node: onnx.NodeProto, shapes: Sequence, values: Sequence[np.ndarray]) -> Callable:
    return compile_in_process(import_proto(built(node, shapes, values), name="t"), threads=1)


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def i(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def node(op: str, count: int, outputs: str = "y", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, list(NAMES[:count]), list(outputs), **attrs)


SCAN = helper.make_graph(
    [helper.make_node("Add", ["p", "q"], ["r"])],
    "body",
    [helper.make_tensor_value_info(n, T.FLOAT, [2]) for n in "pq"],
    [helper.make_tensor_value_info("r", T.FLOAT, [2])],
)
LSTM = helper.make_node("LSTM", ["a", "b", "c", "", "", "d"], ["y"], hidden_size=2)

# Node, symbolic shapes, inputs that fit, inputs that do not.
CASES = {
    "scatter-updates": (
        node("ScatterElements", 3),
        [[4], ["k"], ["u"]],
        [f(4), i(3), f(3)],
        [f(4), i(4), f(1)],
    ),
    "scatter-wide": (
        node("ScatterElements", 3),
        [["n", "m"], ["k", "j"], ["k", "j"]],
        [f(4, 3), i(2, 2), f(2, 2)],
        [f(4, 2), i(2, 3), f(2, 3)],
    ),
    "scatter-nd": (
        node("ScatterND", 3),
        [["n", "m"], ["k", 1], ["u", "v"]],
        [f(4, 3), i(2, 1), f(2, 3)],
        [f(4, 3), i(2, 1), f(1, 3)],
    ),
    "tensor-scatter": (
        node("TensorScatter", 3),
        [["b", 2, 4, 3], ["b", "h", 1, 3], ["c"]],
        [f(2, 2, 4, 3), f(2, 2, 1, 3), i(2)],
        [f(2, 2, 4, 3), f(2, 1, 1, 3), i(2)],
    ),
    "vectors": (node("MatMul", 2), [["n"], ["m"]], [f(3), f(3)], [f(3), f(2)]),
    "matrices": (node("MatMul", 2), [[2, "n"], ["m", 3]], [f(2, 4), f(4, 3)], [f(2, 400), f(4, 3)]),
    "einsum": (
        node("Einsum", 2, equation="ij,jk->ik"),
        [[2, "n"], ["m", 3]],
        [f(2, 4), f(4, 3)],
        [f(2, 9), f(4, 3)],
    ),
    "einsum-sum": (
        node("Einsum", 2, equation="ij,jk->i"),
        [[2, "n"], ["m", 3]],
        [f(2, 4), f(4, 3)],
        [f(2, 9), f(4, 3)],
    ),
    "gather-elements": (
        node("GatherElements", 2),
        [["n", "m"], ["k", "j"]],
        [f(4, 3), i(5, 3)],
        [f(4, 3), i(2, 5)],
    ),
    "gather-nd": (
        node("GatherND", 2, batch_dims=1),
        [["n", 3], ["b", 1]],
        [f(4, 3), i(4, 1)],
        [f(2, 3), i(4, 1)],
    ),
    "reverse": (
        node("ReverseSequence", 2, time_axis=0, batch_axis=1),
        [[3, "n"], ["b"]],
        [f(3, 4), i(4) + 1],
        [f(3, 4), i(2)],
    ),
    "lstm-state": (
        LSTM,
        [[3, "n", 2], [1, 8, 2], [1, 8, 2], [1, "m", 2]],
        [f(3, 2, 2), f(1, 8, 2), f(1, 8, 2), f(1, 2, 2)],
        [f(3, 4, 2), f(1, 8, 2), f(1, 8, 2), f(1, 2, 2)],
    ),
    "lstm-rows": (  # the weight's width is known, that of the rows is not
        LSTM,
        [[3, 2, "n"], [1, 8, 2], [1, 8, 2], [1, 2, 2]],
        [f(3, 2, 2), f(1, 8, 2), f(1, 8, 2), f(1, 2, 2)],
        [f(3, 2, 4), f(1, 8, 2), f(1, 8, 2), f(1, 2, 2)],
    ),
    "boxes": (
        node("NonMaxSuppression", 3),
        [[1, "n", 4], [1, 1, "m"], [1]],
        [f(1, 3, 4), f(1, 1, 3), i(1)],
        [f(1, 2, 4), f(1, 1, 30), i(1)],
    ),
    "grid": (
        node("GridSample", 2),
        [["n", 1, 3, 3], ["m", 2, 2, 2]],
        [f(2, 1, 3, 3), f(2, 2, 2, 2)],
        [f(2, 1, 3, 3), f(4, 2, 2, 2)],
    ),
    "scan": (
        node("Scan", 2, body=SCAN, num_scan_inputs=2),
        [["n", 2], ["m", 2]],
        [f(3, 2), f(3, 2)],
        [f(9, 2), f(3, 2)],
    ),
    "unpool": (
        node("MaxUnpool", 2, kernel_shape=[2], strides=[2]),
        [[1, 1, "n"], [1, 1, "m"]],
        [f(1, 1, 3), i(1, 1, 3)],
        [f(1, 1, 3), i(1, 1, 2)],
    ),
    "conv": (node("Conv", 2), [[1, 1, "n"], [1, 1, 3]], [f(1, 1, 4), f(1, 1, 3)], [f(1, 1, 2), f(1, 1, 3)]),
    "depth": (node("DepthToSpace", 1, blocksize=2), [[1, "c", 2, 2]], [f(1, 8, 2, 2)], [f(1, 6, 2, 2)]),
    "top-k": (node("TopK", 2, "yz"), [["n"], [1]], [f(4), i(1) + 3], [f(2), i(1) + 3]),
}
ZEROS_AND_ONES = ("boxes", "unpool", "tensor-scatter")  # which of equal elements wins is nobody's business here


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(4)
def test_a_run_whose_sizes_do_not_fit_is_refused(case: str) -> None:
    proto, shapes, good, bad = CASES[case]
    model = compiled(proto, shapes, good)
    found = model(**dict(zip(NAMES, good)))["y"]
    if case not in ZEROS_AND_ONES:
        expected = ReferenceEvaluator(built(proto, shapes, good)).run(None, dict(zip(NAMES, good)))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match=MISFIT):
        model(**dict(zip(NAMES, bad)))


@pytest.mark.parametrize("case", [c for c in CASES if c != "top-k"])  # its k is known at run time only
def test_sizes_known_not_to_fit_are_refused_at_import(case: str) -> None:
    proto, _, _, bad = CASES[case]
    with pytest.raises(UnsupportedModel, match="expected|fit"):
        import_proto(built(proto, [v.shape for v in bad], bad), name="t")


def test_unpooling_to_places_outside_writes_nothing() -> None:
    values = [f(1, 1, 3), np.array([[[1, 10**7, 2]]])]
    model = compiled(node("MaxUnpool", 2, kernel_shape=[2], strides=[2]), [v.shape for v in values], values)
    np.testing.assert_array_equal(model(a=values[0], b=values[1])["y"], [[[0, 1, 1, 0, 0, 0]]])


@pytest.mark.parametrize("columns", [4, "n"])
def test_columns_that_do_not_fill_the_image(columns: int | str) -> None:
    proto = helper.make_node("Col2Im", ["a", "s", "t"], ["y"])
    sizes = [helper.make_tensor(n, T.INT64, [2], v) for n, v in (("s", [4, 4]), ("t", [2, 2]))]
    model = built(proto, [[1, 4, columns]], [f(1, 4, 9)])
    model.graph.initializer.extend(sizes)
    if columns == 4:
        with pytest.raises(UnsupportedModel, match="expected columns of size 9"):
            import_proto(model, name="t")
        return
    run = compile_in_process(import_proto(model, name="t"), threads=1)
    assert run(a=f(1, 4, 9))["y"].sum() == 36
    with pytest.raises(Exception, match=MISFIT):
        run(a=f(1, 4, 4))


@pytest.mark.parametrize("length", [6, "k"])
def test_a_condition_longer_than_the_axis_is_cut(length: int | str) -> None:
    values = [np.arange(4, dtype=np.float32), np.array([True, False, True, False, True, True])]
    found = compiled(node("Compress", 2, axis=0), [[4], [length]], values)(a=values[0], b=values[1])["y"]
    np.testing.assert_array_equal(found, [0, 2])


@pytest.mark.parametrize("largest", [0, 1])
def test_what_is_not_a_number_is_the_largest(largest: int) -> None:
    x = np.array([1, np.nan, 3, -np.inf, np.nan, 2], np.float32)
    found = compiled(node("TopK", 2, "yz", largest=largest), [[6], [1]], [x, i(1)])(a=x, b=i(1) + 6)["z"]
    assert found.tolist() == ([1, 4, 2, 5, 0, 3] if largest else [3, 0, 5, 2, 1, 4])


def of_microsoft(node: onnx.NodeProto, inputs: dict) -> Callable:
    """`node` compiled; inputs: name -> (shape, element type)."""
    node.domain = "com.microsoft"
    infos = [helper.make_tensor_value_info(n, dtype, shape) for n, (shape, dtype) in inputs.items()]
    outs = [helper.make_tensor_value_info(n, T.FLOAT, None) for n in node.output]
    graph = helper.make_graph([node], "g", infos, outs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return compile_in_process(import_proto(helper.make_model(graph, opset_imports=opsets), name="t"), threads=1)


def test_one_length_per_row_of_keys() -> None:
    names = ["q", "k", "v", "", "mask"]
    run = of_microsoft(
        helper.make_node("MultiHeadAttention", names, ["y"], num_heads=2),
        {**{n: (["b", 3, 16], T.FLOAT) for n in "qkv"}, "mask": (["m"], T.INT32)},
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float32)
    found = run(q=x, k=x, v=x, mask=np.array([1, 1], np.int32))["y"]
    np.testing.assert_allclose(found, np.repeat(x[:, :1], 3, 1), rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match=MISFIT):
        run(q=x, k=x, v=x, mask=np.array([1], np.int32))


@pytest.mark.parametrize("past, width", [(3, 4), (8, 8)])
def test_a_cache_as_wide_as_the_old_one_or_as_the_total(past: int, width: int) -> None:
    names = ["q", "k", "v", "pk", "pv", "lengths", "total"]
    run = of_microsoft(
        helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], num_heads=2, kv_num_heads=2),
        {
            **{n: ([1, 1, 16], T.FLOAT) for n in "qkv"},
            **{n: ([1, 2, "p", 8], T.FLOAT) for n in ("pk", "pv")},
            "lengths": (["b"], T.INT32),
            "total": ([], T.INT32),
        },
    )
    x, old = np.full((1, 1, 16), 2, np.float32), f(1, 2, past, 8)
    feeds = {"q": x, "k": x, "v": x, "pk": old, "pv": old, "total": np.array(4, np.int32)}
    found = run(**feeds, lengths=np.array([3], np.int32))
    assert found["nk"].shape == (1, 2, width, 8)
    assert found["nk"][0, 0, :4, 0].tolist() == [1, 1, 1, 2]
    np.testing.assert_allclose(found["y"][0, -1].max(), found["y"][0, -1].min(), rtol=1e-5)
    with pytest.raises(Exception, match=MISFIT):
        run(**feeds, lengths=np.array([3, 3], np.int32))


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "ConvTranspose"])
@pytest.mark.parametrize("pads", [[0, 0], [1, 1]])
@pytest.mark.sampled(2)
def test_windows_over_symbolic_sizes(op: str, pads: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 7)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((2, 2, 3)).astype(np.float32)
    values = [x] if op == "MaxPool" else [x, w]
    proto = node(op, len(values), kernel_shape=[3], pads=pads, strides=[2])
    shapes = [["b", 2, "n"], [2, 2, 3]][: len(values)]
    found = compiled(proto, shapes, values)(**dict(zip(NAMES, values)))["y"]
    wanted = ReferenceEvaluator(built(proto, shapes, values)).run(None, dict(zip(NAMES, values)))[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float64"])
def test_the_largest_of_windows_with_padding(dtype: str) -> None:
    x = np.arange(-3, 6).astype(dtype).reshape(1, 1, 3, 3)
    proto = node("MaxPool", 1, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    infos = [helper.make_tensor_value_info(n, kind, d) for n, d in (("a", x.shape), ("y", None))]
    graph = helper.make_graph([proto], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    found = compile_in_process(import_proto(model, name="t"), threads=1)(a=x)["y"]
    wanted = [[x[0, 0, max(r - 1, 0) : r + 1, max(c - 1, 0) : c + 1].max() for c in range(3)] for r in range(3)]
    np.testing.assert_array_equal(found, np.array(wanted, dtype)[None, None])


def test_a_window_of_nothing_but_minus_infinity() -> None:
    x = np.array([[[-np.inf, -np.inf, -np.inf, 1]]], np.float32)
    found = compiled(node("MaxPool", 1, kernel_shape=[2], strides=[2]), [x.shape], [x])(a=x)["y"]
    np.testing.assert_array_equal(found, [[[-np.inf, 1]]])


def test_a_kernel_inside_a_loop_takes_a_size_as_a_number():
    """The index of a loop of unknown length counts down from a size, as in layers that run backwards."""
    body = helper.make_graph(
        [
            helper.make_node("Sub", ["last", "i"], ["at"]),
            helper.make_node("Gather", ["x", "at"], ["row"], axis=0),
            helper.make_node("Add", ["total", "row"], ["more"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
            helper.make_node("Identity", ["more"], ["sums"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", T.INT64, []),
            helper.make_tensor_value_info("going", T.BOOL, []),
            helper.make_tensor_value_info("total", T.FLOAT, [4]),
        ],
        [onnx.ValueInfoProto(name=name) for name in ("goes_on", "more", "sums")],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["sizes"], end=1),
            helper.make_node("Squeeze", ["sizes"], ["s"]),
            helper.make_node("Sub", ["s", "one"], ["last"]),
            helper.make_node("Loop", ["s", "", "zero"], ["y", "rows"], body=body),
        ],
        "backwards",
        [helper.make_tensor_value_info("x", T.FLOAT, ["s", 4])],
        [onnx.ValueInfoProto(name=name) for name in ("y", "rows")],
        [
            onnx.numpy_helper.from_array(np.int64(1), "one"),
            onnx.numpy_helper.from_array(np.zeros(4, np.float32), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = compile_in_process(import_proto(model, name="backwards"))(x=x)
    np.testing.assert_allclose(np.asarray(found["rows"]), np.cumsum(x[::-1], 0), atol=1e-6)


def test_a_shape_in_parts_stays_known() -> None:
    """As TensorFlow's frames of a signal are written: sizes in front, that of the axis, and none behind."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Split", ["shape", "parts"], ["front", "size", "behind"], axis=0),
        helper.make_node("Concat", ["front", "size", "behind", "one"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    known = [("parts", [1, 1, 0]), ("one", [1])]
    initializers = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in known]
    ends = [helper.make_tensor_value_info(n, T.FLOAT, s) for n, s in (("x", ["n", "m"]), ("y", None))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    model = import_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), name="t")
    assert "Tensor((n, m, 1)" in str(model.mod["main"].ret_ty)


@pytest.mark.parametrize("turned", [False, True])
def test_the_last_row_of_an_open_size_beside_all_rows(turned: bool) -> None:
    """Positions as detection transformers scale them, x / x[:, -1:], of as many rows as there may be none of."""
    held = {"second": [1], "from": [-1], "to": [np.iinfo(np.int64).max], "along": [1]}
    nodes = [
        helper.make_node("Slice", ["x", "second", "to", "along"], ["rest"]),
        helper.make_node("Slice", ["rest", "from", "to", "along"], ["last"]),
        helper.make_node("Div", ["last", "rest"] if turned else ["rest", "last"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, T.FLOAT, [2, "n", 3]) for name in "xy"]
    constants = [onnx.numpy_helper.from_array(np.array(value, np.int64), name) for name, value in held.items()]
    proto = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:], constants))
    run = compile_in_process(import_proto(proto, name="t"), threads=1)
    for rows in (2, 5):
        x = np.random.default_rng(0).uniform(1, 2, (2, rows, 3)).astype("float32")
        wanted = x[:, -1:] / x[:, 1:] if turned else x[:, 1:] / x[:, -1:]
        np.testing.assert_allclose(run(x=x)["y"], wanted, rtol=1e-6)
