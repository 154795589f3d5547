"""The importer's core: sizes, names, constants, functions and graphs inside nodes; control flow against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from tvm import relax

from halo_tvm.artifact import UNBOUNDED
from halo_tvm.errors import UnknownName, UnsupportedModel, UsageError
from halo_tvm.imported import ImportedModel
from halo_tvm.importers.onnx import NeedsConstants, import_onnx
from halo_tvm.importers.onnx._graph import GraphConverter
from halo_tvm.in_process import compile_in_process

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info
rng = np.random.default_rng(0)


def save(
    path: Path, nodes: list, inputs: list, outputs: list, weights: dict | None = None, opset: int = 17, **more: list
) -> Path:
    """An ONNX file; inputs and outputs are value infos, weights arrays."""
    held = [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held, sparse_initializer=more.get("sparse"))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=more.get("functions")), path)
    return path


def operators(model: ImportedModel) -> list[str]:
    """Names of the operators and kernels that main calls."""
    found = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            is_kernel = isinstance(expr.op, tvm.ir.Op) and expr.op.name == "relax.call_tir"
            found.append(expr.args[0].name_hint if is_kernel else getattr(expr.op, "name", str(expr.op)))

    relax.analysis.post_order_visit(model.mod["main"], visit)
    return found


def check(path: Path, *sets: dict[str, np.ndarray], **options: object) -> ImportedModel:
    """Compile once; every set of inputs gives the numbers of onnxruntime."""
    model = import_onnx(path, **options)
    program = compile_in_process(model)
    for inputs in sets:
        found, wanted = program(**inputs), model.engine(inputs)
        for name, want in wanted.items():
            assert found[name].shape == want.shape, name
            assert found[name].dtype == want.dtype, name
            np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6, err_msg=name)
    return model


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("float32")


# ------------------------------------------------------------------ sizes


def test_shape_arithmetic_leaves_no_operator(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Gather", ["s", "one"], ["t"], axis=0),
        node("Unsqueeze", ["b", "axis"], ["b1"]),
        node("Unsqueeze", ["t", "axis"], ["t1"]),
        node("Div", ["t1", "two"], ["half"]),
        node("Mul", ["half", "two"], ["even"]),
        node("Sub", ["t1", "even"], ["odd"]),
        node("Add", ["even", "odd"], ["again"]),
        node("Concat", ["b1", "again", "heads", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    weights = {"zero": 0, "one": 1, "axis": [0], "two": [2], "heads": [4], "rest": [-1]}
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [value("x", FLOAT, ("batch", "length", 8))],
        [value("y", FLOAT, ("batch", "length", 4, 2))],
        weights,
    )
    model = check(path, {"x": floats(2, 5, 8)}, {"x": floats(1, 4, 8)})
    assert operators(model) == ["relax.reshape"]


def test_dimensions_by_name_expression_and_without_name(tmp_path: Path) -> None:
    inputs = [
        value("a", FLOAT, ("past", 4)),
        value("b", FLOAT, ("sequence", 4)),
        value("m", FLOAT, ("past + sequence", 4)),
        value("u", FLOAT, (None, 4)),
        value("q", FLOAT, ("?", 4)),
        value("z", FLOAT, (0, 4)),
        value("n", FLOAT, (-1, 4)),
    ]
    nodes = [node("Concat", ["a", "b"], ["ab"], axis=0), node("Add", ["ab", "m"], ["y"])]
    nodes += [node("Relu", [name], [f"r{name}"]) for name in "uqzn"]
    outputs = [value("y", FLOAT, ("total", 4)), *(value(f"r{name}", FLOAT, ("o" + name, 4)) for name in "uqzn")]
    path = save(tmp_path / "m.onnx", nodes, inputs, outputs)
    others = {name: floats(k + 1, 4) for k, name in enumerate("uqzn")}
    model = import_onnx(path)  # onnxruntime has another opinion about 0 and -1
    given = {"a": floats(2, 4), "b": floats(3, 4), "m": floats(5, 4), **others}
    found = compile_in_process(model)(**given)
    np.testing.assert_allclose(found["y"], np.concatenate([given["a"], given["b"]]) + given["m"], rtol=1e-6)
    for name, x in others.items():
        np.testing.assert_array_equal(found[f"r{name}"], np.maximum(x, 0))
    assert [s.shape[0] for s in model.inputs] == ["past", "sequence", "past + sequence", "u_0", "q_0", "z_0", "n_0"]
    assert set(model.ranges) == {"past", "sequence", "u_0", "q_0", "z_0", "n_0"}
    assert model.ranges["past"] == (1, UNBOUNDED)


def two_inputs(path: Path) -> Path:
    nodes = [node("Add", ["a", "b"], ["y"])]
    inputs = [value("a", FLOAT, ("batch", "length")), value("b", FLOAT, ("batch", "length"))]
    return save(path, nodes, inputs, [value("y", FLOAT, ("batch", "length"))])


def test_shapes_fix_and_bound_by_input_and_by_shared_name(tmp_path: Path) -> None:
    path = two_inputs(tmp_path / "m.onnx")
    model = import_onnx(path, shapes={"b": ((2, 2), (1, 64))})
    assert [s.shape for s in model.inputs] == [(2, "length"), (2, "length")]
    assert model.ranges == {"length": (1, 64)}
    both = import_onnx(path, shapes={"a": ((1, 4), (8, 64)), "b": ((2, 8), (1, 32))})
    assert both.ranges == {"batch": (2, 4), "length": (8, 32)}


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    path = two_inputs(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="expected 2 dimensions for input a, found 1"):
        import_onnx(path, shapes={"a": ((1, 1),)})
    with pytest.raises(UnknownName, match="unknown input 'c'"):
        import_onnx(path, shapes={"c": ((1, 1),)})


# ------------------------------------------------------------------ constants


def test_values_that_must_be_known_are_named_and_may_be_given(tmp_path: Path) -> None:
    nodes = [node("Identity", ["axes"], ["k"]), node("Unsqueeze", ["x", "k"], ["y"])]
    inputs = [value("x", FLOAT, (3, 4)), value("axes", INT64, (1,)), value("unused", INT64, (1,))]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, (3, 1, 4))])
    with pytest.raises(NeedsConstants, match="make axes constant in the model") as error:
        import_onnx(path)
    assert error.value.names == {"axes"}
    model = import_onnx(path, constants={"axes": np.array([1])})
    assert [s.name for s in model.inputs] == ["x", "unused"]
    found = compile_in_process(model)(x=floats(3, 4), unused=np.array([0]))
    assert found["y"].shape == (3, 1, 4)


def test_large_weights_are_changed_when_they_are_read(tmp_path: Path) -> None:
    weight = floats(512, 1024)  # more than is folded at once
    nodes = [
        node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        node("Cast", ["wt"], ["half"], to=TensorProto.FLOAT16),
        node("Cast", ["half"], ["full"], to=FLOAT),
        node("Reshape", ["full", "to"], ["wr"]),
        node("MatMul", ["x", "wr"], ["y"]),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [value("x", FLOAT, (2, 1024))],
        [value("y", FLOAT, (2, 512))],
        {"w": weight, "to": [1024, 512]},
    )
    model = import_onnx(path)
    assert not set(operators(model)) & {"relax.permute_dims", "relax.astype", "relax.reshape"}
    (name,) = model.params.sources
    np.testing.assert_array_equal(model.params.materialise(name), weight.T.astype("float16").astype("float32"))


def standardised(folder: Path, count: int = 1) -> Path:
    """A convolution whose kernel, too large to be folded, is normalised and then added to itself `count` times."""
    nodes = [
        node("ReduceMean", ["w"], ["mean"], axes=[1, 2, 3], keepdims=1),
        node("Sub", ["w", "mean"], ["d"]),
        node("Mul", ["d", "d"], ["squares"]),
        node("ReduceMean", ["squares"], ["variance"], axes=[1, 2, 3], keepdims=1),
        node("Sqrt", ["variance"], ["deviation"]),
        node("Div", ["d", "deviation"], ["normal"]),
        node("Mul", ["normal", "scale"], ["k0"]),
        *(node("Add", [f"k{i}", f"k{i}"], [f"k{i + 1}"]) for i in range(count)),
        node("Conv", ["x", f"k{count}"], ["y"], pads=[1, 1, 1, 1]),
    ]
    x, y = value("x", FLOAT, (1, 256, 5, 6)), value("y", FLOAT, (1, 128, 5, 6))
    weights = {"w": floats(128, 256, 3, 3), "scale": np.float32([0.001])}
    return save(folder / "m.onnx", nodes, [x], [y], weights, opset=17)


def test_what_a_file_computes_of_large_weights_is_a_weight(tmp_path: Path) -> None:
    model = check(standardised(tmp_path), {"x": floats(1, 256, 5, 6)})
    assert operators(model) == ["relax.halo.convolution"] and len(model.params.sources) == 1


@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Einsum"])
def test_a_product_of_weights_is_a_weight(product: str, tmp_path: Path) -> None:
    """Positions that are the same in every run, projected."""
    equation = {"equation": "ij, jk -> ik"} if product == "Einsum" else {}
    nodes = [
        node("LayerNormalization", ["positions", "scale"], ["normal"]),
        node(product, ["normal", "w"], ["projected"], **equation),
        node("MatMul", ["x", "projected"], ["y"]),
    ]
    weights = {"positions": floats(512, 600), "scale": floats(600), "w": floats(600, 24)}
    path = save(
        tmp_path / "m.onnx", nodes, [value("x", FLOAT, (3, 512))], [value("y", FLOAT, (3, 24))], weights, opset=17
    )
    model = check(path, {"x": floats(3, 512) * np.float32(1e-4)})
    assert operators(model) == ["relax.halo.linear"] and len(model.params.sources) == 1


def test_what_would_read_a_weight_too_often_is_computed_by_the_run(tmp_path: Path) -> None:
    """x + x, again and again: each doubles what is read for the next."""
    found = operators(import_onnx(standardised(tmp_path, 60)))
    assert found.count("relax.add") > 50 and "relax.sqrt" not in found


def test_sparse_initialisers_are_dense(tmp_path: Path) -> None:
    flat = helper.make_sparse_tensor(
        helper.make_tensor("v", FLOAT, [2], [5.0, 7.0]), helper.make_tensor("i", INT64, [2], [1, 6]), [2, 4]
    )
    rows = helper.make_sparse_tensor(
        helper.make_tensor("w", FLOAT, [2], [3.0, 4.0]), helper.make_tensor("j", INT64, [2, 2], [0, 1, 1, 3]), [2, 4]
    )
    nodes = [node("Add", ["x", "v"], ["h"]), node("Add", ["h", "w"], ["y"])]
    path = save(
        tmp_path / "m.onnx", nodes, [value("x", FLOAT, (2, 4))], [value("y", FLOAT, (2, 4))], sparse=[flat, rows]
    )
    found = compile_in_process(import_onnx(path))(x=np.zeros((2, 4), "float32"))["y"]
    np.testing.assert_array_equal(found, [[0, 8, 0, 0], [0, 0, 7, 4]])


def test_external_data_is_read_right(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])],
        [value("x", FLOAT, (2, 64))],
        [value("y", FLOAT, (2, 32))],
        {"w": floats(64, 32), "b": floats(32)},
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert (tmp_path / "m.data").stat().st_size >= 4 * 65 * 32
    check(path, {"x": floats(2, 64)})


def test_external_data_in_the_cache_of_a_hub(tmp_path: Path) -> None:
    """Its snapshots are links into the blobs beside them; a link that leads elsewhere is refused."""
    nodes, infos = [node("Add", ["x", "w"], ["y"])], [[value(name, FLOAT, (2, 64))] for name in "xy"]
    path = save(tmp_path / "model.onnx", nodes, *infos, {"w": floats(2, 64)})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "c0ffee" / "onnx", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, name in enumerate(("model.onnx", "model.onnx_data")):
        (tmp_path / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(blobs / str(number))
    check(snapshot / "model.onnx", {"x": floats(2, 64)})
    (blobs / "1").rename(tmp_path / "elsewhere")
    (blobs / "1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsupportedModel, match="in a plain file, found the link"):
        import_onnx(snapshot / "model.onnx")


def test_outputs_without_a_shape_are_valid_and_inputs_are_given_one(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])], [value("x", FLOAT, None)], [value("y", FLOAT, None)])
    with pytest.raises(UnsupportedModel, match="inputs of known rank"):
        import_onnx(path)
    x = floats(3, 4)
    np.testing.assert_array_equal(
        compile_in_process(import_onnx(path, shapes={"x": ((1, 8), (4, 4))}))(x)["y"], np.maximum(x, 0)
    )


@pytest.mark.parametrize("end", [2**31 - 2, 2**31 - 1, 2**63 - 1])
def test_the_last_of_as_many_as_the_run_finds(tmp_path: Path, end: int) -> None:
    """As tf2onnx takes the last step of a recurrence: to the largest number of 32 bits."""
    nodes = [
        node("Compress", ["x", "m"], ["k"], axis=0),
        node("Slice", ["k", "s", "e", "a"], ["l"]),
        node("Squeeze", ["l", "a"], ["q"]),
        node("MatMul", ["q", "w"], ["y"]),
    ]
    inputs = [value("x", FLOAT, ("n", "b", 4)), value("m", TensorProto.BOOL, ("n",))]
    ends = {"s": np.int64([-1]), "e": np.int64([end]), "a": np.int64([0]), "w": floats(4, 2)}
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, ("b", 2))], ends)
    check(path, {"x": floats(5, 3, 4), "m": np.array([1, 0, 1, 1, 0], bool)})


def test_outputs_that_are_inputs_weights_and_constants(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Constant", [], ["c"], value_floats=[1.0, 2.0]),
        node("Identity", ["w"], ["kept"]),
    ]
    outputs = [value("same", FLOAT, ("n", 2)), value("c", FLOAT, (2,)), value("kept", FLOAT, (3, 2))]
    path = save(tmp_path / "m.onnx", nodes, [value("x", FLOAT, ("n", 2))], outputs, {"w": floats(3, 2)})
    check(path, {"x": floats(4, 2)})


def test_outputs_have_memory_of_their_own(tmp_path: Path) -> None:
    """Identities, views and values that are returned twice are the caller's: no write reaches another tensor."""
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Reshape", ["x", "flat"], ["view"]),
        node("Relu", ["x"], ["positive"]),
        node("Identity", ["positive"], ["again"]),
        node("Identity", ["w"], ["kept"]),
    ]
    shapes = {"same": ("n", 4), "view": (-1,), "positive": ("n", 4), "again": ("n", 4), "kept": (2, 4)}
    outputs = [value(name, FLOAT, [None if d == -1 else d for d in shape]) for name, shape in shapes.items()]
    weights = {"flat": np.int64([-1]), "w": floats(2, 4)}
    path = save(tmp_path / "m.onnx", nodes, [value("x", FLOAT, ("n", 4))], outputs, weights)
    program = compile_in_process(import_onnx(path))
    memory = np.empty(12 + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4  # where kernels read it in place
    x = memory[start : start + 12].reshape(3, 4)
    x[:] = 1.5
    found = program(x=x)
    for i, one in enumerate([x, *found.values()]):
        for other in list(found.values())[i:]:
            assert not np.may_share_memory(one, other)
    for array in found.values():
        array[...] = -7
    assert (x == 1.5).all()
    np.testing.assert_array_equal(program(x=x)["kept"], weights["w"])


@pytest.mark.slow
def test_sizes_named_as_kernels_name_theirs(tmp_path: Path) -> None:
    """A file's own "k" is another symbol than a product's."""
    nodes = [node("MatMul", ["x", "y"], ["h"]), node("Softmax", ["h"], ["s"], axis=-1), node("Relu", ["s"], ["z"])]
    inputs = [value("x", FLOAT, ("k", "n")), value("y", FLOAT, ("n", "m"))]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("z", FLOAT, ("k", "m"))])
    check(path, *({"x": floats(a, b), "y": floats(b, c)} for a, b, c in ((3, 5, 9), (17, 2, 1), (1, 33, 20))))


@pytest.mark.slow
def test_causal_masks_counted_over_an_open_length(tmp_path: Path) -> None:
    """Positions by CumSum over ones, rows and columns of a flat range by Mod and Div: all of a length that is open."""
    nodes = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("ConstantOfShape", ["length"], ["ones"], value=numpy_helper.from_array(np.int64([1]))),
        node("CumSum", ["ones", "axis"], ["position"]),
        node("Squeeze", ["length"], ["n"]),
        node("Mul", ["n", "n"], ["cells"]),
        node("Range", ["zero", "cells", "one"], ["flat"]),
        node("Div", ["flat", "n"], ["row"]),
        node("Mod", ["flat", "n"], ["column"]),
        node("Gather", ["position", "row"], ["query"]),
        node("Gather", ["position", "column"], ["key"]),
        node("LessOrEqual", ["key", "query"], ["seen"]),
        node("Concat", ["length", "length"], ["square"], axis=0),
        node("Reshape", ["seen", "square"], ["mask"]),
        node("MatMul", ["x", "turned"], ["scores"]),
        node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        node("Where", ["mask", "scores", "hidden"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "x"], ["y"]),
    ]
    known = {"axis": np.int64(0), "zero": np.int64(0), "one": np.int64(1), "hidden": np.float32(-np.inf)}
    shape = ("b", "s", 8)
    path = save(tmp_path / "m.onnx", nodes, [value("x", FLOAT, shape)], [value("y", FLOAT, shape)], known)
    check(path, {"x": floats(2, 5, 8)}, {"x": floats(1, 12, 8)}, {"x": floats(3, 1, 8)})


# ------------------------------------------------------------------ operators and versions


@pytest.mark.parametrize(("opset", "total"), [(11, 1.0), (13, 2.0)])
def test_the_version_of_the_models_opset_is_used(tmp_path: Path, opset: int, total: float) -> None:
    """Softmax over axis 1 of [1, 2, 2] normalises the flattened rest before opset 13, one axis from then on."""
    path = save(
        tmp_path / "m.onnx",
        [node("Softmax", ["x"], ["y"], axis=1)],
        [value("x", FLOAT, (1, 2, 2))],
        [value("y", FLOAT, (1, 2, 2))],
        opset=opset,
    )
    x = floats(1, 2, 2)
    check(path, {"x": x})
    np.testing.assert_allclose(compile_in_process(import_onnx(path))(x=x)["y"].sum(), total, rtol=1e-5)


def test_all_problems_are_listed_at_once_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("Twist", ["x"], [f"t{i}"], name=f"twist{i}", domain="own") for i in range(4)]
    nodes += [node("Bend", ["x"], ["y"], name="bend", domain="own"), node("Reshape", ["x", "k"], ["z"], name="shape")]
    inputs = [value("x", FLOAT, (2, 2)), value("k", INT64, ("n",))]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, (2, 2))])
    with pytest.raises(UnsupportedModel) as error:
        import_onnx(path)
    for words in (
        "own.Twist (no converter) (4: twist0, twist1, twist2)",
        "own.Bend (no converter) (1: bend)",
        "Reshape",
    ):
        assert words in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_an_import_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = [
        node("Gather", ["w", "ids"], ["g"]),
        node("Div", ["g", "zero"], ["y"]),
        node("Div", ["zero", "zero"], ["nan"]),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [value("ids", INT64, ("n",))],
        [value("y", FLOAT, ("n", 2))],
        {"w": floats(3, 2), "zero": np.float32(0)},
    )
    import_onnx(path)
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------ functions


@pytest.mark.parametrize("imports", [("ai.onnx",), ("",), ("", "ai.onnx")], ids=str)
def test_the_default_domain_has_two_names(tmp_path: Path, imports: tuple[str, ...]) -> None:
    function = helper.make_function(
        "own",
        "Half",
        ["a"],
        ["b"],
        [node("Softmax", ["a"], ["b"], domain="ai.onnx")],
        [helper.make_opsetid("ai.onnx", 17)],
    )
    nodes = [node("Relu", ["x"], ["a"], domain="ai.onnx"), node("Half", ["a"], ["y"], domain="own")]
    opsets = [helper.make_opsetid(name, 17) for name in imports] + [helper.make_opsetid("own", 1)]
    graph = helper.make_graph(nodes, "g", [value("x", FLOAT, ("n", 4))], [value("y", FLOAT, ("n", 4))])
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    e = np.exp(np.maximum(x, 0))
    found = compile_in_process(import_onnx(tmp_path / "m.onnx"), threads=1, level=1)(x)["y"]
    np.testing.assert_allclose(found, e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_a_function_of_another_opset_than_its_model_is_refused(tmp_path: Path) -> None:
    function = helper.make_function(
        "own", "Sum", ["a"], ["b"], [node("ReduceSum", ["a"], ["b"], axes=[1])], [helper.make_opsetid("", 11)]
    )
    graph = helper.make_graph(
        [node("Sum", ["x"], ["y"], domain="own")], "g", [value("x", FLOAT, (3, 4))], [value("y", FLOAT, (3, 1))]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match="Opset import for domain .* not compatible with the version imported"):
        import_onnx(tmp_path / "m.onnx")


def test_model_functions_with_attributes(tmp_path: Path) -> None:
    """An attribute of the call, its default, and a function that calls another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    alpha = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    leaky = node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(alpha)
    inner = helper.make_function(
        "own", "Leak", ["a"], ["b"], [leaky], opsets, attribute_protos=[helper.make_attribute("slope", 0.5)]
    )
    outer = helper.make_function(
        "own",
        "Twice",
        ["a", "w"],
        ["c"],
        [
            node("Leak", ["a"], ["b"], domain="own"),
            node("Leak", ["b"], ["d"], domain="own", slope=0.25),
            node("Add", ["d", "w"], ["c"]),
        ],
        opsets,
    )
    nodes = [node("Twice", ["x", "w"], ["h"], domain="own"), node("Twice", ["h", "w"], ["y"], domain="own")]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [value("x", FLOAT, ("n", 4))],
        [value("y", FLOAT, ("n", 4))],
        {"w": floats(4)},
        functions=[inner, outer],
    )
    check(path, {"x": floats(3, 4)})


def test_bodies_of_definitions_that_depend_on_the_node(tmp_path: Path) -> None:
    """Operators whose body ONNX builds from the types and attributes of the call."""
    nodes = [node("Celu", ["x"], ["h"], alpha=0.7), node("MeanVarianceNormalization", ["h"], ["y"], axes=[1])]
    path = save(tmp_path / "m.onnx", nodes, [value("x", FLOAT, (2, 6))], [value("y", FLOAT, (2, 6))])
    check(path, {"x": floats(2, 6)})


# ------------------------------------------------------------------ control flow


def graph(nodes: list, outputs: list, inputs: tuple = (), weights: dict | None = None) -> GraphProto:
    held = [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()]
    return helper.make_graph(nodes, "inner", list(inputs), outputs, held)


def branches() -> dict[str, GraphProto]:
    """Both see names around them; one has a weight of its own, one a branch inside."""
    inside = graph([node("Tanh", ["h"], ["t"])], [value("t", FLOAT, ("n", 4))])
    other = graph([node("Neg", ["h"], ["m"])], [value("m", FLOAT, ("n", 4))])
    deep = graph([node("If", ["d"], ["e"], then_branch=inside, else_branch=other)], [value("e", FLOAT, ("n", 4))])
    plain = graph([node("Mul", ["h", "own"], ["p"])], [value("p", FLOAT, ("n", 4))], weights={"own": floats(4)})
    return {"then_branch": plain, "else_branch": deep}


def test_branches_taken_at_run_time(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("If", ["c"], ["k"], **branches()), node("Add", ["k", "h"], ["y"])]
    inputs = [value("x", FLOAT, ("n", 4)), value("c", BOOL, ()), value("d", BOOL, ())]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, ("n", 4))])
    sets = [
        {"x": floats(3, 4), "c": np.array(c), "d": np.array(d)}
        for c, d in ((True, True), (False, True), (False, False))
    ]
    check(path, *sets)


def test_a_branch_known_at_import_leaves_no_choice(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("Shape", ["x"], ["s"]),
        node("Size", ["s"], ["rank"]),
        node("Equal", ["rank", "two"], ["c"]),
        node("If", ["c"], ["y"], **branches()),
    ]
    inputs = [value("x", FLOAT, ("n", 4)), value("d", BOOL, ())]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, ("n", 4))], {"two": 2})
    model = check(path, {"x": floats(2, 4), "d": np.array(True)})
    assert len([f for f in model.mod.functions.values() if isinstance(f, relax.Function)]) == 1


def body(extra: list, outputs: list, going: str = "go") -> GraphProto:
    inputs = (value("i", INT64, ()), value("go", BOOL, ()), value("s", FLOAT, (4,)))
    return graph([*extra, node("Identity", [going], ["on"])], [value("on", BOOL, ()), *outputs], inputs)


DOUBLED = [node("Add", ["s", "w"], ["d"]), node("Mul", ["d", "d"], ["row"])]
RESULTS = [value("d", FLOAT, (4,)), value("row", FLOAT, (4,))]


@pytest.mark.parametrize("trips", ["known", "at run time"])
def test_loops_with_a_trip_count(tmp_path: Path, trips: str) -> None:
    nodes = [node("Loop", ["k", "", "x"], ["y", "rows"], body=body(DOUBLED, RESULTS))]
    inputs = [value("x", FLOAT, (4,)), *([value("k", INT64, ())] if trips != "known" else [])]
    weights = {"w": floats(4), **({"k": 5} if trips == "known" else {})}
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, (4,)), value("rows", FLOAT, ("k", 4))], weights)
    if trips == "known":
        check(path, {"x": floats(4)})
    else:
        check(
            path,
            {"x": floats(4), "k": np.array(5)},
            {"x": floats(4), "k": np.array(1)},
            {"x": floats(4), "k": np.array(0)},
        )


@pytest.mark.parametrize("trips", ["known", "given"])
def test_the_number_of_an_iteration_has_the_shape_that_the_body_declares(tmp_path: Path, trips: str) -> None:
    """One axis, as exporters of PyTorch write it: a start of Slice, or what Squeeze makes a number of."""
    inputs = (value("i", INT64, (1,)), value("go", BOOL, ()), value("s", FLOAT, (4,)))
    steps = [
        *(
            [node("Squeeze", ["i", "axes"], ["at"]), node("Gather", ["x", "at"], ["part"])]
            if trips == "given"
            else [node("Add", ["i", "one"], ["next"]), node("Slice", ["x", "i", "next"], ["part"])]
        ),
        node("Add", ["s", "part"], ["d"]),
        node("Identity", ["go"], ["on"]),
    ]
    inside = graph(steps, [value("on", BOOL, ()), value("d", FLOAT, (4,))], inputs)
    given = [value("k", INT64, ())] if trips == "given" else []
    weights = {"axes": np.array([0])} if given else {"one": np.array([1]), "k": 3}
    nodes = [node("Loop", ["k", "", "x"], ["y"], body=inside)]
    path = save(tmp_path / "m.onnx", nodes, [value("x", FLOAT, (4,)), *given], [value("y", FLOAT, (4,))], weights)
    check(path, {"x": floats(4), **({"k": np.array(3)} if given else {})})


@pytest.mark.parametrize("most", [100, 1 << 40])
def test_a_loop_that_its_condition_ends(tmp_path: Path, most: int) -> None:
    steps = [*DOUBLED, node("ReduceSum", ["d"], ["sum"], keepdims=0), node("Less", ["sum", "bound"], ["less"])]
    nodes = [node("Loop", ["most", "yes", "x"], ["y", "rows"], body=body(steps, RESULTS, going="less"))]
    weights = {"w": np.ones(4, "float32"), "most": most, "yes": True}
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [value("x", FLOAT, (4,)), value("bound", FLOAT, ())],
        [value("y", FLOAT, (4,)), value("rows", FLOAT, ("k", 4))],
        weights,
    )
    check(path, *({"x": np.zeros(4, "float32"), "bound": np.array(b, "float32")} for b in (10.0, 30.0, -1.0)))


def loops_within(depth: int) -> list[NodeProto]:
    """y = x doubled k ** depth times, and rows, which the outermost of so many loops collects of the one inside."""
    steps = [node("Add", ["s0", "s0"], ["d0"]), node("ReduceSum", ["d0"], ["r0"], keepdims=0)]
    for level in range(depth):
        inputs = (value(f"i{level}", INT64, ()), value(f"go{level}", BOOL, ()), value(f"s{level}", FLOAT, (4,)))
        outputs = [value(f"on{level}", BOOL, ()), value(f"d{level}", FLOAT, (4,)), value(f"r{level}", FLOAT, ())]
        inside = graph([*steps, node("Identity", [f"go{level}"], [f"on{level}"])], outputs, inputs)
        above = f"{level + 1}"
        steps = [
            node("Loop", ["k", "", f"s{above}"], [f"d{above}", f"all{above}"], body=inside),
            node("ReduceMax", [f"all{above}"], [f"r{above}"], keepdims=0),
        ]
    return [*steps[:1], node("Identity", ["s"], [f"s{depth}"])][::-1]


@pytest.mark.slow
def test_loops_inside_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right, and converted in linear time: each body about as often as there are loops around it, not 2 to that."""
    inputs = [value("s", FLOAT, (4,)), value("k", INT64, ())]
    for depth in (2, 12):
        outputs = [value(f"d{depth}", FLOAT, (4,)), value(f"all{depth}", FLOAT, ("k",))]
        path = save(tmp_path / "m.onnx", loops_within(depth), inputs, outputs, {})
        if depth == 2:
            check(path, {"s": floats(4), "k": np.array(2)}, {"s": floats(4), "k": np.array(1)})
    converted = []
    plain = GraphConverter.convert_graph
    monkeypatch.setattr(GraphConverter, "convert_graph", lambda *args: (converted.append(1), plain(*args))[1])
    import_onnx(path)
    assert 12 <= len(converted) <= 12 * 13


def test_a_carried_value_that_grows(tmp_path: Path) -> None:
    inputs = (value("i", INT64, ()), value("go", BOOL, ()), value("s", FLOAT, ("n", 4)))
    step = graph(
        [node("Concat", ["s", "x"], ["d"], axis=0), node("Identity", ["go"], ["on"])],
        [value("on", BOOL, ()), value("d", FLOAT, ("m", 4))],
        inputs,
    )
    nodes = [node("Loop", ["k", "", "x"], ["y"], body=step)]
    path = save(
        tmp_path / "m.onnx", nodes, [value("x", FLOAT, (2, 4)), value("k", INT64, ())], [value("y", FLOAT, ("q", 4))]
    )
    check(path, {"x": floats(2, 4), "k": np.array(3)}, {"x": floats(2, 4), "k": np.array(0)})


@pytest.mark.parametrize("length", [5, "length"])
@pytest.mark.parametrize("direction", [0, 1])
def test_scans_forward_and_backward(tmp_path: Path, length: int | str, direction: int) -> None:
    step = graph(
        [node("Add", ["s", "e"], ["d"]), node("Tanh", ["d"], ["row"])],
        RESULTS,
        (value("s", FLOAT, (4,)), value("e", FLOAT, (4,))),
    )
    nodes = [
        node(
            "Scan",
            ["x", "xs"],
            ["y", "rows"],
            body=step,
            num_scan_inputs=1,
            scan_input_directions=[direction],
            scan_output_directions=[1 - direction],
        )
    ]
    inputs = [value("x", FLOAT, (4,)), value("xs", FLOAT, (length, 4))]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", FLOAT, (4,)), value("rows", FLOAT, (length, 4))])
    sizes = (5,) if length == 5 else (5, 1, 9)
    check(path, *({"x": floats(4), "xs": floats(n, 4)} for n in sizes))


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    """As onnxruntime reads them, what graphs inside nodes read included; the checker refuses a cycle."""
    branch = [helper.make_graph([node(op, ["late"], [op])], op, [], [value(op, FLOAT, [3])]) for op in ("Neg", "Exp")]
    backwards = [
        node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1]),
        node("Sqrt", ["early"], ["late"]),
        node("Abs", ["x"], ["early"]),
    ]
    inputs = [value("x", FLOAT, [3]), value("c", BOOL, [])]
    path = save(tmp_path / "m.onnx", backwards, inputs, [value("y", FLOAT, [3])])
    check(path, {"x": np.array([-4, 0, 9], "float32"), "c": np.array(True)})
    save(path, [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"])], inputs[:1], [value("b", FLOAT, [3])])
    with pytest.raises(UnsupportedModel, match="the checker refuses"):
        import_onnx(path)
