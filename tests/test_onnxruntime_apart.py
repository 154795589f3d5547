"""onnxruntime apart: its answers, its refusals, and its end, which is not ours."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halo_tvm import onnxruntime_apart
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.onnxruntime_apart import Model, Refused
from halo_tvm.processes import Ended

LEAST_BY_MINUS_ONE = {"x": np.full(3, -(2**63), "int64"), "d": np.full(3, -1, "int64")}


def divided(path: Path) -> str:
    """y = x // d of integers: onnxruntime divides the least one by -1, which ends its process."""
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in ("x", "d", "y")]
    graph = helper.make_graph([helper.make_node("Div", ["x", "d"], ["y"])], "g", values[:2], values[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_answers_refusals_and_an_end(tmp_path: Path) -> None:
    with Model(divided(tmp_path / "divided.onnx"), exact=False) as model:
        seven, two = np.full(3, 7, "int64"), np.full(3, 2, "int64")
        assert model(("y",), {"x": seven, "d": two})[0].tolist() == [3, 3, 3]
        with pytest.raises(Refused, match="Invalid rank for input: x"):
            model(("y",), {"x": seven[None], "d": two})
        with pytest.raises(Ended, match="signal 8"):
            model(("y",), LEAST_BY_MINUS_ONE)
        assert model(("y",), {"x": seven, "d": two})[0].tolist() == [3, 3, 3], "a process begins anew"


def test_bytes_are_a_model_too(tmp_path: Path) -> None:
    model = Model(Path(divided(tmp_path / "divided.onnx")).read_bytes(), exact=True)
    ones = np.ones(2, "int64")
    for _ in range(2):  # no session is kept outside of `with`
        assert model(("y",), {"x": ones, "d": ones})[0].tolist() == [1, 1]
    running = onnxruntime_apart._running
    assert running is not None and not running.knows(model._number)


def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    model, ones = Model(divided(tmp_path / "divided.onnx"), exact=False), np.ones(2, "int64")
    model(("y",), {"x": ones, "d": ones})
    os.kill(onnxruntime_apart._running._process.pid, signal.SIGKILL)
    with pytest.raises(Ended, match="signal 9"):
        model(("y",), {"x": ones, "d": ones})
    assert model(("y",), {"x": ones, "d": ones})[0].tolist() == [1, 1]


def test_the_sentence_says_how_it_ended_and_what_helps(tmp_path: Path) -> None:
    model = import_model(divided(tmp_path / "divided.onnx"))
    with pytest.raises(
        UnsupportedModel, match=r"divided.onnx .* its process ended with signal 8: give inputs .* --inputs"
    ):
        model.source_outputs(LEAST_BY_MINUS_ONE)


def test_strings_and_what_no_archive_holds(tmp_path: Path) -> None:
    """Labels come back as characters; an input of Python's objects ends in a sentence."""
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])
    labels = {"keys_int64s": [0, 1], "values_strings": ["no", "yes"]}
    graph = helper.make_graph(
        [helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **labels)], "g", [x], [y]
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=8), tmp_path / "labels.onnx")
    model = Model(str(tmp_path / "labels.onnx"), exact=False)
    assert model(("y",), {"x": np.array([1, 0])})[0].tolist() == ["yes", "no"]
    with pytest.raises(Ended, match="exit code 1(.|\n)*Object arrays cannot be loaded"):
        model(("y",), {"x": np.array([object()])})


def test_a_session_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    ones = np.ones(2, "int64")
    with Model(divided(tmp_path / "divided.onnx"), exact=False) as model:
        model(("y",), {"x": ones, "d": ones})
        os.kill(onnxruntime_apart._running._process.pid, signal.SIGKILL)
    assert model(("y",), {"x": ones, "d": ones})[0].tolist() == [1, 1]
