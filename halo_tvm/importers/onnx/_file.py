"""An untrusted ONNX file: read with limits, checked, and its tensors turned into constants.

Nothing outside the model's folder is ever opened, and no tensor may be larger than what the file holds.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto, external_data_helper, numpy_helper

from ...errors import UnsupportedModel
from ._values import Constant, dtype_name

MOST_NODES = 200_000
_MOST_BYTES = 1 << 36
_CHECKER_ERRORS = (onnx.checker.ValidationError, ValueError, OSError, RuntimeError, TypeError)


def read_model(path: Path) -> ModelProto:
    """The model at `path`, accepted by the checker, its external data located but not read."""
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, OSError, RuntimeError) as reason:
        raise invalid(path.name, reason) from reason
    check_model(model, path)
    return model


def check_model(model: ModelProto, path: Path | None) -> None:
    """`UnsupportedModel` unless `model` is valid, of bounded size, and keeps its data inside its folder."""
    name = path.name if path else "the model"
    count = 0
    for node in all_nodes(model.graph):
        count += 1
        if count > MOST_NODES:
            raise UnsupportedModel(f"expected at most {MOST_NODES} nodes, found more in {name}: export a smaller graph")
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _locate(tensor, path)
    try:
        onnx.checker.check_model(str(path) if path else model)
    except _CHECKER_ERRORS as reason:
        raise invalid(name, reason) from reason


def invalid(name: str, reason: object) -> UnsupportedModel:
    lines = [line for line in str(reason).strip().splitlines() if line.strip()]
    return UnsupportedModel(
        f"expected a valid ONNX model, found {name} that the checker refuses "
        f"({lines[0][:200] if lines else type(reason).__name__}): export or download it again"
    )


def all_nodes(graph: GraphProto) -> Iterator:
    """All nodes of a graph and of the graphs that its nodes hold (branches, loop bodies)."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_nodes(inner)


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor a model holds: initialisers and attributes, inner graphs and functions included."""

    def of_nodes(nodes) -> Iterator[TensorProto]:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    yield from of_graph(inner)

    def of_graph(graph) -> Iterator[TensorProto]:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        yield from of_nodes(graph.node)

    yield from of_graph(model.graph)
    for function in model.functions:
        yield from of_nodes(function.node)


def _locate(tensor: TensorProto, path: Path | None) -> None:
    """Check where a tensor's external data lies, and write the resolved place back into it."""
    if path is None:
        raise UnsupportedModel("expected a model with its data inside, found external data: give the file's path")
    info = {entry.key: entry.value for entry in tensor.external_data}
    location = info.get("location", "")
    what = f"the external data of {tensor.name or 'a tensor'} in {path.name}"
    parts = Path(location).parts
    if not location or Path(location).is_absolute() or ".." in parts or "\\" in location:
        raise UnsupportedModel(f"expected {what} inside the model's folder, found location {location!r}: do not use it")
    folder = path.resolve().parent
    place = folder
    for part in parts:
        place = place / part
        if place.is_symlink():
            raise UnsupportedModel(f"expected {what} in a plain file, found the link {location!r}: copy the file there")
    try:
        status = place.stat()
        offset, length = int(info.get("offset", 0) or 0), int(info["length"]) if info.get("length") else None
    except (OSError, ValueError) as reason:
        raise UnsupportedModel(f"expected {what} in {location!r}, found none readable ({reason}): download it again") from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise UnsupportedModel(f"expected {what} in a plain file, found a link or device {location!r}: copy the file there")
    wanted = _bytes_of(tensor)
    length = wanted if length is None else length
    if offset < 0 or length != wanted or offset + length > status.st_size:
        raise UnsupportedModel(
            f"expected {what} to be {wanted} bytes within {location!r}, found {length} at {offset} of {status.st_size}: "
            "download it again"
        )
    del tensor.external_data[:]
    for key, value in (("location", str(place)), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _bytes_of(tensor: TensorProto) -> int:
    if any(d < 0 for d in tensor.dims):
        raise UnsupportedModel(f"expected sizes of at least 0 for {tensor.name}, found {list(tensor.dims)}: export it again")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise UnsupportedModel(f"expected a known element type for {tensor.name}, found {tensor.data_type}") from None
    count = math.prod(tensor.dims)
    bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}.get(tensor.data_type, dtype.itemsize * 8)
    size = -(-count * bits // 8)
    if size > _MOST_BYTES:
        raise UnsupportedModel(f"expected tensors of at most {_MOST_BYTES} bytes, found {size} for {tensor.name}")
    return size


def tensor_constant(tensor: TensorProto) -> Constant:
    """An initialiser as a constant; its data is read (external: mapped) when it is needed."""
    size = _bytes_of(tensor)
    dtype = dtype_name(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)))
    shape = tuple(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL:
        info = external_data_helper.ExternalDataInfo(tensor)
        place, offset = info.location, int(info.offset or 0)
        return Constant(shape, dtype, lambda: _mapped(place, offset, size, dtype, shape), tensor.name)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != size:
        raise UnsupportedModel(
            f"expected {size} bytes of data for {tensor.name} of shape {list(shape)}, found {len(tensor.raw_data)}: "
            "export or download the model again"
        )
    return Constant(shape, dtype, lambda: numpy_helper.to_array(tensor), tensor.name)


def _mapped(place: str, offset: int, size: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if size == 0:
        return np.zeros(shape, dtype)
    if os.stat(place).st_size < offset + size:
        raise UnsupportedModel(f"expected {size} bytes at {offset} of {Path(place).name}, found fewer: the file changed")
    raw = np.memmap(place, dtype=np.uint8, mode="r", offset=offset, shape=(size,))
    return raw.view(dtype).reshape(shape)


def sparse_constant(sparse: SparseTensorProto) -> Constant:
    """A sparse tensor as a dense constant."""
    shape = tuple(sparse.dims)
    count = math.prod(shape)
    if any(d < 0 for d in shape) or count > 1 << 28:
        raise UnsupportedModel(f"expected a sparse tensor of bounded size, found the shape {list(shape)}")
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(count, values.dtype)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    dense[indices] = values
    return Constant.of(dense.reshape(shape), sparse.values.name)
