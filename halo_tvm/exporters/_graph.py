"""An ONNX graph while it is written: nodes, small constants, names, symbolic dimensions.

Weights never enter it: they are declared with a place in the external data file (`onnx.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax, tirx
from tvm.ir.prim import expr as prim

from ..errors import UnsupportedModel, UsageError
from ..relay_ops.operator import attrs_of

CONTRIB = "com.microsoft"

# Dimension arithmetic on int64 vectors of one element; `Graph.dim` writes FloorDiv, which is no operator of ONNX.
DIM_OPS = {
    prim.Add: "Add",
    prim.Sub: "Sub",
    prim.Mul: "Mul",
    prim.FloorMod: "Mod",
    prim.Max: "Max",
    prim.Min: "Min",
}


OPSETS = (18, 24)  # the oldest whose reductions take their axes as an input, and the newest that is written


@dataclass(frozen=True)
class Spelling:
    """Which of several equal spellings to write; another engine may run one faster than another.

    "op" is an operator of the opset itself, "contrib" one of onnxruntime's own, com.microsoft; else several nodes.
    """

    attention: str = "matmul"  # "matmul": MatMul, Softmax, MatMul; "op": Attention (23); "contrib": MultiHeadAttention
    gelu: str = "op"  # "op": Gelu (20); "parts": Erf/Tanh; "contrib": Gelu and FastGelu
    rms_norm: str = "parts"  # "parts": ReduceMean, Sqrt, Div; "op": RMSNormalization (23); "contrib": Simplified...
    rotary: str = "parts"  # "parts": Split, Mul, Concat; "op": RotaryEmbedding (23); "contrib": RotaryEmbedding
    silu: str = "parts"  # "parts": Sigmoid, Mul; "op": Swish (24)
    numbers: str = ""  # weights of products in groups of integers: "Q8_0", "Q4_0" (see `_nbits`)
    opset: int = 20  # the oldest with Gelu, and onnxruntime's own fusions know all of its operators

    @classmethod
    def of(cls, engine: str, opset: int = 20) -> Spelling:
        """For `engine` "onnxruntime", or "portable": operators of ONNX alone, whole where `opset` has them."""
        if not OPSETS[0] <= opset <= OPSETS[1]:
            raise UsageError(f"expected an opset from {OPSETS[0]} to {OPSETS[1]}, found {opset}: choose among these")
        if engine == "onnxruntime":
            return cls("contrib", "contrib", "contrib", "contrib", "parts", opset=opset)
        new = "op" if opset >= 23 else "parts"
        gelu, silu = ("op" if opset >= 20 else "parts"), ("op" if opset >= 24 else "parts")
        return cls("op" if opset >= 23 else "matmul", gelu, new, new, silu, opset=opset)


class Graph:
    """Nodes in order, constants deduplicated, one name per value."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}
        self.dims: dict[tirx.Var, tuple[str, int]] = {}  # symbolic dimension -> (graph input, axis)
        self.counted: dict[tirx.Var, str] = {}  # symbolic dimension -> a vector of one element that holds it
        self.domains: dict[str, int] = {}  # of operators that are not of ONNX itself, with the version of each
        self.cse: dict[tuple[object, ...], str] = {}
        self.bound: dict[relax.Var, relax.Expr] = {}  # what the variables of the function are
        self.weights: dict[relax.Var, str] = {}
        self.sources: dict[str, str] = {}  # a weight's name here -> its name among the model's
        self.only_linear: set[relax.Var] = set()  # weights no other operator reads
        self.transposed: set[str] = set()  # weights to store transposed
        self.in_groups: dict[str, bool] = {}  # weights that products read as integers -> stored as [n, k]
        self._count = 0

    def name(self, hint: str) -> str:
        self._count += 1
        return f"{hint}_{self._count}"

    def emit(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: object) -> str:
        """Append a node with one output; "" stands for an input left out."""
        return self.emit_many(op, *inputs, outputs=outputs, domain=domain, **attrs)[0]

    def emit_many(self, op: str, *inputs: str, outputs: int, domain: str = "", **attrs: object) -> tuple[str, ...]:
        """Append a node with several outputs."""
        names = tuple(self.name(op) for _ in range(outputs))
        kept = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(
            helper.make_node(op, list(inputs), list(names), name=f"node_{names[0]}", domain=domain, **kept)
        )
        if domain:
            self.domains.setdefault(domain, 1)
        return names

    def once(self, op: str, *inputs: str, **attrs: object) -> str:
        """`emit`, but the same operator on the same inputs is written once (shape arithmetic, masks)."""
        key = (op, inputs, tuple(sorted((k, str(v)) for k, v in attrs.items())))
        if key not in self.cse:
            self.cse[key] = self.emit(op, *inputs, **attrs)
        return self.cse[key]

    def subgraph(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], build: Callable[[], Sequence[tuple[str, relax.Type]]]
    ) -> onnx.GraphProto:
        """A graph inside a node: what `build` emits, which may read all values around it, and its named results.

        Behind it everything is as it was: no value of its own is known outside.
        """
        around = self.nodes, self.cse, self.dims, self.counted
        self.nodes, self.cse, self.dims, self.counted = [], dict(self.cse), dict(self.dims), dict(self.counted)
        try:
            # A result is a value of the graph itself, and no value is a result twice.
            results = [(self.emit("Identity", value), ty) for value, ty in build()]
            outputs = [value_info(value, ty) for value, ty in results]
            return helper.make_graph(self.nodes, self.name(name), inputs, outputs)
        finally:
            self.nodes, self.cse, self.dims, self.counted = around

    def constant(self, value: np.ndarray) -> str:
        """A small constant, stored in the model itself."""
        value = np.asarray(value)
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(value, self.name("const"))
        return self.constants[key].name

    def vector(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def weight_kn(self, weight: relax.Expr, layout: str) -> str:
        """A weight as [k, n]: a "nk" one is stored transposed when nothing else reads it."""
        name = self.weights.get(weight)
        if name is None:
            raise UnsupportedModel("a weight that is no parameter")
        if layout == "kn":
            return name
        if weight in self.only_linear:
            self.transposed.add(name)
            return name
        return self.once("Transpose", name, perm=[1, 0])

    # Symbolic dimensions.

    def dim(self, expr: ir.Expr | int) -> str:
        """A dimension as an int64 vector of one element."""
        if isinstance(expr, (int, tirx.IntImm)):
            return self.vector([int(expr)])
        if isinstance(expr, tirx.Var):
            if expr in self.counted:
                return self.counted[expr]
            if expr not in self.dims:
                raise UnsupportedModel(f"dimension {expr} is no axis of any input")
            source, axis = self.dims[expr]
            return self.once("Gather", self.once("Shape", source), self.vector([axis]), axis=0)
        if isinstance(expr, prim.FloorDiv):
            return self._floor_div(expr)
        op = DIM_OPS.get(type(expr))
        if op is None:
            raise UnsupportedModel(f"dimension expression {expr} ({type(expr).__name__})")
        return self.once(op, self.dim(expr.a), self.dim(expr.b))

    def _floor_div(self, expr: prim.FloorDiv) -> str:
        """Div rounds towards zero, which is another number below zero: what it divides leaves no remainder here."""
        a, b = self.dim(expr.a), self.dim(expr.b)
        if not isinstance(expr.a, tirx.Var):  # a size itself is never negative
            a = self.once("Sub", a, self.once("Mod", a, b))
        return self.once("Div", a, b)

    def dim_scalar(self, expr: ir.Expr | int) -> str:
        """A dimension as an int64 tensor of rank 0."""
        if isinstance(expr, (int, tirx.IntImm)):
            return self.constant(np.array(int(expr), np.int64))
        return self.once("Squeeze", self.dim(expr), self.vector([0]))

    def name_sizes(self, value: object, ty: relax.Type) -> None:
        """The sizes that a tensor, or a tensor of sizes, called `value` names first."""
        if not isinstance(value, str) or not hasattr(ty, "shape" if isinstance(ty, relax.TensorType) else "values"):
            return
        if isinstance(ty, relax.ShapeType):
            for place, dim in enumerate(ty.values or ()):
                if isinstance(dim, tirx.Var) and dim not in self.dims:
                    self.counted[dim] = self.once("Gather", value, self.vector([place]), axis=0)
        elif isinstance(ty.shape, relax.ShapeExpr):
            for axis, dim in enumerate(ty.shape.values):
                if isinstance(dim, tirx.Var) and dim not in self.counted:
                    self.dims.setdefault(dim, (value, axis))

    def rename_sizes(self, value: object, ty: relax.Type) -> None:
        """The sizes that `ty` names are those of the tensor called `value` now, whatever they were before."""
        if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
            for dim in ty.shape.values:
                if isinstance(dim, tirx.Var):
                    self.counted.pop(dim, None)
                    self.dims.pop(dim, None)
            self.name_sizes(value, ty)

    def shape(self, dims: Sequence[ir.Expr]) -> str:
        """Dimensions as one int64 vector."""
        if all(isinstance(d, (int, tirx.IntImm)) for d in dims):
            return self.vector([int(d) for d in dims])
        return self.once("Concat", *(self.dim(d) for d in dims), axis=0)

    def reshape(self, x: str, old: Sequence[ir.Expr], new: Sequence[ir.Expr]) -> str:
        """Reshape with a constant target wherever 0 (same axis) and one -1 can say it: engines fold constants only."""
        target = [0 if i < len(old) and same(old[i], d) and not is_int(d) else d for i, d in enumerate(new)]
        unknown = [i for i, d in enumerate(target) if not is_int(d)]
        if len(unknown) == 1:
            target[unknown[0]] = -1
        if len(unknown) <= 1 and all(is_int(d) for d in target):
            return self.emit("Reshape", x, self.vector([int(d) for d in target]))
        return self.emit("Reshape", x, self.shape(new))


def value_info(name: str, ty: relax.TensorType) -> onnx.ValueInfoProto:
    """A result of a graph inside a node: its type, and the sizes that are numbers."""
    dims = ty.shape.values if isinstance(ty.shape, relax.ShapeExpr) else [None] * ty.ndim
    shape = [int(dim) if dim is not None and is_int(dim) else None for dim in dims]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(str(ty.dtype))), shape)


def is_int(dim: ir.Expr | int) -> bool:
    return isinstance(dim, (int, tirx.IntImm))


def same(a: ir.Expr | int, b: ir.Expr | int) -> bool:
    """Whether two dimensions are equal for every value of their variables, as far as structure shows."""
    if is_int(a) or is_int(b):
        return is_int(a) and is_int(b) and int(a) == int(b)
    return bool(tvm_ffi.structural_equal(a, b))


def dims_of(expr: relax.Expr) -> list[ir.Expr]:
    """The dimensions of a tensor expression."""
    return list(expr.ty.shape.values)


def dtype_of(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


def attributes(call: relax.Call, *known: str) -> dict[str, object]:
    """The call's attributes; one that is set and not in `known` raises `UnsupportedModel`."""
    attrs = attrs_of(call)
    extra = [f"{k}={v!r}" for k, v in attrs.items() if k not in (*known, "layer") and v not in (None, False)]
    if extra:
        raise UnsupportedModel(f"attributes without an ONNX spelling: {', '.join(extra)}")
    return attrs
