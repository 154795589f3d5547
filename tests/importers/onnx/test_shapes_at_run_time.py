"""Sizes known at run time only: what does not fit is refused, and shape arithmetic is that of ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halo_tvm.errors import HaloError, InputError
from halo_tvm.importers import import_model
from halo_tvm.importers.onnx import import_onnx
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.reference import cases_of

_KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
_node = helper.make_node


def _ints(name: str, *values: int) -> onnx.NodeProto:
    return _node("Constant", [], [name], value_ints=list(values))


def _shape_of(axis: int, name: str) -> list[onnx.NodeProto]:
    """The size of `axis` of x as a tensor [1]."""
    return [_node("Shape", ["x"], [name], start=axis, end=axis + 1)]


def _saved(folder: Path, nodes: list, inputs: dict[str, tuple], out: str = "float32", rank: int = 1) -> Path:
    """A model of opset 18 with the output y; `inputs`: name -> (dtype, shape)."""
    infos = [helper.make_tensor_value_info(n, _KINDS[dtype], shape) for n, (dtype, shape) in inputs.items()]
    result = helper.make_tensor_value_info("y", _KINDS[out], [f"out{i}" for i in range(rank)])
    model = helper.make_model(
        helper.make_graph(nodes, "g", infos, [result]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def _compiled(*args: object, **kwargs: object) -> Program:
    return compile_in_process(import_onnx(_saved(*args, **kwargs)))


def _peer(folder: Path, **inputs: np.ndarray) -> np.ndarray:
    import onnxruntime

    return onnxruntime.InferenceSession(str(folder / "model.onnx")).run(None, inputs)[0]


def test_expand_of_a_symbolic_size_is_no_repetition(tmp_path: Path) -> None:
    program = _compiled(
        tmp_path, [_ints("s", 5, 3), _node("Expand", ["x", "s"], ["y"])], {"x": ("float32", ["n", 3])}, rank=2
    )
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(program(x=x)["y"], x)
    with pytest.raises(InputError, match="sizes"):
        program(x=x[:1])


@pytest.mark.parametrize("n", [1, 3, 6, 7, 12])
def test_shape_arithmetic_rounds_as_integers_do(tmp_path: Path, n: int) -> None:
    """(n - 6) / 4 and |n - 6| as values, and as the size of a result."""
    nodes = [
        *_shape_of(0, "n"),
        _ints("six", 6),
        _ints("four", 4),
        _node("Sub", ["n", "six"], ["d"]),
        _node("Div", ["d", "four"], ["q"]),
        _node("Abs", ["d"], ["a"]),
        _node("Mod", ["d", "four"], ["m"]),
        _node("Concat", ["q", "a", "m"], ["y"], axis=0),
    ]
    program = _compiled(tmp_path, nodes, {"x": ("float32", ["n"])}, out="int64")
    x = np.ones(n, np.float32)
    np.testing.assert_array_equal(program(x=x)["y"], _peer(tmp_path, x=x))


def test_reshape_never_drops_elements(tmp_path: Path) -> None:
    program = _compiled(
        tmp_path, [_ints("s", -1, 4), _node("Reshape", ["x", "s"], ["y"])], {"x": ("float32", ["n"])}, rank=2
    )
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(program(x=x)["y"], x.reshape(-1, 4))
    with pytest.raises(InputError, match="sizes"):
        program(x=x[:6])


def test_squeeze_of_a_symbolic_axis_is_checked(tmp_path: Path) -> None:
    program = _compiled(tmp_path, [_ints("a", 1), _node("Squeeze", ["x", "a"], ["y"])], {"x": ("float32", ["n", "m"])})
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    np.testing.assert_array_equal(program(x=x)["y"], x[:, 0])
    with pytest.raises(InputError, match="sizes"):
        program(x=np.ones((3, 2), np.float32))


def test_a_squeeze_without_axes_keeps_open_sizes_and_says_that_they_are_not_one(tmp_path: Path) -> None:
    """At 1 a result has another rank; the reference is drawn elsewhere, and a size that is fixed at 1 is dropped."""
    given = {"x": ("float32", ["batch", 1, 4])}
    program = _compiled(tmp_path, [_node("Squeeze", ["x"], ["y"])], given, rank=2)
    x = np.arange(12, dtype=np.float32).reshape(3, 1, 4)
    np.testing.assert_array_equal(program(x=x)["y"], x[:, 0])
    with pytest.raises(InputError, match=r"batch not to be 1, where Squeeze without axes drops it .* --shape"):
        program(x=x[:1])
    model = import_model(str(tmp_path / "model.onnx"))
    assert model.typical["batch"] > 1
    cases = cases_of(model, 0)
    assert {v.shape[0] for k, v in cases.items() if ".input." in k}.isdisjoint({1})
    fixed = import_model(str(tmp_path / "model.onnx"), shapes=("x=1x1x4",))
    assert not fixed.conditions and compile_in_process(fixed)(x=x[:1])["y"].shape == (4,)


@pytest.mark.parametrize("noop", [0, 1])
def test_sums_of_shapes_over_no_axes(tmp_path: Path, noop: int) -> None:
    nodes = [_node("Shape", ["x"], ["s"]), _node("ReduceSum", ["s"], ["y"], noop_with_empty_axes=noop)]
    program = _compiled(tmp_path, nodes, {"x": ("float32", ["n", "m"])}, out="int64")
    x = np.ones((2, 5), np.float32)
    np.testing.assert_array_equal(program(x=x)["y"], _peer(tmp_path, x=x))


def test_a_slice_of_unknown_end(tmp_path: Path) -> None:
    nodes = [_ints("from", 2), _ints("to", -3), _node("Slice", ["x", "from", "to"], ["y"])]
    program = _compiled(tmp_path, nodes, {"x": ("float32", ["n", 3])}, rank=2)
    x = np.arange(27, dtype=np.float32).reshape(9, 3)
    np.testing.assert_array_equal(program(x=x)["y"], x[2:-3])


@pytest.mark.parametrize("start, end, step", [(-9, -99, -1), (-5, -99, -2), (-1, -99, -2), (99, 0, -3), (-9, 99, 2)])
@pytest.mark.parametrize("known", [True, False])
def test_a_slice_from_outside_the_axis(tmp_path: Path, start: int, end: int, step: int, known: bool) -> None:
    """A walk back from in front of the axis begins at its first element, as the specification clamps it."""
    bounds = {"from": start, "to": end, "pace": step}
    constants = [_ints("along", 0), *(_ints(name, value) for name, value in bounds.items() if known)]
    given = {} if known else {name: ("int64", [1]) for name in bounds}
    slice_ = _node("Slice", ["x", "from", "to", "along", "pace"], ["y"])
    program = _compiled(tmp_path, [*constants, slice_], {"x": ("float32", ["n", 2]), **given}, rank=2)
    for rows in (1, 4, 7):
        values = {"x": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)}
        values |= {name: np.array([bounds[name]]) for name in given}
        np.testing.assert_array_equal(program(**values)["y"], _peer(tmp_path, **values))


def test_sizes_below_zero_are_refused(tmp_path: Path) -> None:
    program = _compiled(
        tmp_path,
        [_node("TopK", ["x", "k"], ["y", "at"])],
        {"x": ("float32", [8]), "k": ("int64", [1])},
    )
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(program(x=x, k=np.array([3]))["y"], [7, 6, 5])
    with pytest.raises(InputError, match="found a size below 0 for TopK"):
        program(x=x, k=np.array([-1]))


@pytest.mark.parametrize("trips", [-2, 0, 3])
def test_a_loop_of_fewer_than_no_trips_has_none(tmp_path: Path, trips: int) -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [_node("Identity", ["going"], ["still"]), _node("Add", ["a", "a"], ["b"]), _node("Identity", ["a"], ["row"])],
        "body",
        [info("i", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("a", TensorProto.FLOAT, [2])],
        [info("still", TensorProto.BOOL, []), info("b", TensorProto.FLOAT, [2]), info("row", TensorProto.FLOAT, [2])],
    )
    nodes = [
        _node("Loop", ["m", "", "x"], ["last", "rows"], body=body),
        _node("Concat", ["rows", "rows"], ["y"], axis=1),
    ]
    program = _compiled(tmp_path, nodes, {"m": ("int64", []), "x": ("float32", [2])}, rank=2)
    inputs = {"m": np.array(trips), "x": np.array([1, 2], np.float32)}
    expected = np.array([[1, 2], [2, 4], [4, 8]], np.float32)[: max(trips, 0)]
    np.testing.assert_array_equal(program(**inputs)["y"], np.concatenate([expected, expected], 1))


def test_loops_are_named_alike_in_every_import(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [_node("Identity", ["going"], ["still"]), _node("Add", ["a", "a"], ["b"])],
        "body",
        [info("i", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("a", TensorProto.FLOAT, [2])],
        [info("still", TensorProto.BOOL, []), info("b", TensorProto.FLOAT, [2])],
    )
    path = _saved(
        tmp_path, [_node("Loop", ["m", "", "x"], ["y"], body=body)], {"m": ("int64", []), "x": ("float32", [2])}
    )
    first, second = (import_onnx(path).mod for _ in range(2))
    assert first.script() == second.script()


@pytest.mark.parametrize("axis", [0, 1])
def test_only_a_question_for_size_one_is_taken_for_a_squeeze(tmp_path: Path, axis: int) -> None:
    """`If` asks for axis 0 while its branch squeezes axis 1: no squeeze of an axis that has size 1."""
    info = helper.make_tensor_value_info
    then = helper.make_graph(
        [_ints("a", axis), _node("Squeeze", ["x", "a"], ["t"])], "then", [], [info("t", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph([_node("Identity", ["x"], ["e"])], "else", [], [info("e", TensorProto.FLOAT, None)])
    nodes = [
        *_shape_of(0, "n"),
        _ints("one", 1),
        _node("Equal", ["n", "one"], ["c"]),
        _node("If", ["c"], ["s"], then_branch=then, else_branch=other),
        _node("Neg", ["s"], ["y"]),
    ]
    path = _saved(tmp_path, nodes, {"x": ("float32", ["n", "m"])})
    if axis == 1:
        with pytest.raises(HaloError, match="rank"):
            import_onnx(path)
        return
    x = np.arange(3, dtype=np.float32)[None]
    np.testing.assert_array_equal(compile_in_process(import_onnx(path))(x=x)["y"], -x[0])


def test_dimensions_spelled_differently_are_two(tmp_path: Path) -> None:
    path = _saved(
        tmp_path,
        [_node("MatMul", ["x", "w"], ["y"])],
        {"x": ("float32", ["a.b", 3]), "w": ("float32", [3, "a_b"])},
        rank=2,
    )
    x, w = np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)
    imported = import_onnx(path)
    assert len(imported.ranges) == 2
    np.testing.assert_array_equal(compile_in_process(imported)(x=x, w=w)["y"], x @ w)


def test_slow_constants_are_left_to_the_model(tmp_path: Path) -> None:
    """The reference gathers elements one by one: a hundred thousand of them are not gathered while importing."""
    data = np.arange(100_000, dtype=np.float32)
    index = np.arange(100_000)[::-1].copy()
    tensors = [onnx.numpy_helper.from_array(data, "data"), onnx.numpy_helper.from_array(index, "index")]
    path = _saved(
        tmp_path,
        [_node("GatherElements", ["data", "index"], ["g"]), _node("Add", ["g", "x"], ["y"])],
        {"x": ("float32", [1])},
    )
    model = onnx.load(path)
    model.graph.initializer.extend(tensors)
    onnx.save(model, path)
    imported = import_onnx(path)
    assert "gather" in imported.mod.script()
    y = compile_in_process(imported)(x=np.ones(1, np.float32))["y"]
    np.testing.assert_array_equal(y, data[index] + 1)
