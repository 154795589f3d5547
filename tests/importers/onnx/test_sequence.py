"""Sequences and optional values: gone after the import where their length is known, refused elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import backend, import_proto
from halo_tvm.in_process import compile_in_process

X = np.arange(12, dtype=np.float32).reshape(2, 6)
LISTS = helper.make_sequence_type_proto(helper.make_tensor_type_proto(T.FLOAT, None))
OPTIONAL = helper.make_optional_type_proto(LISTS)


def model(nodes: list, inputs: list, outputs: list) -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )


def integer(name: str, value: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.array(value, np.int64)))


def test_a_sequence_inside_a_model_leaves_nothing_behind() -> None:
    """Split in three, the middle moved to the front, the last dropped, two joined: with any number of rows."""
    nodes = [
        integer("two", 2),
        integer("zero", 0),
        integer("one", 1),
        helper.make_node("SplitToSequence", ["x", "two"], ["s"], axis=1),
        helper.make_node("SequenceAt", ["s", "one"], ["middle"]),
        helper.make_node("SequenceErase", ["s"], ["short"]),
        helper.make_node("SequenceErase", ["short", "one"], ["first"]),
        helper.make_node("SequenceInsert", ["first", "middle", "zero"], ["swapped"]),
        helper.make_node("ConcatFromSequence", ["swapped"], ["y"], axis=-1),
        helper.make_node("SequenceLength", ["swapped"], ["n"]),
    ]
    outputs = [helper.make_tensor_value_info("y", T.FLOAT, None), helper.make_tensor_value_info("n", T.INT64, None)]
    proto = model(nodes, [helper.make_tensor_value_info("x", T.FLOAT, ["rows", 6])], outputs)
    found = compile_in_process(import_proto(proto, name="t"), threads=1)(x=X)
    assert (found["y"] == X[:, [2, 3, 0, 1]]).all() and found["n"] == 2


def test_sequences_go_in_and_out_of_the_backend() -> None:
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("SequenceConstruct", ["x", "x"], ["pair"]),
        helper.make_node("Identity", ["s"], ["same"]),
    ]
    inputs = [
        helper.make_value_info("o", OPTIONAL),
        helper.make_value_info("s", LISTS),
        helper.make_tensor_value_info("x", T.FLOAT, [2, 6]),
    ]
    outputs = [
        helper.make_tensor_value_info("has", T.BOOL, []),
        *(helper.make_value_info(n, LISTS) for n in ("pair", "same")),
    ]
    rep = backend.prepare(model(nodes, inputs, outputs))
    has, pair, same = rep.run([None, [X, X[:1]], X])
    assert not has and [p.shape for p in pair] == [(2, 6)] * 2
    assert [s.tolist() for s in same] == [X.tolist(), X[:1].tolist()]
    has, _, same = rep.run([[X], [], X])
    assert has and same == []


def test_sequences_as_inputs_or_outputs_of_a_file_are_refused() -> None:
    x = helper.make_tensor_value_info("x", T.FLOAT, [2, 6])
    made = model([helper.make_node("SequenceConstruct", ["x"], ["s"])], [x], [helper.make_value_info("s", LISTS)])
    with pytest.raises(UnsupportedModel, match="expected tensors as outputs, found a sequence s"):
        import_proto(made, name="t")
    taken = model([helper.make_node("Identity", ["s"], ["y"])], [helper.make_value_info("s", LISTS)], [x])
    with pytest.raises(UnsupportedModel, match="expected tensors as inputs, found sequence_type s"):
        import_proto(taken, name="t")


@pytest.mark.parametrize(
    ("op", "inputs", "reason"),
    [
        ("SequenceAt", ["s", "five"], "position 5 lies outside the sequence of 1"),
        ("SequenceAt", ["s", "p"], "must be constant"),
        ("SequenceErase", ["e"], "nothing to erase"),
        ("ConcatFromSequence", ["e"], "the sequence is empty"),
    ],
)
def test_what_is_not_there_is_refused(op: str, inputs: list[str], reason: str) -> None:
    attrs = {"axis": 0} if op == "ConcatFromSequence" else {}
    nodes = [
        integer("five", 5),
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("SequenceEmpty", [], ["e"]),
        helper.make_node(op, inputs, ["y"], **attrs),
    ]
    infos = [helper.make_tensor_value_info("x", T.FLOAT, [2, 6]), helper.make_tensor_value_info("p", T.INT64, [])]
    with pytest.raises(UnsupportedModel, match=reason):
        import_proto(model(nodes, infos, [helper.make_tensor_value_info("y", T.FLOAT, None)]), name="t")
