"""Elements of a kernel as whole tensors: an expression over iteration variables becomes nodes of ONNX.

A value keeps a dimension for each variable that it depends on, in their order, so a product of a row and a column
stays small until both meet. An element read at computed places is a Gather for each dimension where these places
depend on different variables, else one GatherND.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper
from tvm import ir
from tvm.ir.prim import expr as prim

from ..errors import UnsupportedModel
from ._graph import Graph, is_int, same
from ._relax_ops import FUNCTIONS

_MOST = 1 << 26  # places of one read that are computed one by one

_SAME = {
    prim.Add: "Add",
    prim.Sub: "Sub",
    prim.Mul: "Mul",
    prim.Div: "Div",  # of integers both cut off what is behind the point
    prim.Max: "Max",
    prim.Min: "Min",
    prim.EQ: "Equal",
    prim.LT: "Less",
    prim.LE: "LessOrEqual",
    prim.GT: "Greater",
    prim.GE: "GreaterOrEqual",
    prim.And: "And",
    prim.Or: "Or",
    prim.BitwiseAnd: "BitwiseAnd",
    prim.BitwiseOr: "BitwiseOr",
    prim.BitwiseXor: "BitwiseXor",
}
_SAME_CALLS = {**FUNCTIONS, "fabs": "Abs", "nearbyint": "Round", "pow": "Pow"}


@dataclass(frozen=True)
class Value:
    """A tensor with a dimension for each of `axes`, the places of iteration variables, ascending."""

    name: str
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Read:
    """What a kernel reads: a tensor of the graph, and its sizes."""

    name: str
    sizes: Sequence[ir.Expr]


class Elements:
    """Expressions of one nest of loops.

    `extents` are those of its variables, in the sizes of `main`, as are `sizes`, what a kernel's own symbols stand for.
    """

    def __init__(
        self,
        g: Graph,
        places: Mapping[ir.Var, int],
        extents: Sequence[ir.Expr],
        reads: Mapping[ir.Var, Read],
        sizes: Mapping[ir.Var, ir.Expr],
    ) -> None:
        self.g, self.extents = g, list(extents)
        self._places, self._reads, self._sizes = places, reads, sizes
        self._guarded = 0  # conditions around what is converted now: what they exclude may be read, but from inside

    def value(self, x: ir.Expr) -> Value:
        """`x` as a tensor over the variables that it depends on."""
        if isinstance(x, prim.IntImm | prim.FloatImm):
            return Value(self.g.constant(np.array(x.value, _dtype(x))))
        if isinstance(x, ir.TensorLoad):
            return self._read(x)
        if isinstance(x, prim.Var):
            return self._variable(x)
        if isinstance(x, prim.Cast):
            return self._cast(self.value(x.value), _dtype(x))
        if isinstance(x, prim.Not):
            return self._same("Not", x.a)
        if isinstance(x, prim.NE):
            return self.node("Not", self._same("Equal", x.a, x.b))
        if isinstance(x, prim.Select):
            return self.chosen(x.condition, x.true_value, x.false_value)
        if isinstance(x, prim.FloorDiv | prim.FloorMod | prim.Mod):
            return self._divided(x)
        if type(x) in _SAME:
            return self._same(_SAME[type(x)], x.a, x.b)
        if isinstance(x, ir.Call) and isinstance(x.op, ir.Op):
            return self._call(x)
        raise UnsupportedModel(f"a kernel with {type(x).__name__}")

    def node(self, op: str, *values: Value, **attrs: object) -> Value:
        """An operator of broadcast operands."""
        axes = tuple(sorted({axis for value in values for axis in value.axes}))
        return Value(self.g.once(op, *(self.aligned(value, axes) for value in values), **attrs), axes)

    def chosen(self, condition: ir.Expr, yes: ir.Expr, no: ir.Expr) -> Value:
        """Where(condition, yes, no); neither is read outside of its tensors."""
        test = self.value(condition)
        self._guarded += 1
        try:
            return self.node("Where", test, self.value(yes), self.value(no))
        finally:
            self._guarded -= 1

    def aligned(self, value: Value, axes: Sequence[int]) -> str:
        """`value` so that it broadcasts over `axes`, which hold its own."""
        if not value.axes or tuple(value.axes) == tuple(axes):
            return value.name
        behind = list(axes)[list(axes).index(value.axes[0]) :]
        missing = [place for place, axis in enumerate(behind) if axis not in value.axes]
        return self.g.once("Unsqueeze", value.name, self.g.vector(missing)) if missing else value.name

    def whole(self, value: Value, axes: Sequence[int]) -> str:
        """`value` with all of `axes`, repeated along those that it does not depend on."""
        if tuple(value.axes) == tuple(axes):
            return value.name
        return self.g.once("Expand", self.aligned(value, axes), self.g.shape([self.extents[a] for a in axes]))

    def ordered(self, name: str, axes: Sequence[int]) -> Value:
        """A tensor whose dimensions are `axes` in any order."""
        order = sorted(range(len(axes)), key=lambda i: axes[i])
        if order != list(range(len(axes))):
            name = self.g.once("Transpose", name, perm=order)
        return Value(name, tuple(sorted(axes)))

    def _same(self, op: str, *operands: ir.Expr) -> Value:
        return self.node(op, *map(self.value, operands))

    def _cast(self, value: Value, dtype: str) -> Value:
        return self.node("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _variable(self, x: ir.Var) -> Value:
        if x in self._places:
            place = self._places[x]
            extent = self.extents[place]
            if is_int(extent):
                return Value(self.g.constant(np.arange(int(extent), dtype=_dtype(x))), (place,))
            zero, one = (self.g.constant(np.array(n, np.int64)) for n in (0, 1))
            numbers = Value(self.g.once("Range", zero, self.g.dim_scalar(extent), one), (place,))
            return numbers if _dtype(x) == "int64" else self._cast(numbers, _dtype(x))
        known = self._sizes.get(x)
        value = Value(self.g.dim_scalar(x)) if known is None else self._in_main(known)
        return value if _dtype(x) == "int64" or known is not None else self._cast(value, _dtype(x))

    def _in_main(self, size: ir.Expr) -> Value:
        """`size`, whose symbols are those of `main`: a kernel may call its own by the same variables."""
        sizes, self._sizes = self._sizes, {}
        try:
            return self.value(size)
        finally:
            self._sizes = sizes

    def _divided(self, x: prim.FloorDiv | prim.FloorMod | prim.Mod) -> Value:
        """Quotients and remainders of integers, rounded as TensorIR does."""
        if "int" not in _dtype(x):
            raise UnsupportedModel("a kernel that rounds quotients of floating-point numbers")
        a, b = self.value(x.a), self.value(x.b)
        rest = self.node("Mod", a, b, fmod=int(isinstance(x, prim.Mod)))
        if not isinstance(x, prim.FloorDiv):
            return rest
        return self.node("Div", self.node("Sub", a, rest), b)

    def _call(self, x: ir.Call) -> Value:
        name = x.op.name.rpartition(".")[2]
        if name == "if_then_else":
            return self.chosen(*x.args)
        if name == "likely":
            return self.value(x.args[0])
        if name in _SAME_CALLS:
            return self._same(_SAME_CALLS[name], *x.args)
        if name == "rsqrt":
            return self.node("Reciprocal", self._same("Sqrt", *x.args))
        if name == "trunc":
            value = self.value(x.args[0])
            return self.node("Mul", self.node("Sign", value), self.node("Floor", self.node("Abs", value)))
        if name == "fmod":
            return self.node("Mod", *map(self.value, x.args), fmod=1)
        raise UnsupportedModel(f"a kernel that calls {name}")

    def _read(self, load: ir.TensorLoad) -> Value:
        if load.source not in self._reads:
            raise UnsupportedModel("a kernel that reads what it writes")
        read = self._reads[load.source]
        parts = [self._part(index, size) for index, size in zip(load.indices, read.sizes, strict=True)]
        axes = [axis for _, part in parts for axis in part]
        if len(set(axes)) < len(axes):
            return self._read_together(read.name, parts)
        name = read.name
        for place, (index, part) in reversed(list(enumerate(parts))):
            if index is not None:
                name = self.g.once("Gather", name, index.name, axis=place)
            elif not part:
                name = self.g.once("Squeeze", name, self.g.vector([place]))
        return self.ordered(name, axes)

    def _part(self, index: ir.Expr, size: ir.Expr) -> tuple[Value | None, tuple[int, ...]]:
        """(places along a dimension, the variables that they depend on); None for each place in its order."""
        if is_int(size) and int(size) == 1:
            return None, ()
        if isinstance(index, prim.Var) and index in self._places:
            place = self._places[index]
            if same(self.extents[place], size):
                return None, (place,)
        places = self.value(index)
        if self._guarded:
            dtype = _dtype(index)
            last = self._in_main(size - 1)
            last = last if dtype == "int64" else self._cast(last, dtype)
            least = Value(self.g.constant(np.array(0, dtype)))
            places = self.node("Min", self.node("Max", places, least), last)
        return places, places.axes

    def _read_together(self, name: str, parts: Sequence[tuple[Value | None, tuple[int, ...]]]) -> Value:
        """One element for each place that all dimensions together say; the last ones may be read whole."""
        parts = list(parts)
        behind: list[int] = []
        while parts and parts[-1][0] is None and not any(set(parts[-1][1]) & set(axes) for _, axes in parts[:-1]):
            behind = [*parts.pop()[1], *behind] if parts[-1][1] else behind
        together = tuple(sorted({axis for _, axes in parts for axis in axes}))
        known = [int(self.extents[a]) for a in together if is_int(self.extents[a])]
        if math.prod(known) > _MOST:
            raise UnsupportedModel(f"a kernel that reads more than {_MOST} places one by one")
        rows = []
        for index, axes in parts:
            if index is None:
                index = self._every(axes[0]) if axes else Value(self.g.vector([0]), ())
            places = self.g.once("Expand", self.aligned(index, together), self._shape(together))
            rows.append(self.g.once("Unsqueeze", self.g.once("Cast", places, to=7), self.g.vector([-1])))
        found = self.g.once("GatherND", name, self.g.once("Concat", *rows, axis=-1))
        return self.ordered(found, [*together, *behind])

    def _every(self, axis: int) -> Value:
        return self._variable(next(var for var, place in self._places.items() if place == axis))

    def _shape(self, axes: Sequence[int]) -> str:
        return self.g.shape([self.extents[a] for a in axes])


def _dtype(x: ir.Expr) -> str:
    return str(x.ty.dtype)
