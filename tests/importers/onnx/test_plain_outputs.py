"""Words, dictionaries and sequences that a classifier gives become numbers and columns, as onnxruntime has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import halo_tvm
from halo_tvm.artifact import read_manifest
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import import_onnx
from halo_tvm.importers.onnx._plain_outputs import with_plain_outputs

ort = pytest.importorskip("onnxruntime")
ML = "ai.onnx.ml"
WORDS = ("cat", "dog", "ox")
X = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)


def classifier(nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """A linear classifier of three words, whose `label` and `scores` are what `nodes` read."""
    rng = np.random.default_rng(1)
    attrs = {"coefficients": rng.standard_normal(12).tolist(), "intercepts": [0.1, 0.0, -0.1]}
    first = helper.make_node(
        "LinearClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=WORDS, **attrs
    )
    words = helper.make_tensor("words", T.STRING, [3], [w.encode() for w in ("ox", "ant", "ox")])
    x = helper.make_tensor_value_info("x", T.FLOAT, ["n", 4])
    graph = helper.make_graph([first, *nodes], "g", [x], outputs, [words])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(op: str, inputs: list[str], output: str, domain: str = "", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], domain=domain, **attrs)


def strings(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, T.STRING, ["n"])


def dictionaries(name: str) -> onnx.ValueInfoProto:
    value = helper.make_map_type_proto(T.STRING, helper.make_tensor_type_proto(T.FLOAT, []))
    return helper.make_value_info(name, helper.make_sequence_type_proto(value))


def sequence(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, None)))


def test_words_and_dictionaries(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["label"], "as_words", to=T.STRING),
        node("Identity", ["as_words"], "word"),
        node("ZipMap", ["scores"], "by_word", ML, classlabels_strings=WORDS),
        node(
            "LabelEncoder",
            ["label"],
            "number",
            ML,
            keys_strings=["dog", "ox"],
            values_int64s=[10, 20],
            default_int64=-1,
        ),
        node("LabelEncoder", ["number"], "other", ML, keys_int64s=[10, 20], values_strings=["one", "two"]),
        node("ArgMax", ["scores"], "place", axis=1, keepdims=0),
        node("ArrayFeatureExtractor", ["words", "place"], "extracted", ML),
        node("SequenceConstruct", ["scores", "scores"], "both"),
        node("SequenceConstruct", ["number"], "numbers"),
        node("SequenceConstruct", ["label", "other"], "words_of_both"),
    ]
    number = helper.make_tensor_value_info("number", T.INT64, ["n"])
    extracted = helper.make_tensor_value_info("extracted", T.STRING, [1, "n"])
    outputs = [strings("word"), dictionaries("by_word"), number, strings("other"), extracted, sequence("both", T.FLOAT)]
    outputs += [sequence("numbers", T.INT64), sequence("words_of_both", T.STRING)]
    path = tmp_path / "net.onnx"
    onnx.save(classifier(nodes, outputs), path)
    halo_tvm.compile_model(halo_tvm.CompileConfig(model=str(path), output=str(tmp_path / "net.halo")))
    labels = {spec.name: spec.labels for spec in read_manifest(tmp_path / "net.halo").functions["main"].outputs}
    assert labels["word"] == labels["by_word"] == WORDS and labels["number"] == ()
    assert labels["other"] == ("one", "two", "_Unused") and labels["extracted"] == ("ox", "ant")
    word, by_word, number, other, extracted, both, numbers, words = ort.InferenceSession(str(path)).run(None, {"x": X})
    found = dict(zip(labels, halo_tvm.load(str(tmp_path / "net.halo"))(X), strict=True))
    named = {
        "word": word,
        "other": other,
        "extracted": extracted,
        "words_of_both.0": words[0],
        "words_of_both.1": words[1],
    }
    for name, wanted in named.items():
        assert np.array_equal(np.array(labels[name])[found[name]], wanted)
    np.testing.assert_array_equal(found["number"], number)
    np.testing.assert_array_equal(found["numbers.0"], numbers[0])
    scores = np.array([[row[w] for w in WORDS] for row in by_word])
    for name, wanted in (("by_word", scores), ("both.0", both[0]), ("both.1", both[1])):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


def test_words_that_are_missing_are_refused(tmp_path: Path) -> None:
    model = classifier([node("Identity", ["words"], "y")], [strings("y")])
    model.graph.initializer[0].dims[0] = 5
    with pytest.raises(UnsupportedModel, match="a word for each element of words, found 3 words"):
        with_plain_outputs(model)


def test_words_that_come_in_are_refused(tmp_path: Path) -> None:
    model = classifier([], [strings("label")])
    model.graph.input.append(helper.make_tensor_value_info("city", T.STRING, ["n"]))
    model.graph.node.append(node("LabelEncoder", ["city"], "c", ML, keys_strings=["Rome"], values_int64s=[1]))
    model.graph.output.append(helper.make_tensor_value_info("c", T.INT64, ["n"]))
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(UnsupportedModel, match="city"):
        import_onnx(tmp_path / "net.onnx")
