"""One operator of an exported program while it is converted: its arguments, its result's type, and what to emit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tvm
from torch import fx
from tvm import ir, relax, te, tirx

from ...tir_schedules.blocks import substitute
from ..meaning.builder import Builder, Refused, is_tensor
from ..meaning.constant import Constant, numpy_dtype

if TYPE_CHECKING:
    from ._translate import Translator

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}

Number = bool | int | float


def is_fraction(value: object) -> bool:
    """Whether it is a number of the run that need not be whole: sizes divided, or times a fraction."""
    return isinstance(value, ir.Expr) and not is_tensor(value) and "float" in str(value.ty)


def dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise Refused(f"dtype {dtype}")
    return DTYPES[dtype]


class Call(Builder):
    """The arguments by their names in the operator's schema, defaults filled in, nodes replaced by values.

    A tensor is a `relax.Expr`; a size is a Python number or a TIR expression.
    """

    def __init__(self, translator: Translator, node: fx.Node) -> None:
        self.translator = translator
        self.block, self.sizes, self.draws = translator.builder, translator.sizes, translator.draws
        self.node = node
        self.name: str = translator.layer
        self.nodes: dict[str, object] = {}
        if isinstance(node.target, torch._ops.HigherOrderOperator):  # has no schema: arguments by their positions
            self.op: str = node.target.name()
            self.nodes.update((str(position), argument) for position, argument in enumerate(node.args))
            return
        self.op = node.target._schema.name.split("::")[-1]
        schema = node.target._schema.arguments
        for position, argument in enumerate(schema):
            if position < len(node.args):
                self.nodes[argument.name] = node.args[position]
            elif argument.name in node.kwargs:
                self.nodes[argument.name] = node.kwargs[argument.name]
            else:
                self.nodes[argument.name] = argument.default_value if argument.has_default_value() else None

    def __getitem__(self, name: str) -> Any:
        """The argument `name`, nodes in it replaced by their values."""
        return fx.node.map_arg(self.nodes[name], lambda node: self.translator.env[node])

    def has(self, name: str) -> bool:
        return self.nodes.get(name) is not None

    def meta(self, name: str) -> object:
        """The example value of the argument `name`: a fake tensor, or a number."""
        return fx.node.map_arg(self.nodes[name], lambda node: node.meta["val"])

    @property
    def out(self) -> torch.Tensor:
        value = self.node.meta["val"]
        return value[0] if isinstance(value, tuple | list) else value

    @property
    def dtype(self) -> str:
        return dtype_name(self.out.dtype)

    @property
    def shape(self) -> list[ir.Expr]:
        return self.translator.dims.shape(self.out.shape)

    def found_size(self, axis: int) -> ir.Expr:
        """The result's size along `axis`, which this operator finds: a new dimension where torch names it first."""
        return self.translator.dims.define(self.out.shape[axis], self.op)

    def shape_of(self, name: str) -> list[ir.Expr]:
        return self.translator.dims.shape(self.meta(name).shape)

    def rank(self, name: str) -> int:
        return self.meta(name).dim()

    def is_empty(self, name: str = "self") -> bool:
        """Whether the argument `name` is known to have no element."""
        return any(isinstance(size, int) and size == 0 for size in self.meta(name).shape)

    def axis(self, name: str, of: str = "self") -> int:
        """The argument `name` as an axis of the argument `of`, from 0; a number counts as a vector of one element."""
        return int(self[name]) % max(self.rank(of), 1)

    def tensor(self, name: str, dtype: str | None = None) -> relax.Expr:
        """The argument `name` as a tensor of `dtype`; a number becomes a tensor of rank 0."""
        return self.as_tensor(self[name], dtype or self.dtype) if dtype else self.as_tensor(self[name], None)

    def as_tensor(self, value: object, dtype: str | None) -> relax.Expr:
        if isinstance(value, Number):
            return constant(value, dtype or _natural(value))
        if is_tensor(value):
            return self.cast(value, dtype) if dtype else value
        # a size, a fraction of sizes, or how sizes compare: the only numbers that only the run knows
        if is_fraction(value):
            return self.cast(self._of_sizes(value), dtype or "float32")
        if "bool" in str(value.ty):
            return self.cast(self._of_sizes(value), dtype)
        one = self.emit(relax.op.arange(value, value + 1, 1, "int64"))
        return self.cast(self.emit(relax.op.reshape(one, relax.ShapeExpr([]))), dtype)

    def _of_sizes(self, value: ir.Expr) -> relax.Expr:
        """float64 [] or bool []."""
        sizes = list(tirx.analysis.undefined_vars(value))

        def compute(*given: ir.Expr) -> te.Tensor:
            number = substitute(value, dict(zip(sizes, given)), {})
            return te.compute((), lambda: number, name="of_sizes")

        return self.te(compute, *sizes, name="of_sizes")

    def cast(self, x: relax.Expr, dtype: str | None) -> relax.Expr:
        if dtype is None or str(x.ty.dtype) == dtype:
            return x
        if isinstance(x, ir.GenericConst):
            return relax.const(x.value.numpy().astype(numpy_dtype(dtype)), dtype)
        if dtype == "bool":
            return self.emit(relax.op.not_equal(x, constant(0, str(x.ty.dtype))))
        return self.emit(relax.op.astype(x, dtype))

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self.translator.emit(expr)

    def known(self, x: relax.Expr) -> Constant | None:
        return self.translator.constant_of(x)

    def weight(self, value: Constant) -> relax.Expr:
        return self.translator.weight_of(value)

    def permute(self, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
        """permute_dims; two in a row are one, and none when they cancel."""
        x, axes = self.one_permutation(x, axes)
        return x if axes == sorted(axes) else self.emit(relax.op.permute_dims(x, axes))

    def broadcast(self, x: relax.Expr, shape: Sequence[ir.Expr]) -> relax.Expr:
        if self.has_shape(x, shape):
            return x
        return self.emit(relax.op.broadcast_to(x, relax.ShapeExpr(list(shape))))


def constant(value: Number | np.ndarray, dtype: str) -> ir.GenericConst:
    return relax.const(np.asarray(value).astype(numpy_dtype(dtype)), dtype)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The elements of `tensor`, dense."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy(), order="C")  # ascontiguousarray would give a number a dimension


def from_array(array: np.ndarray) -> torch.Tensor:
    """A tensor of the elements of `array`, which are its own."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _natural(value: Number) -> str:
    return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"


def each(c: Call, name: str, count: int, default: int | None = None) -> tuple[int, ...]:
    """The numbers of the argument `name` for `count` axes, one of which may stand for all."""
    value = c[name] if name in c.nodes else default
    values = list(value) if isinstance(value, Sequence) else [value]
    return tuple(fixed(v, name) for v in (values * count if len(values) == 1 else values))


def fixed(value: object, what: str) -> int:
    """A size that the operator needs as a number; `Refused` when it is symbolic."""
    if isinstance(value, int):
        return value
    if isinstance(value, tvm.tirx.IntImm):
        return int(value)
    raise Refused(f"{what} that is a dynamic size")
