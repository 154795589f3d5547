"""An export never replaces what it was made of: the model's file, and the files of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from ..errors import UsageError
from ..importers.onnx.definitions import graphs_of, nodes_in


def refuse_overwriting(model: str, output: Path) -> None:
    """`UsageError` where `output`, or the file of weights beside it, is the model or belongs to it."""
    for source in _files_of(Path(model)):
        for written in (output, output.with_name(output.name + ".data")):
            if written.exists() and written.samefile(source):
                raise UsageError(
                    f"a file other than the model's own was expected as --output, but writing {written} would replace "
                    f"{source}, which is read: name another file"
                )


def _files_of(model: Path) -> Iterator[Path]:
    """The model's file, where it is one, and those that an ONNX model keeps its weights in."""
    if not model.is_file():
        return
    yield model
    if model.suffix != ".onnx":
        return
    try:
        tensors = [*_tensors(onnx.load(model, load_external_data=False))]
    except (DecodeError, ValueError, OSError):  # the importer says what is wrong with it
        return
    outside = (tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL)
    for location in {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}:
        if "\0" not in location and (model.resolve().parent / location).is_file():
            yield model.resolve().parent / location


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Those that the model's graphs and constants hold."""
    yield from model.graph.initializer
    for outer in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for node in nodes_in(outer):
            yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))
            yield from (tensor for graph in graphs_of(node) for tensor in graph.initializer)
