"""A TFLite file: read with limits, checked, and its tensors, operators and graphs as plain records.

Refuses offsets outside the file, tensors whose data and sizes disagree, numbers of tensors and graphs that do not
exist, graphs that call themselves, grids with a scale that is zero or not a number, and a grid's axis out of range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedModel
from ._flatbuffer import Malformed, Table, root
from ._schema import IDENTIFIER, OPERATORS, OPTIONS, TYPES
from ._sparse import dense

_CUSTOM = 1 << 16  # bytes of a custom operator's options that are kept
_MOST_DIMENSIONS = 8  # LiteRT's own kernels take no more
_MOST_ELEMENTS = 1 << 34
_VECTORS = {"I": np.int32, "F": np.float32}
_PACKED = {"int4": 2, "uint4": 2, "int2": 4}  # elements in a byte
_CALLED = ("then_subgraph_index", "else_subgraph_index", "cond_subgraph_index", "body_subgraph_index")
Option = int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Grid:
    """value = (integer - zero) * scale; one pair for the tensor, or one for each slice along `axis`."""

    scales: NDArray[np.float32]
    zeros: NDArray[np.int64]
    axis: int

    def floats(self, integers: NDArray[Any]) -> NDArray[np.float32]:
        """What `integers` stand for."""
        shape = [-1 if i == self.axis and self.scales.size > 1 else 1 for i in range(integers.ndim)]
        scales, zeros = self.scales.astype(np.float64).reshape(shape), self.zeros.reshape(shape)
        return ((integers - zeros) * scales).astype(np.float32)


@dataclass(frozen=True)
class Tensor:
    """`shape` has None for a size that is not known; `data` is set where the values are."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    grid: Grid | None
    data: NDArray[Any] | None
    is_variable: bool

    @property
    def is_complex(self) -> bool:
        """Whether it is written as pairs of floats."""
        return self.dtype.startswith("complex")


@dataclass(frozen=True)
class Operator:
    """Numbers of tensors; -1 is an input left out."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Option]
    custom: bytes = b""  # options of a custom operator, in a form of its own


@dataclass(frozen=True)
class Graph:
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """A function of the file: names of its inputs and outputs -> tensors of `graph`."""

    key: str
    graph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@dataclass(frozen=True)
class Model:
    graphs: tuple[Graph, ...]
    signatures: tuple[Signature, ...]


def read_model(path: Path) -> Model:
    """The model at `path`; `UnsupportedModel` with what is wrong with it."""
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    try:
        return _model(root(memoryview(data.data), IDENTIFIER))
    except Malformed as reason:
        raise UnsupportedModel(
            f"expected a sound TFLite file, found {reason} in {path.name}: convert or download it again"
        ) from reason


def _model(table: Table) -> Model:
    codes = [_operator_name(code) for code in table.tables(1)]
    buffers = [_bytes_of(buffer) for buffer in table.tables(4)]
    graphs = tuple(_graph(t, codes, buffers) for t in table.tables(2))
    if not graphs:
        raise Malformed("no graph")
    _check_calls(graphs)
    return Model(graphs, tuple(_signature(t, graphs) for t in table.tables(7)))


def _operator_name(table: Table) -> str:
    # Numbers above 127 did not fit the field that older readers know.
    number = max(table.integer(0, "b"), table.integer(3, "i"))
    if not 0 <= number < len(OPERATORS):
        return f"operator {number}"
    return f"custom operator {table.text(1)[:60]}" if OPERATORS[number] == "CUSTOM" else OPERATORS[number]


def _bytes_of(table: Table) -> NDArray[np.uint8] | None:
    if table.integer(1, "Q") > 1:  # files above 2 GB keep data behind the tables
        raise Malformed("data outside of the tables, as files above 2 GB have it")
    return table.array(0, np.uint8)


def _graph(table: Table, codes: list[str], buffers: list[NDArray[np.uint8] | None]) -> Graph:
    tensors = tuple(_tensor(t, buffers) for t in table.tables(0))
    operators = tuple(_operator(t, codes, len(tensors)) for t in table.tables(3))
    inputs, outputs = table.integers(1), table.integers(2)
    _check_numbers((*inputs, *outputs), len(tensors), "tensor", 0)
    made = {*inputs, *(i for operator in operators for i in operator.outputs)}
    return Graph(tuple(t if i in made else _filled(t) for i, t in enumerate(tensors)), operators, inputs, outputs)


def _filled(tensor: Tensor) -> Tensor:
    """A tensor that nothing makes: one without elements is known, though no buffer holds it."""
    if tensor.data is not None or 0 not in tensor.shape or None in tensor.shape or not hasattr(np, tensor.dtype):
        return tensor
    return replace(tensor, data=np.empty(tuple(s or 0 for s in tensor.shape), tensor.dtype))


def _check_numbers(found: tuple[int, ...], count: int, what: str, least: int) -> None:
    wrong = [i for i in found if not least <= i < count]
    if wrong:
        raise Malformed(f"{what} {wrong[0]} of {count}")


def _tensor(table: Table, buffers: list[NDArray[np.uint8] | None]) -> Tensor:
    name, kind = table.text(3), table.integer(1, "b")
    _check_numbers((kind,), len(TYPES), f"{name!r} of element type", 0)
    shape, signature = table.integers(0), table.integers(7)
    sizes: tuple[int | None, ...] = tuple(None if s < 0 else s for s in signature or shape)
    if len(sizes) > _MOST_DIMENSIONS or math.prod(s for s in sizes if s) > _MOST_ELEMENTS:
        raise Malformed(f"{name!r} of shape {list(sizes)[:10]}")
    number = table.integer(2, "I")
    _check_numbers((number,), max(1, len(buffers)), f"{name!r} in buffer", 0)
    raw = buffers[number] if number else None
    sparsity = table.table(6)
    data = None
    if raw is not None and raw.size and TYPES[kind] not in ("string", "resource", "variant"):
        known = tuple(s for s in sizes if s is not None)
        if len(known) != len(sizes):
            raise Malformed(f"data of {name!r}, whose shape {list(sizes)} is not known")
        data = dense(sparsity, raw, TYPES[kind], known, name) if sparsity else _values(raw, TYPES[kind], known, name)
    grid = table.table(4)
    return Tensor(name, sizes, TYPES[kind], _grid(grid, sizes, name) if grid else None, data, table.integer(5, "?") > 0)


def _values(raw: NDArray[np.uint8], kind: str, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    import ml_dtypes

    count, per_byte = math.prod(shape), _PACKED.get(kind, 1)
    dtype = np.dtype(getattr(ml_dtypes, kind) if per_byte > 1 or hasattr(ml_dtypes, kind) else kind)
    if raw.size != -(-count // per_byte) * (1 if per_byte > 1 else dtype.itemsize):
        raise Malformed(f"{raw.size} bytes for {name!r} of shape {list(shape)} in {kind}")
    if per_byte == 1:
        return raw.view(dtype).reshape(shape)
    bits = 8 // per_byte
    parts = np.stack([(raw >> (bits * i)) & ((1 << bits) - 1) for i in range(per_byte)], -1).reshape(-1)[:count]
    if kind.startswith("int"):  # the sign is the highest bit
        parts = (parts.astype(np.int8) ^ (1 << (bits - 1))) - (1 << (bits - 1))
    return parts.astype(np.uint8 if kind.startswith("u") else np.int8).reshape(shape)


def _grid(table: Table, shape: tuple[int | None, ...], name: str) -> Grid | None:
    scales, zeros, axis = table.array(2, np.float32), table.array(3, np.int64), table.integer(6, "i")
    if table.integer(4, "B"):
        raise Malformed(f"a grid of blocks, or of its own kind, for {name!r}")
    if scales is None or not scales.size:
        return None
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise Malformed(f"a scale of {name!r} that is not above 0")
    if zeros is None or not zeros.size:
        zeros = np.zeros(scales.size, np.int64)
    if scales.size > 1 and not 0 <= axis < len(shape):
        raise Malformed(f"quantisation axis {axis} for {name!r} of {len(shape)} dimensions")
    if scales.size > 1 and shape[axis] != scales.size or zeros.size not in (1, scales.size):
        raise Malformed(f"{scales.size} scales and {zeros.size} zero points for {name!r} of shape {list(shape)}")
    return Grid(scales, np.broadcast_to(zeros, scales.shape), axis)


def _operator(table: Table, codes: list[str], tensors: int) -> Operator:
    code = table.integer(0, "I")
    _check_numbers((code,), len(codes), "operator", 0)
    inputs, outputs = table.integers(1), table.integers(2)
    _check_numbers(inputs, tensors, f"{codes[code]} of tensor", -1)
    _check_numbers(outputs, tensors, f"{codes[code]} to tensor", 0)
    custom = table.array(5, np.uint8)
    options = _options(table.table(4), table.integer(3, "B"))
    return Operator(codes[code], inputs, outputs, options, b"" if custom is None else custom[:_CUSTOM].tobytes())


def _options(table: Table | None, kind: int) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for field in OPTIONS.get(kind, "").split():
        name, _, rest = field.partition(":")
        place, _, default = rest.partition("=")
        slot, code = int(place[:-1]), place[-1]
        if code in _VECTORS:
            found = table.array(slot, _VECTORS[code]) if table else None
            if found is not None:
                options[name] = tuple(found[: 1 << 16].tolist())
        elif code == "s":
            options[name] = table.text(slot) if table else ""
        else:
            options[name] = table.number(slot, code, int(default or 0)) if table else int(default or 0)
    return options


def _check_calls(graphs: tuple[Graph, ...]) -> None:
    """Refuses graphs that do not exist, and those that call themselves through others."""
    calls: list[set[int]] = []
    for graph in graphs:
        found = {int(str(o.options[key])) for o in graph.operators for key in _CALLED if key in o.options}
        found |= {int(str(o.options["init_subgraph_index"])) for o in graph.operators if o.name == "CALL_ONCE"}
        _check_numbers(tuple(found), len(graphs), "graph", 0)
        calls.append(found)
    left = set(range(len(graphs)))
    while left:
        leaves = {g for g in left if not calls[g] & left}
        if not leaves:
            raise Malformed(f"graph {min(left)}, which calls itself")
        left -= leaves


def _signature(table: Table, graphs: tuple[Graph, ...]) -> Signature:
    number = table.integer(4, "I")
    _check_numbers((number,), len(graphs), "a signature of graph", 0)
    maps = [{t.text(0): t.integer(1, "I") for t in table.tables(slot)} for slot in (0, 1)]
    for tensors in maps:
        _check_numbers(tuple(tensors.values()), len(graphs[number].tensors), "a signature of tensor", 0)
    return Signature(table.text(2), number, *maps)


def of_graph(model: Model) -> Signature:
    """The first graph under the names of its tensors, for a file without signatures."""
    graph = model.graphs[0]
    inputs, outputs = ({graph.tensors[i].name: i for i in found} for found in (graph.inputs, graph.outputs))
    return Signature("", 0, inputs, outputs)
