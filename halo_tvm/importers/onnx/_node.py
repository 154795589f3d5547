"""What a converter sees of one ONNX node: inputs, attributes, and how to emit Relax."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from tvm import relax, tirx

from ..loops import not_negative
from ..meaning.builder import Builder, Refused, expr_dtype
from ..meaning.constant import Constant
from ..meaning.sizes import Dim, plain
from ._values import Sequence, Symbolic, Value, elements

if TYPE_CHECKING:
    from onnx import NodeProto

    from ._graph import GraphConverter

_REQUIRED = object()
_MOST_SIZES = 1 << 10  # in a tensor of sizes: each is a symbol


class Node(Builder):
    """One node with its inputs looked up. Indices past the inputs, and empty names, are inputs that are not there."""

    def __init__(self, proto: NodeProto, graph: GraphConverter, inputs: Items[Value | None], opset: int) -> None:
        self.proto = proto
        self.op: str = proto.op_type
        self.domain: str = proto.domain
        self.name: str = proto.name or (proto.output[0] if proto.output else proto.op_type)
        self.outputs: tuple[str, ...] = tuple(proto.output)
        self.inputs = tuple(inputs)
        self.opset = opset
        self.graph = graph
        self.sizes, self.block, self.draws = graph.sizes, graph.builder, graph.draws
        self._attrs = {a.name: a for a in proto.attribute}

    # Inputs.

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        if not self.has(index):
            self.refuse(f"input {index} is missing")
        return self.inputs[index]

    def x(self, index: int) -> relax.Expr:
        """Input `index` as a Relax expression: a variable, a weight or a constant."""
        return self.graph.expr_of(self.value(index))

    def stored(self, index: int) -> relax.Expr:
        """As `x`; elements of less than a byte as the graph holds them (see `_narrow`)."""
        return self.graph.stored_of(self.value(index))

    def xs(self) -> list[relax.Expr]:
        """All inputs as Relax expressions."""
        return [self.x(i) for i in range(len(self.inputs))]

    def shape(self, index: int) -> tuple[Dim, ...]:
        value = self.value(index)
        if isinstance(value, Sequence):
            self.refuse(f"expected a tensor as input {index}, found a sequence")
        return value.shape

    def rank(self, index: int) -> int:
        return len(self.shape(index))

    def axis(self, axis: int, rank: int) -> int:
        """`axis` of a tensor of `rank`, counted from the front."""
        self.refuse_unless(-rank <= axis < rank, f"expected an axis from {-rank} to {rank - 1}, found {axis}")
        return axis % rank

    def dtype(self, index: int) -> str:
        value = self.value(index)
        if isinstance(value, Sequence):
            self.refuse(f"expected a tensor as input {index}, found a sequence")
        return value.dtype

    def constant(self, index: int) -> np.ndarray:
        """Values of input `index`, which must be known now."""
        value = self.value(index)
        if not isinstance(value, Constant):
            self._needs(index)
        return value.array

    def constant_or(self, index: int, default: object) -> object:
        return self.constant(index) if self.has(index) else default

    def ints(self, index: int) -> list[int]:
        """Constant input `index`, flattened."""
        return [int(v) for v in self.constant(index).reshape(-1)]

    def dims(self, index: int) -> list[Dim]:
        """Input `index`, a rank-1 (or 0) integer tensor, as numbers and expressions of symbolic dimensions."""
        value = self.value(index)
        if not isinstance(value, Constant | Symbolic):
            self._needs(index)
        return [plain(e) for e in elements(value).reshape(-1)]

    def scalar(self, index: int) -> float | int | bool:
        """Constant input `index` of one element."""
        array = self.constant(index)
        if array.size != 1:
            self.refuse(f"expected one number as input {index}, found the shape {array.shape}")
        return array.reshape(-1)[0].item()

    def is_known(self, index: int) -> bool:
        return self.has(index) and isinstance(self.inputs[index], Constant)

    def _needs(self, index: int) -> NoReturn:
        name = self.proto.input[index]
        raise Refused(f"input {index} ({name}) must be constant", self.graph.origins(name))

    # Attributes.

    def attr(self, name: str, default: object = _REQUIRED) -> object:
        """Attribute as int, float, str, list, NumPy array (a tensor) or GraphProto."""
        if name not in self._attrs:
            if default is _REQUIRED:
                self.refuse(f"attribute {name} is missing")
            return default
        return self.graph.attribute(self._attrs[name])

    def has_attr(self, name: str) -> bool:
        return name in self._attrs

    # Results.

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind `expr`; its shape must be known."""
        var = self.block.emit(expr, self.proto.name.strip("/"))  # reports name nodes as the model does
        if isinstance(var.ty, relax.TensorType) and not isinstance(var.ty.shape, relax.ShapeExpr):
            self.refuse("the shape of its result cannot be derived")
        return var

    def known(self, x: relax.Expr) -> Constant | None:
        return self.graph.constant_of(x)

    def weight(self, value: Constant) -> relax.Expr:
        return self.graph.expr_of(value)

    def fresh_dim(self) -> tirx.Var:
        """A new symbolic dimension, called by the operator that finds it."""
        dim = tirx.Var(self.graph.dimension_name(self.op.lower()), "int64")
        self.sizes.note([dim])
        return dim

    def fresh_dims(self, expr: relax.Expr, shape: Items[Dim | None]) -> relax.Expr:
        """`expr`, of data-dependent sizes, with a new symbolic dimension for every None in `shape`."""
        dims = [self.fresh_dim() if d is None else d for d in shape]
        bound = expr if isinstance(expr, relax.Var) else self.block.emit(expr)
        return self.block.match_cast(bound, relax.TensorType(dims, expr_dtype(bound)))

    def runtime_dims(self, index: int) -> list[Dim]:
        """As `dims`; a tensor known at run time only gives new symbolic dimensions, which must not be negative."""
        value = self.value(index)
        if isinstance(value, Constant | Symbolic):
            return self.dims(index)
        count = value.shape[0] if value.shape else 1
        if not isinstance(count, int):
            self._needs(index)
        return self.sizes_from(self.reshape(self.cast(self.x(index), "int64"), (count,)), count)

    def sizes_from(self, tensor: relax.Expr, count: int) -> list[Dim]:
        """The elements of an int64 tensor [count], none negative, as new symbolic dimensions."""
        self.refuse_unless(count <= _MOST_SIZES, f"expected at most {_MOST_SIZES} sizes, found {count}")
        checked = not_negative(self.block, tensor, f"a size below 0 for {self.op} ({self.name[:80]})")
        shape = self.block.emit(relax.op.tensor_to_shape(checked))
        dims = [self.fresh_dim() for _ in range(count)]
        self.block.match_cast(shape, relax.ShapeType(dims))
        return dims
