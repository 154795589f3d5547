"""What a converter of any source offers to the modules of this package: where to emit, and how to refuse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from tvm import relax

from ...relay_ops.operator import op_name, order_of
from .constant import Constant
from .sizes import Dim, Sizes, plain, prim

if TYPE_CHECKING:
    from .random import Draws


class Refused(Exception):
    """An operator that cannot be converted; the message says why. `needs`: graph inputs that would have to be constant.

    It ends in the importer's list of all that it cannot convert.
    """

    def __init__(self, reason: str, needs: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.needs = needs


class Builder(ABC):
    """One operator of a source while it is converted.

    block: receives bindings of Relax
    sizes: simplifies and compares sizes, knowing the ranges of the model's symbolic dimensions
    name: of this operator's place in its source; reports call what is emitted by it
    op: of the operator itself, in the source's words; kernels without a better name are called by it
    draws: what the whole model draws, see `random`; only sources with random numbers have it
    """

    block: relax.BlockBuilder
    sizes: Sizes
    name: str
    op: str
    draws: Draws

    @abstractmethod
    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind `expr`; its shape must be known."""

    @abstractmethod
    def known(self, x: relax.Expr) -> Constant | None:
        """The values behind `x` where it is a weight or a constant; they are read only when asked for."""

    @abstractmethod
    def weight(self, value: Constant) -> relax.Expr:
        """`value` as an expression: a parameter of the function where it is large."""

    def bind(self, x: relax.Expr) -> relax.Expr:
        """As `emit`; a variable is bound already."""
        return x if isinstance(x, relax.Var) else self.emit(x)

    def bound_to(self, x: relax.Expr) -> Any:
        """What a variable is bound to; None for a parameter."""
        return self.block.lookup_binding(x) if isinstance(x, relax.Var) else x

    def has_shape(self, x: relax.Expr, shape: Sequence[Dim]) -> bool:
        """Whether `x` is known to have that shape."""
        return isinstance(x.ty.shape, relax.ShapeExpr) and self.sizes.same_shape(expr_shape(x), shape)

    def reshape(self, x: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """`x` in another shape; `x` itself where it has that shape."""
        if self.has_shape(x, shape):
            return x
        sizes = relax.ShapeExpr([prim(d) for d in shape])
        if 0 in [d for d in map(plain, shape) if isinstance(d, int)]:  # TVM reshapes no tensor without elements
            return self.emit(relax.op.zeros(sizes, expr_dtype(x)))
        return self.emit(relax.op.reshape(x, sizes))

    def one_permutation(self, x: relax.Expr, axes: Sequence[int]) -> tuple[relax.Expr, list[int]]:
        """What to permute, and how, for `x` by `axes`: where `x` is permuted itself, both at once."""
        inner = self.bound_to(x)
        if op_name(inner) != "relax.permute_dims":
            return x, list(axes)
        before = order_of(inner)
        return inner.args[0], [before[a] for a in axes]

    def te(self, function: Callable, *args: object, name: str = "", **kwargs: object) -> relax.Expr:
        """Bind a call of the tensor expression `function(*args)`; sizes among `args` may be symbolic."""
        return self.block.emit_te(function, *args, primfunc_name_hint=name or self.op.lower(), **kwargs)

    def cast(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """`x` in elements of `dtype`; `x` itself where it has them."""
        return x if expr_dtype(x) == dtype else self.emit(relax.op.astype(x, dtype))

    def declared(self, expr: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """`expr` with sizes in other words, or assumed to be those of `shape`; a run where they are not is refused.

        The shape is forgotten in between: TVM's clean-up takes a cast from one symbol to another for a renaming,
        removes it, and the check with it.
        """
        bound = expr if isinstance(expr, relax.Var) else self.block.emit(expr)
        dtype = expr_dtype(bound)
        forgotten = self.block.match_cast(bound, relax.TensorType(dtype=dtype, ndim=len(shape)))
        return self.block.match_cast(forgotten, relax.TensorType([prim(d) for d in shape], dtype))

    def refuse(self, reason: str) -> NoReturn:
        raise Refused(reason)

    def refuse_unless(self, condition: bool, reason: str) -> None:
        if not condition:
            self.refuse(reason)


def expr_dtype(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


def is_tensor(value: object) -> TypeGuard[relax.Expr]:
    """Whether `value` is a tensor of the graph: sizes are expressions, too."""
    return isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType)


def expr_shape(expr: relax.Expr) -> list[Dim]:
    """Dimensions of an expression of known shape."""
    return [plain(d) for d in expr.ty.shape.values]
