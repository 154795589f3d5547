"""The inputs of an ONNX model: variables, specs, ranges of symbolic dimensions, and what is known of their values."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from tvm import ir, relax, tirx

from ...artifact import UNBOUNDED, range_of
from ...artifact.computed_sizes import formula_of
from ...artifact.formula import OPERATIONS
from ...dimensions import text_of
from ...errors import UnknownName, UnsupportedModel, UsageError
from ...imported import InputSpec
from ..meaning.constant import NARROW, Constant
from ..meaning.sizes import Dim, prim
from ..shapes import check_computed, usual_size
from ._file import MOST_BYTES, MOST_DIMENSIONS
from ._graph import GraphConverter, identifier
from ._values import Tensor, element_dtype

ASSUMED_RANGE = (1, UNBOUNDED)  # of a symbolic dimension: ONNX declares no bounds
Bounds = tuple[tuple[int, int], ...]
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_FLOOR = re.compile(r"floor\(([^()/]+)/([^()/]+)\)")
_OF_SIZES: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": tirx.floordiv,
    "%": tirx.floormod,
    "min": tirx.min,
    "max": tirx.max,
}


class Inputs:
    """The inputs of a model: variables of main, their specs, and the ranges of their symbolic dimensions."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        graph: GraphConverter,
        shapes: Mapping[str, Bounds],
        constants: Mapping[str, np.ndarray],
        file: str,
        *,
        narrow: bool,
    ) -> None:
        self.variables: list[relax.Var] = []
        self.specs: list[InputSpec] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        self.typical: dict[str, int] = {}
        self.assumed: list[str] = []
        self._computed: list[
            tuple[str, str, Dim, tuple[int, int]]
        ] = []  # input, text, size and what `shapes` say of it
        self._symbols: dict[str | tuple[str, int], tirx.Var] = {}
        self._graph, self._file = graph, file
        held = {i.name for i in proto.graph.initializer} | {s.values.name for s in proto.graph.sparse_initializer}
        given = [i for i in proto.graph.input if i.name not in held]
        unknown = sorted((set(shapes) | set(constants)) - {i.name for i in given})
        if unknown:
            raise UnknownName("input", unknown[0], [i.name for i in given])
        self._said = self._bounds_by_name(given, shapes)
        indices = index_ranges(proto.graph)
        for info in given:
            if info.name in constants:
                graph.define(info.name, Constant.of(np.asarray(constants[info.name]), info.name))
                continue
            dtype, dims = self._type(info)
            shape = self._shape(info.name, dims, shapes.get(info.name))
            if len(shape) > MOST_DIMENSIONS or math.prod(d for d in shape if isinstance(d, int)) > MOST_BYTES:
                raise UnsupportedModel(
                    f"expected inputs of at most {MOST_DIMENSIONS} dimensions and {MOST_BYTES} elements, "
                    f"found {info.name[:80]} of shape {dims[:8]} in {self._file}: export it again"
                )
            kind, dtype = (dtype, NARROW[dtype]) if dtype in NARROW else ("", dtype)
            if kind and not narrow:
                raise UnsupportedModel(
                    f"expected inputs of whole bytes, found {kind} {info.name[:80]} in {file}: convert it inside"
                )
            var = relax.Var(identifier(info.name), relax.TensorType(shape, dtype))
            self.variables.append(var)
            if info.name in indices and "int" in dtype:
                graph.checked_indices.append(var)
            names = tuple(map(text_of, shape))
            self.specs.append(InputSpec(info.name, names, dtype, indices.get(info.name) if "int" in dtype else None))
            graph.define(info.name, Tensor(var, kind), is_input=True)
        for name, dim, size, bound in self._computed:  # when all ranges are known
            check_computed(name, dim, bound, range_of(text_of(size), self.ranges))

    def _type(self, info) -> tuple[str, list[int | str | None]]:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedModel(
                f"expected tensors as inputs, found {kind} {info.name[:80]} in {self._file}: export it without"
            )
        element = info.type.tensor_type
        if element.elem_type in (
            onnx.TensorProto.STRING,
            onnx.TensorProto.UNDEFINED,
            onnx.TensorProto.COMPLEX64,
            onnx.TensorProto.COMPLEX128,
        ):
            name = onnx.TensorProto.DataType.Name(element.elem_type)
            raise UnsupportedModel(
                f"expected numbers as inputs, found {name} {info.name[:80]} in {self._file}: export it without"
            )
        try:
            dtype = element_dtype(element.elem_type)
        except KeyError:
            raise UnsupportedModel(
                f"expected a known element type for {info.name[:80]} in {self._file}, found {element.elem_type}: "
                "export it again"
            ) from None
        if not element.HasField("shape"):
            return dtype, None
        # A size of 0 or less is how some exporters write "not known".
        return dtype, [
            d.dim_value if d.dim_value > 0 else (d.dim_param if d.dim_param and d.dim_param != "?" else None)
            for d in element.shape.dim
        ]

    def _bounds_by_name(self, given, shapes: Mapping[str, Bounds]) -> dict[str, tuple[int, int]]:
        """What `shapes` say of dimension names through all inputs that have them."""
        said: dict[str, tuple[int, int]] = {}
        for info in given:
            dims = self._type(info)[1] or []
            for dim, (low, high) in zip(dims, shapes.get(info.name, ())):
                if not isinstance(dim, str):
                    continue
                least, most = said.get(dim, (low, high))
                if high < least or most < low:
                    raise UsageError(
                        f"dimension {dim} of input {info.name} may lie in {least}..{most}, as another input has it, "
                        f"found {low}..{high}: give both inputs one range"
                    )
                said[dim] = (max(low, least), min(high, most))
        return said

    def _shape(self, name: str, dims: list | None, bounds: Bounds | None) -> list:
        if dims is None:
            if bounds is None:
                raise UnsupportedModel(
                    f"expected inputs of known rank, found {name} without a shape in {self._file}: "
                    f"give --shape {name}=..."
                )
            dims = [None] * len(bounds)
        if bounds is not None and len(bounds) != len(dims):
            raise UsageError(
                f"expected {len(dims)} dimensions for input {name}, found {len(bounds)}: give one per dimension"
            )
        return [self._dim(name, axis, dim, bounds[axis] if bounds else None) for axis, dim in enumerate(dims)]

    def _dim(self, name: str, axis: int, dim: int | str | None, bound: tuple[int, int] | None):
        if isinstance(dim, int):
            if bound is not None and bound != (dim, dim):
                raise UsageError(
                    f"input {name} has a fixed dimension of {dim}, found {bound[0]}..{bound[1]}: "
                    "only symbolic dimensions have ranges"
                )
            return dim
        if isinstance(dim, str):
            expression = self._expression(dim)
            if expression is not None:
                if bound is not None:
                    self._computed.append((name, dim, expression, bound))
                return expression
            bound = self._said.get(dim)
        if bound is not None and bound[0] == bound[1]:
            return bound[0]
        key = dim or (name, axis)  # the text itself: a.b and a_b are two dimensions
        symbol = self._symbols.get(key)
        if symbol is None:
            new = self._graph.dimension_name(dim or f"{identifier(name)}_{axis}")
            symbol = self._symbols[key] = tirx.Var(new, "int64")
            self.ranges[new] = bound or ASSUMED_RANGE
            if bound is None:
                self.assumed.append(new)
            self.typical[new] = usual_size(axis, *self.ranges[new])
            self._graph.sizes.declare(symbol, *self.ranges[new])
        return symbol

    def _expression(self, text: str) -> Dim | None:
        """A size like `past + sequence` or `floor(height/2)` of names met before; None for anything else."""
        formula = formula_of(_FLOOR.sub(r"((\1)//(\2))", text))
        return self._computed_size(formula) if isinstance(formula, list) else None

    def _computed_size(self, formula: object) -> Dim | None:
        if isinstance(formula, int):
            return formula
        if isinstance(formula, str):
            low, high = self._said.get(formula, (0, 1))
            return low if low == high else self._symbols.get(formula)
        operation, *operands = formula
        a, b = map(self._computed_size, operands)
        if a is None or b is None or operation in ("//", "%") and not (isinstance(b, int) and b > 0):
            return None  # a run divides by no size, which may be 0
        if isinstance(a, int) and isinstance(b, int):
            return OPERATIONS[operation](a, b)
        return _OF_SIZES[operation](prim(a), prim(b))


def index_ranges(graph) -> dict[str, tuple[int, int]]:
    """Inputs that select rows of a weight (token ids) or along another axis: 0 to the last of the smallest such."""
    sizes = {i.name: list(i.dims) for i in graph.initializer if i.dims}
    origin: dict[str, str] = {}  # a value that only converts another -> that one
    found: dict[str, tuple[int, int]] = {}
    for node in graph.node:  # sorted: a value is made before it is used
        if node.op_type in ("Cast", "Identity"):
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        elif node.op_type == "Gather" and node.input[0] in sizes:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            if not -len(sizes[node.input[0]]) <= axis < len(sizes[node.input[0]]):
                continue  # its converter says what is wrong
            name = origin.get(node.input[1], node.input[1])
            last = sizes[node.input[0]][axis] - 1
            found[name] = (0, min(last, found.get(name, (0, last))[1]))
    return found


def compared(graph) -> dict[str, tuple[int, ...]]:
    """Values that the outermost graph compares with integer constants, and the constants."""
    tensors = {t.name: t for t in graph.initializer if t.data_type in _INTEGERS and int(np.prod(t.dims)) <= 4096}
    origin: dict[str, str] = {}
    found: dict[str, tuple[int, ...]] = {}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensor = node.attribute[0].t
            if tensor.data_type in _INTEGERS and int(np.prod(tensor.dims)) <= 4096:
                tensors[node.output[0]] = tensor
        elif node.op_type in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze") and node.input:
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
            if node.input[0] in tensors and node.op_type != "Cast":
                tensors[node.output[0]] = tensors[node.input[0]]
        elif node.op_type == "Equal":
            for value, constant in (node.input, node.input[::-1]):
                if constant in tensors and value not in tensors:
                    numbers = numpy_helper.to_array(tensors[constant]).reshape(-1).tolist()
                    name = origin.get(value, value)
                    found[name] = tuple(dict.fromkeys([*found.get(name, ()), *numbers]))
    return {name: numbers for name, numbers in found.items() if numbers}
