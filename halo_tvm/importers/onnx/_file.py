"""An untrusted ONNX file: read with limits, checked, and its tensors turned into constants.

Nothing outside the model's folder is ever opened, no tensor may be larger than what the file holds, and the data of
large tensors stays in its file until it is needed.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from ...array_files import one_reason
from ...errors import UnsupportedModel
from ...model_names import place_of
from ..meaning.constant import Constant
from ._external import DataFile, locate, model_file
from ._slim import slim
from ._sorted import sort_nodes
from ._values import element_dtype

MOST_NODES = 100_000
MOST_BYTES = 1 << 36  # of one tensor
MOST_DIMENSIONS = 64  # of one tensor, as NumPy has it
_MOST_SPARSE = 1 << 30  # bytes of all sparse tensors of a model as dense ones
_CHECKER_ERRORS = (onnx.checker.ValidationError, ValueError, OSError, RuntimeError, TypeError)
_PLACE = ("halo.folder", "halo.parts", "halo.identity", "halo.offset")  # how a checked place is written down
_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def read_model(path: Path) -> ModelProto:
    """The model at `path`, accepted by the checker; the data of large tensors is located but not read."""
    from google.protobuf.message import DecodeError

    token = secrets.token_hex(16)
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            model = ModelProto.FromString(slim(stream, status.st_size, token))
    except (DecodeError, ValueError, OSError, RuntimeError) as reason:
        raise invalid(path.name, reason) from reason
    own = model_file(path, status)
    _check(model, path, own, token)
    return model


def check_model(model: ModelProto, path: Path | None) -> None:
    """`UnsupportedModel` unless `model` is valid, of bounded size, and keeps its data inside its folder.

    Its nodes are brought into order.
    """
    _check(model, path, None, "")


def _check(model: ModelProto, path: Path | None, own: DataFile | None, token: str) -> None:
    name = path.name if path else "the model"
    inside = contents(model)
    _use_one_name(model, inside.nodes)
    if sort_nodes(model):
        inside = contents(model)
    checked: dict[str, DataFile] = {}
    for tensor in inside.tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            _locate(tensor, path, own, token, checked)
        elif tensor.data_type != TensorProto.STRING:
            _check_values(tensor)
    dense = sum(_dense_bytes(s) for s in inside.sparse)
    if dense > _MOST_SPARSE:
        raise UnsupportedModel(
            f"expected sparse tensors that fill at most {_MOST_SPARSE} bytes, found {dense} in {name}: "
            "export dense ones"
        )
    try:
        has_external = any(t.data_location == TensorProto.EXTERNAL for t in inside.tensors)
        with _shapes_of_all(model):
            onnx.checker.check_model(_without_external_data(model) if has_external else model)
    except _CHECKER_ERRORS as reason:
        raise invalid(name, reason) from reason


def _use_one_name(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    """The default domain is called "" in all of `model`: its other name, ai.onnx, is valid, but not for the checker."""
    for item in (*nodes, *model.functions):
        if item.domain == "ai.onnx":
            item.domain = ""
    for holder in (model, *model.functions):
        named = {imported.domain: imported.version for imported in holder.opset_import}
        other = named.pop("ai.onnx", None)
        if other is not None:
            del holder.opset_import[:]
            for domain, version in {"": other, **named}.items():
                holder.opset_import.add(domain=domain, version=version)


@contextmanager
def _shapes_of_all(model: ModelProto) -> Iterator[None]:
    """Inputs and outputs without a shape, whose rank exporters did not know, have one for the checker meanwhile."""
    infos = (info.type.tensor_type for info in (*model.graph.input, *model.graph.output) if info.HasField("type"))
    lacking = [tensor for tensor in infos if tensor.elem_type and not tensor.HasField("shape")]
    for tensor in lacking:
        tensor.shape.SetInParent()
    try:
        yield
    finally:
        for tensor in lacking:
            tensor.ClearField("shape")


def invalid(name: str, reason: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        f"expected a valid ONNX model, found {name} that the checker refuses "
        f"({one_reason(reason)}): export or download it again"
    )


@dataclass(frozen=True)
class Contents:
    """Everything that a model holds, graphs inside nodes and the bodies of functions included."""

    nodes: list[NodeProto]
    tensors: list[TensorProto]  # those of sparse tensors, too
    sparse: list[SparseTensorProto]


def contents(model: ModelProto) -> Contents:
    """One walk over `model`; `UnsupportedModel` when it has too many nodes."""
    nodes, tensors, sparse = [], list(model.graph.initializer), list(model.graph.sparse_initializer)
    todo = [model.graph.node, *(f.node for f in model.functions)]
    while todo:
        found = todo.pop()
        nodes.extend(found)
        if len(nodes) > MOST_NODES:
            raise UnsupportedModel(f"expected at most {MOST_NODES} nodes, found more: export a smaller graph")
        for node in found:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    tensors.append(attribute.t)
                if attribute.HasField("sparse_tensor"):
                    sparse.append(attribute.sparse_tensor)
                tensors.extend(attribute.tensors)
                sparse.extend(attribute.sparse_tensors)
                for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    tensors.extend(graph.initializer)
                    sparse.extend(graph.sparse_initializer)
                    todo.append(graph.node)
    tensors.extend(t for s in sparse for t in (s.values, s.indices))
    return Contents(nodes, tensors, sparse)


def _without_external_data(model: ModelProto) -> ModelProto:
    """A copy for the checker, which then opens no file; tensors with data elsewhere are empty in it."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in contents(copy).tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            del tensor.external_data[:], tensor.dims[:]
            tensor.ClearField("data_location")
            tensor.dims.append(0)
    return copy


# Where data lies, and how much there is.


def _locate(
    tensor: TensorProto, path: Path | None, own: DataFile | None, token: str, checked: dict[str, DataFile]
) -> None:
    """Check where a tensor's external data lies, and write that down in its place."""
    if path is None:
        raise UnsupportedModel("expected a model with its data inside, found external data: give the file's path")
    what = f"the data of {tensor.name[:100] or 'a tensor'} in {path.name}"
    info = {entry.key: entry.value for entry in tensor.external_data}
    location, wanted = info.get("location", ""), _bytes_of(tensor)
    try:
        if own and location.startswith(f"{token}:"):
            file, (offset, length) = own, map(int, location.split(":")[1:])
        else:
            file = checked.get(location) or locate(place_of(path).parent, location, f"the external {what[4:]}")
            checked[location] = file
            offset = int(info.get("offset") or 0)
            length = int(info["length"]) if info.get("length") else wanted
    except ValueError as reason:
        raise UnsupportedModel(f"expected numbers for the place of {what}, found {reason}: export it again") from None
    if offset < 0 or length != wanted or offset + length > file.size_bytes:
        raise UnsupportedModel(
            f"expected {what} to be {wanted} bytes within {file.parts[-1]!r}, found {length} at {offset} of "
            f"{file.size_bytes}: download it again"
        )
    del tensor.external_data[:]
    identity = ":".join(map(str, file.identity))
    for key, value in zip(_PLACE, (str(file.folder), "/".join(file.parts), identity, str(offset))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _bytes_of(tensor: TensorProto) -> int:
    name = tensor.name[:100] or "a tensor"
    if any(d < 0 for d in tensor.dims) or len(tensor.dims) > MOST_DIMENSIONS:
        raise UnsupportedModel(
            f"expected at most {MOST_DIMENSIONS} sizes of at least 0 for {name}, "
            f"found {list(tensor.dims)[:8]}: export it again"
        )
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise UnsupportedModel(
            f"expected a known element type for {name}, found {tensor.data_type}: export the model again"
        ) from None
    count = math.prod(tensor.dims)
    bits = _BITS.get(TensorProto.DataType.Name(tensor.data_type), dtype.itemsize * 8)
    size = -(-count * bits // 8)
    if size > MOST_BYTES:
        raise UnsupportedModel(
            f"expected tensors of at most {MOST_BYTES} bytes, found {size} for {name}: export it again"
        )
    return size


def _check_values(tensor: TensorProto) -> None:
    """`UnsupportedModel` unless a tensor inside the model holds as many values as its sizes say."""
    size = _bytes_of(tensor)
    if tensor.HasField("raw_data"):
        found, unit, wanted = len(tensor.raw_data), "bytes", size
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        found, unit, wanted = len(getattr(tensor, field)), "values", math.prod(tensor.dims)
        name = TensorProto.DataType.Name(tensor.data_type)
        wanted *= 2 if name.startswith("COMPLEX") else 1
        wanted = -(-wanted * _BITS.get(name, 8) // 8)
    if found != wanted:
        raise UnsupportedModel(
            f"expected {wanted} {unit} of data for {tensor.name[:100] or 'a tensor'} of shape {list(tensor.dims)[:8]}, "
            f"found {found}: export or download the model again"
        )


def _dense_bytes(sparse: SparseTensorProto) -> int:
    if any(d < 0 for d in sparse.dims):
        raise UnsupportedModel(
            f"expected a sparse tensor of sizes of at least 0, found {list(sparse.dims)[:8]}: export it again"
        )
    _bytes_of(sparse.values)
    return math.prod(sparse.dims) * onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize


# Tensors as constants.


def tensor_constant(tensor: TensorProto) -> Constant:
    """A tensor of a checked model as a constant; data that is not in the parsed model is read when it is needed."""
    size = _bytes_of(tensor)
    dtype = element_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if tensor.data_location != TensorProto.EXTERNAL:
        return Constant(shape, dtype, lambda: numpy_helper.to_array(tensor), tensor.name)
    info = {entry.key: entry.value for entry in tensor.external_data}
    folder, parts, identity, offset = (info[key] for key in _PLACE)
    file = DataFile(Path(folder), tuple(parts.split("/")), tuple(map(int, identity.split(":"))))
    packed = TensorProto.DataType.Name(tensor.data_type) in _BITS

    def load() -> np.ndarray:
        raw = file.read(int(offset), size)
        if packed:
            held = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=raw.tobytes())
            return numpy_helper.to_array(held)
        return raw.view(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(shape)

    return Constant(shape, dtype, load, tensor.name)


def sparse_constant(sparse: SparseTensorProto) -> Constant:
    """A sparse tensor of a checked model as a dense constant."""
    shape, values, indices = tuple(sparse.dims), tensor_constant(sparse.values), tensor_constant(sparse.indices)

    def load() -> np.ndarray:
        where, count = indices.array, math.prod(shape)
        if where.ndim == 2 and where.shape[1] == len(shape) and where.size:
            where = np.ravel_multi_index(tuple(where.T), shape, mode="raise")
        where = where.reshape(-1)
        if where.size != values.array.size or (where.size and (where.min() < 0 or where.max() >= count)):
            raise UnsupportedModel(
                f"expected the indices of {sparse.values.name or 'a sparse tensor'} within {list(shape)}, "
                "found others: export the model again"
            )
        dense = np.zeros(count, values.array.dtype)
        dense[where] = values.array.reshape(-1)
        return dense.reshape(shape)

    return Constant(shape, values.dtype, load, sparse.values.name)
