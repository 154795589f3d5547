"""One graph of a TFLite file as an ONNX graph in memory.

Integers on a grid are written as the floats they stand for, between DequantizeLinear and QuantizeLinear: the ONNX
importer turns such pairs into products of integers (see `importers/onnx/_quantised`). Images have their channels last
in TFLite and first in ONNX: every value exists in the order it was made in, and in the other where something asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from ...errors import UnsupportedModel
from ._file import Model, Operator, Tensor
from ._node import Channels, Node, Refused, Result
from ._registry import WRITERS, load_writers, takes_pairs

OPSET = 21  # the first whose QuantizeLinear knows int16
_MOST_NODES = 100_000
_GRID_ERROR = 0.02  # five steps of an 8-bit grid, as for other quantised files
_GRIDS = ("int8", "uint8", "int16", "int4")  # element types whose grid says which floats they stand for


@dataclass
class Value:
    """A tensor of the file in ONNX: names by what it holds ("" as stored, "float" restored, "first" channels first)."""

    tensor: Tensor
    names: dict[str, str] = field(default_factory=dict)


class Writer:
    """What all graphs of a model share: names that are not taken yet, variables, problems."""

    def __init__(self, model: Model) -> None:
        load_writers()
        self.model = model
        self.problems: dict[str, list[str]] = {}
        # Error to accept, as a share of the largest output, where activations become integers on the way.
        self.accepted_error: float | None = None
        self.variables: dict[str, str] = {}  # name of a variable -> ONNX name of what it holds now
        self.initial: dict[str, NDArray[Any]] = {}  # name of a variable -> what it holds at first
        self.state: dict[str, str] = {}  # name of a variable that calls pass on -> ONNX name of the input it comes in
        self.tensors: dict[str, int] = {}  # of those that are tensors of the first graph: that ONNX name -> number
        self.beyond = False  # whether a node is none of ONNX's, which only the importer of ONNX here reads
        self._taken: set[str] = set()
        self._nodes = 0

    def name(self, wish: str) -> str:
        """`wish`, with a number behind it where it is taken."""
        name, number = wish or "value", 1
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name

    def accept(self, error: float) -> None:
        self.accepted_error = max(error, self.accepted_error or 0.0)

    def count(self) -> None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise UnsupportedModel(f"expected at most {_MOST_NODES} nodes, found more: convert a smaller graph")


class Graph:
    """Writes the operators of graph `number`; `inputs` are ONNX names for its inputs, in order.

    `known` holds values of inputs, by their place, and `inside` says that another graph calls this one.
    """

    def __init__(
        self,
        writer: Writer,
        number: int,
        inputs: Sequence[str],
        known: Mapping[int, NDArray[Any]] = MappingProxyType({}),
        inside: bool = False,
    ) -> None:
        self.writer, self.graph, self.inside = writer, writer.model.graphs[number], inside
        self.tensors = list(self.graph.tensors)
        self.nodes: list[NodeProto] = []
        self.initialisers: list[TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._values: dict[int, Value] = {}
        for place, (index, name) in enumerate(zip(self.graph.inputs, inputs)):
            if place in known:
                self.tensors[index] = replace(self.tensors[index], data=known[place])
            self._values[index] = Value(self.tensors[index], {"": name})

    def write(self) -> None:
        """Write all operators; what cannot be written is noted in the writer's problems, and what needs it skipped."""
        broken: set[int] = set()
        for operator in self.graph.operators:
            if any(i in broken for i in operator.inputs):
                broken.update(operator.outputs)
                continue
            try:
                self._operator(operator)
            except Refused as reason:
                place = self.tensors[operator.outputs[0]].name if operator.outputs else "?"
                self.writer.problems.setdefault(f"{operator.name} ({reason})", []).append(place)
                broken.update(operator.outputs)

    def _operator(self, operator: Operator) -> None:
        writes = WRITERS.get(operator.name)
        if writes is None:
            raise Refused("no writer")
        if not takes_pairs(writes) and any(i >= 0 and self.tensors[i].is_complex for i in operator.inputs):
            raise Refused("expected real numbers, found complex ones")
        node = Node(self, operator)
        results = writes(node)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) < len(operator.outputs):
            raise Refused(f"expected {len(results)} outputs, found {len(operator.outputs)}")
        for index, result in zip(operator.outputs, results):
            self._define(index, node.activated(result))

    def _define(self, index: int, result: Result) -> None:
        tensor = self.tensors[index]
        order = "first" if isinstance(result, Channels) else ""
        if not result.stored and on_grid(tensor):
            self.writer.accept(_GRID_ERROR)
            stored = self.quantised(result.name, tensor, 1 if order else tensor_axis(tensor))
        else:
            stored = result.name
        self._values[index] = Value(tensor, {order: stored})

    # Values.

    def value(self, index: int) -> Value:
        value = self._values.get(index)
        if value is None:
            tensor = self.tensors[index]
            if tensor.data is None and tensor.is_variable:
                raise Refused(f"expected a layer that keeps it for the state {tensor.name!r}, found another")
            if tensor.data is None:
                raise Refused(f"its input {tensor.name!r} is made by no earlier operator")
            value = self._values[index] = Value(tensor, {"": self.constant(tensor.data, tensor.name)})
        return value

    def stored(self, index: int, first: bool = False) -> str:
        """The tensor as it is stored, integers on a grid as integers; with its channels first where `first`."""
        value = self.value(index)
        wanted, other = ("first", "") if first else ("", "first")
        if wanted not in value.names:
            rank = len(value.tensor.shape)
            perm = (0, rank - 1, *range(1, rank - 1)) if first else (0, *range(2, rank), 1)
            value.names[wanted] = self.emit("Transpose", [value.names[other]], {"perm": perm})
        return value.names[wanted]

    def floats(self, index: int, first: bool = False) -> str:
        """The tensor, restored from its grid where it has one."""
        value = self.value(index)
        if not on_grid(value.tensor):
            return self._known_floats(value) if _is_bias(value.tensor) else self.stored(index, first)
        key = "float first" if first else "float"
        if key not in value.names:
            axis = tensor_axis(value.tensor)
            axis = {0: 0, len(value.tensor.shape) - 1: 1}.get(axis, axis + 1) if first else axis
            value.names[key] = self.restored(self.stored(index, first), value.tensor, axis)
        return value.names[key]

    def permuted(self, index: int, perm: list[int]) -> str:
        """The tensor with its dimensions in another order; integers on a grid move before they are restored."""
        tensor = self.value(index).tensor
        moved = self.emit("Transpose", [self.stored(index)], {"perm": perm})
        return self.restored(moved, tensor, perm.index(tensor_axis(tensor))) if on_grid(tensor) else moved

    def _known_floats(self, value: Value) -> str:
        if "float" not in value.names:
            grid, data = value.tensor.grid, value.tensor.data
            assert grid is not None and data is not None, "asked of a known tensor on a grid only"
            value.names["float"] = self.constant(grid.floats(data), value.tensor.name)
        return value.names["float"]

    def made_first(self, index: int) -> bool:
        """Whether the tensor was made with its channels first."""
        value = self._values.get(index)
        return value is not None and "first" in value.names and value.tensor.data is None

    def restored(self, name: str, tensor: Tensor, axis: int) -> str:
        return self.emit("DequantizeLinear", [name, *self._grid(tensor)], {"axis": axis})

    def quantised(self, name: str, tensor: Tensor, axis: int) -> str:
        return self.emit("QuantizeLinear", [name, *self._grid(tensor)], {"axis": axis})

    def _grid(self, tensor: Tensor) -> list[str]:
        grid = tensor.grid
        assert grid is not None, "only tensors on a grid are quantised"
        kind = "int8" if tensor.dtype == "int4" else tensor.dtype
        limits = np.iinfo(kind)
        if grid.zeros.min() < limits.min or grid.zeros.max() > limits.max:
            raise Refused(f"expected zero points within {kind}, found others for {tensor.name!r}")
        scales, zeros = grid.scales.astype(np.float32), grid.zeros.astype(kind)
        if scales.size == 1:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        return [self.constant(scales), self.constant(zeros)]

    # Nodes.

    def constant(self, array: NDArray[Any], name: str = "") -> str:
        """An initialiser; small ones of equal values are one."""
        small = array.size <= 16
        key = (array.dtype.name, array.shape, array.tobytes() if small else b"")
        if small and not name and key in self._constants:
            return self._constants[key]
        made = self.writer.name(name or "constant")
        self.initialisers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), made))
        if small and not name:
            self._constants[key] = made
        return made

    def emit(self, op: str, inputs: Sequence[str], attributes: Mapping[str, object], outputs: int = 1) -> str:
        return self.emit_all(op, inputs, attributes, outputs)[0]

    def emit_all(self, op: str, inputs: Sequence[str], attributes: Mapping[str, object], outputs: int) -> list[str]:
        """Write one node; the names of its outputs."""
        self.writer.count()
        self.writer.beyond |= "domain" in attributes
        names = [self.writer.name(f"{op}_{len(self.nodes)}") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attributes))
        return names

    def inner(self, number: int, inputs: Sequence[str], known: Mapping[int, NDArray[Any]]) -> tuple[Graph, list[str]]:
        """Graph `number` written on its own, and the names of its outputs."""
        graph = Graph(self.writer, number, inputs, known, inside=True)
        if len(inputs) != len(graph.graph.inputs):
            raise Refused(f"expected {len(graph.graph.inputs)} inputs for graph {number}, found {len(inputs)}")
        before = len(self.writer.problems)
        graph.write()
        if len(self.writer.problems) > before:
            raise Refused("a graph inside it cannot be converted")
        return graph, [graph.emit("Identity", [graph.stored(i)], {}) for i in graph.graph.outputs]

    def inline(self, number: int, inputs: Sequence[str], known: Mapping[int, NDArray[Any]]) -> list[str]:
        """Graph `number` written among the nodes of this one; the names of its outputs."""
        graph, outputs = self.inner(number, inputs, known)
        self.nodes += graph.nodes
        self.initialisers += graph.initialisers
        return outputs

    def proto(self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[str]) -> GraphProto:
        """The graph as written; `outputs` are names that it makes, or that are known around it."""
        infos = [onnx.ValueInfoProto(name=o) for o in outputs]
        return helper.make_graph(self.nodes, name, list(inputs), infos, self.initialisers)


def on_grid(tensor: Tensor) -> bool:
    """Whether the tensor holds integers that stand for floats."""
    return tensor.grid is not None and tensor.dtype in _GRIDS


def _is_bias(tensor: Tensor) -> bool:
    """Whether the tensor holds wide integers on the grid of a product's sums."""
    return tensor.grid is not None and tensor.data is not None and tensor.dtype in ("int32", "int64")


def tensor_axis(tensor: Tensor) -> int:
    return tensor.grid.axis if tensor.grid else 0
