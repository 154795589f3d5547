"""`halo-tvm export`: operators as one node each, kernels as the nodes they came from, onnxruntime's word for it."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halo_tvm.cli import main
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.exporters._graph import Spelling
from halo_tvm.exporters.comparison import compare
from halo_tvm.exporters.onnx import PLAIN, write_onnx
from halo_tvm.exporters.optimised import optimised
from halo_tvm.importers.onnx import import_proto
from halo_tvm.models import FAMILIES
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2

pytest.importorskip("onnxruntime")
SIZES = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 61, "positions": 24, "feed_forward": 64}


def nodes_of(path: Path) -> Counter:
    return Counter(node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node)


@pytest.mark.parametrize(("name", "config"), [("gpt2", gpt2), ("bert", BertConfig)])
def test_operators_are_one_node_each_where_the_opset_has_them(name: str, config, tmp_path: Path) -> None:
    model = FAMILIES[name].build(name, config(**SIZES), RandomWeights(1), {"kind": "builtin"})
    better = optimised(model)
    for spelling, attention in (
        (Spelling.of("portable"), "Softmax"),
        (Spelling.of("portable", 23), "Attention"),
        (Spelling.of("onnxruntime"), "MultiHeadAttention"),
    ):
        path = tmp_path / f"{spelling.attention}.onnx"
        write_onnx(better, path, spelling)
        found = nodes_of(path)
        assert found[attention] == 1 and found["LayerNormalization"] == 3
        assert found["MatMul"] == (6 if attention == "Softmax" else 4) + (name == "gpt2")
        result = compare(model, None, path, threads=1)
        assert result.agrees and result.after.nodes == sum(found.values()), result
    names = {t.name for t in onnx.load(str(path), load_external_data=False).graph.initializer}
    assert any("c_attn" in n or "query" in n for n in names)


def model_of(nodes: list, x: list, outputs: dict[str, list | None], opset: int, **weights: np.ndarray):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def net() -> onnx.ModelProto:
    """A convolution, a pool, an LSTM, and operators that the importer makes kernels of."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1], strides=[2]),
        node("MaxPool", ["c"], ["m"], kernel_shape=[2]),
        node("Transpose", ["m"], ["t"], perm=[2, 0, 1]),
        node("LSTM", ["t", "lw", "lr", "lb"], ["y", "h"], hidden_size=4),
        node("Celu", ["h"], ["e"], alpha=0.5),
        node("CumSum", ["e", "axis"], ["r"], reverse=1),
        node("Shape", ["r"], ["sizes"]),
        node("NonZero", ["r"], ["places"]),  # a size that only the run knows
        node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        node("ReduceMax", ["numbers"], ["last"], keepdims=0),
        node("Expand", ["last", "sizes"], ["wide"]),
        node("Add", ["r", "wide"], ["s"]),
    ]
    weights = {"w": (4, 3, 3), "lw": (1, 16, 4), "lr": (1, 16, 4), "lb": (1, 32)}
    arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in weights.items()}
    return model_of(nodes, ["n", 3, 12], {"s": [1, "n", 4]}, 18, **arrays, axis=np.array(2, np.int64))


def test_the_verb_exports_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(net(), source)
    assert main(["export", str(source), "-o", str(out), "--for", "onnxruntime", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "opset 18" in said and "before" in said and "after" in said and "largest error" in said
    assert nodes_of(out).items() >= {"Conv": 1, "MaxPool": 1, "LSTM": 1, "CumSum": 1}.items()
    assert main(["export", str(source), "-o", str(out), "--opset", "12"]) == 1
    assert "expected an opset from 18 to 24, found 12" in capsys.readouterr().err
    assert main(["export", str(source), "-o", os.fsdecode(b"e\xff.onnx")]) == 1
    assert "expected a path in UTF-8, found 'e\\udcff.onnx'" in capsys.readouterr().err


def test_the_source_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, ext, linked = tmp_path / "own.onnx", tmp_path / "ext.onnx", tmp_path / "linked.onnx"
    onnx.save(net(), own)
    onnx.save(net(), ext, save_as_external_data=True, location="weights.onnx.data", size_threshold=0)
    linked.symlink_to(own)
    held = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for source, output in ((own, own), (own, linked), (ext, ext), (ext, tmp_path / "weights.onnx")):
        assert main(["export", str(source), "-o", str(output)]) == 1
        assert "would replace" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == held


def test_sums_of_bytes_that_saturate_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without VNNI onnxruntime keeps pairs of products in 16 bits: of the largest bytes no pair fits."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "point"]),
        helper.make_node("MatMulInteger", ["q", "w", "point"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["y"]),
    ]
    source, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(model_of(nodes, ["n", 64], {"y": ["n", 8]}, 18, w=np.full((64, 8), 127, np.int8)), source)
    assert main(["export", str(source), "-o", str(out), "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert nodes_of(out)["MatMulInteger"] == 1 and re.search(r"largest error: (0|\de-\d\d) of", said), said


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("ScatterND", ["x", "rows", "updates"], ["y"])]
    held = {"rows": np.array([[2], [0]]), "updates": np.ones((2, 4), np.float32)}
    model = model_of(nodes, [3, 4], {"y": [3, 4]}, 18, **held)
    imported = import_proto(model, name="net")  # not for export: its node becomes kernels
    with pytest.raises(
        UnsupportedModel, match=r"expected operators with an ONNX spelling, found\n.*the kernel scatternd"
    ):
        write_onnx(imported, tmp_path / "net.onnx", PLAIN)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="expected an opset from 18 to 24, found 25"):
        Spelling.of("portable", 25)
