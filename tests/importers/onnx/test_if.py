"""If of the ONNX importer: squeezes of axes of unknown size, branches of different shapes, reports of inner graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halo_tvm.errors import HaloError, UnsupportedModel
from halo_tvm.importers.onnx import import_onnx
from halo_tvm.in_process import compile_in_process

_FLOAT, _INT, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _saved(folder: Path, nodes: list, inputs: list, outputs: list) -> Path:
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def _ints(name: str, values: list[int]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value_ints=values)


def _info(name: str, kind: int, shape: list | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _squeeze_if(folder: Path) -> Path:
    """`x.squeeze(-1)` as the legacy exporter of torch writes it where the axis has an unknown size."""
    then = helper.make_graph(
        [_ints("axes", [-1]), helper.make_node("Squeeze", ["x", "axes"], ["a"])], "then", [], [_info("a", _FLOAT, None)]
    )
    otherwise = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "else", [], [_info("b", _FLOAT, None)])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        _ints("last", [1]),
        helper.make_node("Gather", ["shape", "last"], ["size"]),
        _ints("one", [1]),
        helper.make_node("Equal", ["size", "one"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["s"], then_branch=then, else_branch=otherwise),
        helper.make_node("Add", ["s", "s"], ["y"]),
    ]
    return _saved(folder, nodes, [_info("x", _FLOAT, ["n", "m"])], [_info("y", _FLOAT, ["k"])])


def test_a_squeeze_of_unknown_size_runs_where_the_size_is_one(tmp_path: Path) -> None:
    program = compile_in_process(import_onnx(_squeeze_if(tmp_path)))
    x = np.arange(5, dtype=np.float32).reshape(5, 1)
    np.testing.assert_array_equal(program(x=x)["y"], (2 * x)[:, 0])
    with pytest.raises((HaloError, ValueError, RuntimeError)):
        program(x=np.ones((5, 2), np.float32))


def test_branches_of_different_shapes_give_new_dimensions(tmp_path: Path) -> None:
    then = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["a"], axis=0)], "then", [], [_info("a", _FLOAT, None)]
    )
    otherwise = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "else", [], [_info("b", _FLOAT, None)])
    nodes = [
        helper.make_node("If", ["c"], ["s"], then_branch=then, else_branch=otherwise),
        helper.make_node("Add", ["s", "s"], ["y"]),
    ]
    path = _saved(
        tmp_path, nodes, [_info("c", _BOOL, []), _info("x", _FLOAT, ["n", 3])], [_info("y", _FLOAT, ["k", 3])]
    )
    program = compile_in_process(import_onnx(path))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(program(c=np.array(True), x=x)["y"], np.concatenate([2 * x, 2 * x]))
    np.testing.assert_array_equal(program(c=np.array(False), x=x)["y"], -2 * x)


def test_what_a_branch_cannot_do_is_reported_once(tmp_path: Path) -> None:
    """The graph inside fails because of a node in front of it: that node is the problem, no name inside."""
    inner = helper.make_graph([helper.make_node("Neg", ["bad"], ["a"])], "then", [], [_info("a", _FLOAT, None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "else", [], [_info("b", _FLOAT, None)])
    nodes = [
        helper.make_node("NoSuchOperator", ["x"], ["bad"]),
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other),
    ]
    path = _saved(tmp_path, nodes, [_info("c", _BOOL, []), _info("x", _FLOAT, [3])], [_info("y", _FLOAT, [3])])
    with pytest.raises(UnsupportedModel, match="NoSuchOperator") as caught:
        import_onnx(path)
    assert "never makes" not in str(caught.value)
