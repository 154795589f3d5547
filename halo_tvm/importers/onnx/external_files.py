"""Where a model's file keeps weights that are not in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from ...errors import UnsupportedModel
from ...model_names import place_of
from ._file import contents


def external_files(model: Path) -> Iterator[Path]:
    """The files that are there beside an ONNX `model`; none of one that the importer would refuse, which says why."""
    try:
        tensors = contents(onnx.load(model, load_external_data=False)).tensors
    except (DecodeError, UnsupportedModel, ValueError, OSError):
        return
    outside = (tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL)
    for location in {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}:
        if "\0" not in location and (file := place_of(model).parent / location).is_file():
            yield file
