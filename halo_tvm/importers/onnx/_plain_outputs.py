"""Results of classifiers that are no tensors of numbers become such, in the graph itself.

Before -> after
    classlabels_strings = ["cat", "dog"], words of a result    ->    classlabels_int64s = [0, 1], their numbers
    ZipMap(scores): a dictionary for each row                  ->    Identity(scores): a column for each class
    scores = SequenceConstruct(a, b)                           ->    results scores.0 = a, scores.1 = b
Serves
    words among initialisers, labels and encoders of ai.onnx.ml, through what only moves them
Leaves alone
    words that come in as inputs, and what compares or joins words: their converters refuse them
onnxruntime runs the changed graph as the reference. What numbers and columns stand for is in `labels`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, load, numpy_helper

from ...errors import UnsupportedModel

Labels = Mapping[str, tuple[str, ...]]
_ML = "ai.onnx.ml"
_CLASSIFIERS = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}
_MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather")


def with_plain_outputs(model: ModelProto) -> tuple[bool, Labels]:
    """Change `model` where it needs that. Whether it did, and what numbers or columns of its outputs stand for."""
    change = _Change(model.graph)
    labels = change.labels() if change.found else {}
    if change.found and not any(o.domain in ("", "ai.onnx") for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 13))
    return change.found, labels


def needs_change(path: Path) -> bool:
    """Whether the model at `path` does; its external data is not read."""
    return with_plain_outputs(load(path, load_external_data=False))[0]


def changed_file(path: Path) -> bytes:
    """The model at `path`, with all its data, changed so."""
    model = load(path)
    with_plain_outputs(model)
    return bytes(model.SerializeToString())


class _Change:
    """One walk over the nodes of a graph, in order."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        self._words: dict[str, tuple[str, ...]] = {}  # tensors of words -> what their numbers stand for
        self._columns: dict[str, tuple[str, ...]] = {}
        self._sequences: dict[str, NodeProto] = {}
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.STRING:
                self._words[tensor.name] = _number(tensor)
        for node in graph.node:
            self._visit(node)
        self.found = bool(self._words or self._columns or any(o.name in self._sequences for o in graph.output))

    def _visit(self, node: NodeProto) -> None:
        first = self._words.get(node.input[0]) if node.input else None
        if node.domain == _ML:
            self._visit_classic(node, first)
        elif node.domain not in ("", "ai.onnx") or not node.output:
            return
        elif node.op_type == "Constant" and (words := _constant(node)):
            self._words[node.output[0]] = words
        elif node.op_type == "SequenceConstruct":
            self._sequences[node.output[0]] = node
        elif first is not None and node.op_type == "Cast" and _makes_words(node):
            del node.attribute[:]
            node.op_type = "Identity"
            self._words[node.output[0]] = first
        elif first is not None and node.op_type in _MOVES:
            self._words[node.output[0]] = first
        elif node.op_type == "Identity" and node.input[0] in self._columns:
            self._columns[node.output[0]] = self._columns[node.input[0]]

    def _visit_classic(self, node: NodeProto, first: tuple[str, ...] | None) -> None:
        if node.op_type in _CLASSIFIERS:
            words = _words_of(node, "classlabels_strings")
            if words:
                _replace(node, "classlabels_strings", _CLASSIFIERS[node.op_type], range(len(words)))
                self._words[node.output[0]] = words
        elif node.op_type == "ZipMap":
            columns = _words_of(node, "classlabels_strings") or _numbers_of(node, "classlabels_int64s")
            del node.attribute[:]
            node.op_type, node.domain = "Identity", ""
            self._columns[node.output[0]] = columns
        elif node.op_type == "LabelEncoder":
            self._encoder(node, first)
        elif node.op_type == "ArrayFeatureExtractor" and first is not None:
            self._words[node.output[0]] = first

    def _encoder(self, node: NodeProto, known: tuple[str, ...] | None) -> None:
        keys, values = _words_of(node, "keys_strings"), _words_of(node, "values_strings")
        if keys and known is not None:
            numbers = {word: i for i, word in enumerate(known)}
            # A key that no word is equal to has a number that none has.
            _replace(node, "keys_strings", "keys_int64s", [numbers.get(key, -1 - i) for i, key in enumerate(keys)])
        if values and (not keys or known is not None):
            default = _attribute(node, "default_string")
            other = default.s.decode("utf-8", "replace") if default else "_Unused"
            *places, behind = _places(words := tuple(dict.fromkeys([*values, other])), [*values, other])
            _replace(node, "values_strings", "values_int64s", places)
            _drop(node, "default_string", "default_int64")
            node.attribute.append(helper.make_attribute("default_int64", behind))
            self._words[node.output[0]] = words

    def labels(self) -> Labels:
        """What numbers and columns of the outputs stand for, whose types are changed."""
        for value in [*self._graph.value_info, *self._graph.output]:
            if value.name in self._words:
                value.type.tensor_type.elem_type = TensorProto.INT64
        kept = [value for value in self._graph.value_info if value.name not in self._columns]
        del self._graph.value_info[:]
        self._graph.value_info.extend(kept)
        outputs = []
        for output in self._graph.output:
            if output.name in self._columns:
                outputs.append(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
            elif output.name in self._sequences:
                kind = output.type.sequence_type.elem_type.tensor_type.elem_type
                for i, name in enumerate(self._sequences[output.name].input):
                    part = f"{output.name}.{i}"
                    self._graph.node.append(helper.make_node("Identity", [name], [part]))
                    if name in self._words:
                        self._words[part], kind = self._words[name], TensorProto.INT64
                    outputs.append(helper.make_tensor_value_info(part, kind, None))
            else:
                outputs.append(output)
        del self._graph.output[:]
        self._graph.output.extend(outputs)
        known = self._words | self._columns
        return {output.name: known[output.name] for output in self._graph.output if output.name in known}


def _number(tensor: TensorProto) -> tuple[str, ...]:
    """The words of `tensor`, which becomes their numbers."""
    words = [word.decode("utf-8", "replace") for word in tensor.string_data]
    known = tuple(dict.fromkeys(words))
    numbers = np.array(_places(known, words), np.int64)
    if math.prod(tensor.dims) != len(words):
        raise UnsupportedModel(
            f"expected a word for each element of {tensor.name or 'a constant'}, found {len(words)} words for the "
            f"sizes {list(tensor.dims)}: export the model again"
        )
    tensor.CopyFrom(numpy_helper.from_array(numbers.reshape(tuple(tensor.dims)), tensor.name))
    return known


def _places(known: Sequence[str], words: Iterable[str]) -> list[int]:
    numbers = {word: i for i, word in enumerate(known)}
    return [numbers[word] for word in words]


def _constant(node: NodeProto) -> tuple[str, ...]:
    """The words of a constant, which becomes their numbers; none where it holds numbers."""
    value = _attribute(node, "value")
    if value is not None and value.t.data_type == TensorProto.STRING:
        return _number(value.t)
    words = _words_of(node, "value_strings")
    known = tuple(dict.fromkeys(words))
    if words:
        _replace(node, "value_strings", "value_ints", _places(known, words))
    return known


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((a for a in node.attribute if a.name == name), None)


def _words_of(node: NodeProto, name: str) -> tuple[str, ...]:
    found = _attribute(node, name)
    return tuple(word.decode("utf-8", "replace") for word in found.strings) if found else ()


def _numbers_of(node: NodeProto, name: str) -> tuple[str, ...]:
    found = _attribute(node, name)
    return tuple(map(str, found.ints)) if found else ()


def _makes_words(cast: NodeProto) -> bool:
    kind = _attribute(cast, "to")
    return kind is not None and kind.i == TensorProto.STRING


def _drop(node: NodeProto, *names: str) -> None:
    for name in names:
        if (found := _attribute(node, name)) is not None:
            node.attribute.remove(found)


def _replace(node: NodeProto, name: str, other: str, numbers: Iterable[int]) -> None:
    """The attribute `other` with `numbers` in place of `name`."""
    _drop(node, name, other)
    node.attribute.append(helper.make_attribute(other, list(numbers)))
