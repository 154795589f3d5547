"""Constants without elements: the file of the virtual machine cannot hold them, so they are allocated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import halo_tvm
from halo_tvm.cli._main import main


def test_an_artifact_holds_constants_without_elements(tmp_path: Path) -> None:
    """One is read by a kernel, and handed out as it is."""
    empty = numpy_helper.from_array(np.zeros((2, 0), np.float32), "empty")
    nodes = [helper.make_node("Concat", ["empty", "x"], ["y"], axis=1), helper.make_node("Identity", ["empty"], ["e"])]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, d]) for n, d in (("x", "n"), ("y", "m"), ("e", 0))]
    graph = helper.make_graph(nodes, "empty", infos[:1], infos[1:], [empty])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    assert main(["compile", "--model", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.halo")]) == 0
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with halo_tvm.load(tmp_path / "m.halo") as module:
        y, e = module(x)
    np.testing.assert_array_equal(y, x)
    assert e.shape == (2, 0)
