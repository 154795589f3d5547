"""Run convolutions and what lies between them with the channels last, and as matrix products.

Before -> after
    y = halo.convolution(x, w), 1 x 1           ->   y = halo.linear(x, w'), of rows that are a view of x
    y = halo.convolution(x, w)                  ->   the same with layout "packed": products that read through windows;
                                                     groups lie in panels as `_groups` says;
                                                     of few channels several places at once (`_neighbours`);
                                                     or halo.convolution_winograd(x, w'), where that is faster
                                                     (`_winograd`)
        where no rule of the target does that,         r = [rows, kernel * c] of x's windows
        or a precision below fp32 gains by it          y = halo.linear(r, w'),   rows = n * windows
    y = halo.convolution(x, w), channel-wise    ->   the same with layout "last": its innermost loop runs along channels
    y = halo.convolution_integer(x, z, w)       ->   the same with layout "packed", see `_integer_windows`
    y = halo.pooling(x)                         ->   the same with layout "last"
    relu(y), y + z, y * gate, concat, mean,     ->   on the channels-last twins, where an operand has one
        what treats channels alike (`_by_channel`), moves of whole tensors (`_moves`), instance and group norms
        (`_channel_groups`)
Every result also exists with its channels where they were; whatever nobody reads is dropped, so that permutations
are left only where the model's own operators need that order. Weights move once, by recipes.
Options (halo.toml, [passes.channels_last])
    winograd = false    no convolution in tiles, whose weights take four times the memory
Leaves alone
    convolutions whose weight is computed or an input, or of integers or float64; models without convolution
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..errors import UsageError
from ..relay_ops.convolution import Convolution
from ..relay_ops.convolution_integer import ConvolutionInteger
from ..relay_ops.operator import attrs_of, operator_of, same_dimension, same_shape, shaped
from ..relay_ops.pooling import Pooling
from ..relay_ops.quantisation_grid import QuantisationGrid
from ._by_channel import ByChannel, moved_axis, to_last
from ._channel_groups import Grouped, groups_of
from ._convolutions import Convolutions
from ._integer_windows import integer_convolution
from ._moves import Moved, transposed
from ._neighbours import Neighbours
from ._pointwise import BINARY, UNARY
from ._rewrite import BlockMutator, put
from .graph_pass import Context, Pass, Report, bindings, op_name
from .weights import WeightEditor

_UNARY = UNARY | {"relax.nn.leakyrelu", "relax.nn.relu6", "relax.clip", "relax.floor"}
_BINARY = BINARY | {"relax.power"}
_REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Convolutions by matrix products on channels-last tensors."""

    name = "channels_last"
    winograd: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.winograd, bool):
            raise UsageError(f"expected winograd = true or false, found {self.winograd!r:.60}: correct halo.toml")

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func = mod["main"]
        if not any(operator_of(b.value) in (Convolution, ConvolutionInteger) for b in bindings(func)):
            return mod, {"convolutions": {}}
        editor = WeightEditor(func, context.params)
        mover = _Mover(mod, editor, context, self.winograd)
        new = mover.visit_expr(func)
        mod = editor.finish(mover.builder_.get(), new.body)
        clean = [
            relax.transform.Normalize(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
        return tvm.transform.Sequential(clean)(mod), {"convolutions": mover.counts}


@relax.expr_functor.mutator
class _Mover(BlockMutator):
    def __init__(self, mod: tvm.IRModule, editor: WeightEditor, context: Context, winograd: bool) -> None:
        super().__init__(mod)
        self._editor = editor
        self._target = context.target
        self._typical = context.typical
        self._sums = "search" in context.target.spec.rules  # along any axes
        self._convolutions = Convolutions(self.builder_, editor, context, winograd)
        self._tiles = winograd and "convolution_winograd" in context.target.spec.rules
        self.made: dict[relax.Expr, relax.Expr] = {}  # value -> the same with its channels last
        self._moved: dict[relax.Expr, Moved] = {}  # reshaped and transposed values of `made`
        self._grouped: dict[relax.Expr, Grouped] = {}  # values of `made` whose groups of channels are rows
        self._held: dict[relax.Expr, Neighbours] = {}  # channels-last values that hold several places as one
        self._by_channel = ByChannel(self.builder_, self._last)
        self.counts: dict[str, int] = {}

    def _alone(self, visit: Callable[..., relax.BindingBlock], block: relax.BindingBlock) -> relax.BindingBlock:
        around, self._moved, self._grouped = (self._moved, self._grouped), {}, {}
        visited = super()._alone(visit, block)
        self._moved, self._grouped = around
        return visited

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        reduced = self._reduced(value) if isinstance(value, relax.Call) else None
        if reduced is not None:
            put(self, binding.var, reduced)
            return
        if isinstance(value, relax.Call) and shaped(binding.var.ty) and binding.var.ty.ndim >= 3:
            call = relax.Call(value.op, [self.visit_expr(a) for a in value.args], value.attrs, value.ty_args)
            if self._bind_grouped(binding, call):
                return
            moved = self._moved_by(call)
            if moved is not None and self._bind_moved(binding.var, moved):
                return
            twin = self._twin_of(call, binding.var.ty) if moved is None else None
            if twin is not None:
                self._bind(binding.var, twin if isinstance(twin, relax.Var) else self.builder_.emit(twin))
                return
            super().visit_var_binding_(binding)
            if moved is not None:
                self._moved[self.visit_expr(binding.var)] = moved
            if self._sums and op_name(call) == "relax.reshape" and call.args[0] in self.made:
                groups = groups_of(call.args[0].ty.shape.values, binding.var.ty.shape.values)
                if groups is not None:
                    self._grouped[self.visit_expr(binding.var)] = Grouped(self.made[call.args[0]], groups)
            return
        super().visit_var_binding_(binding)

    def _bind_grouped(self, binding: relax.VarBinding, call: relax.Call) -> bool:
        """Bind what `call` makes of rows of groups of channels; False where it makes nothing of such, or no such."""
        held, name, var = [self._grouped.get(a) for a in call.args], op_name(call), binding.var
        first = next((h for h in held if h is not None), None)
        if first is None:
            return False
        if name == "relax.mean":
            along = call.attrs.keepdims and call.attrs.axis is not None and [int(a) % 3 for a in call.attrs.axis] == [2]
            mean = first.mean(self.builder_) if along else None
            if mean is None or not isinstance(var, relax.DataflowVar):
                return False
            self.set_var_remap(var, self.builder_.emit(mean))
            return True
        if name == "relax.reshape" and same_shape(var.ty.shape.values, first.image):
            self._bind(var, first.value)
            return True
        if name not in _UNARY and name not in _BINARY or any(h is not None and h.groups != first.groups for h in held):
            return False
        args = [h.value if h else first.of_channels(self.builder_, a) for h, a in zip(held, call.args)]
        if name in _UNARY:
            args[1:] = call.args[1:]
        if any(a is None for a in args):
            return False
        twin = self.builder_.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        super().visit_var_binding_(binding)
        self._grouped[self.visit_expr(var)] = Grouped(twin, first.groups)
        return True

    def _moved_by(self, call: relax.Call) -> Moved | None:
        """The result of a reshape or a transposition on what has its channels last; None for other calls."""
        name, x = op_name(call), call.args[0] if call.args else None
        if name not in ("relax.reshape", "relax.permute_dims") or x not in self.made and x not in self._moved:
            return None
        rank = x.ty.ndim
        held = Moved(self.made[x], tuple(_to_first(rank)), rank) if x in self.made else self._moved[x]
        if name == "relax.reshape":
            new = call.args[1]
            if not isinstance(new, relax.ShapeExpr):
                return None
            return held.reshaped(self.builder_, x.ty.shape.values, new.values)
        axes = call.attrs.axes
        return held.permuted([int(a) % rank for a in axes] if axes is not None else range(rank)[::-1])

    def _bind_moved(self, var: relax.Var, moved: Moved) -> bool:
        """Bind `var` where it is a value as it lies, or a whole image again; False where it is neither."""
        if moved.is_value:
            put(self, var, moved.value)
            return True
        unrolled = moved.rank == 3 and var.ty.ndim in (4, 5)  # places in a row are an image again
        if list(moved.order) == _to_first(var.ty.ndim) and (var.ty.ndim == moved.rank or unrolled):
            self._bind(var, moved.value)
            return True
        return False

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        if value in self.made and isinstance(binding.ty, relax.TensorType):
            self._bind(binding.var, self.builder_.match_cast(self.made[value], _with_channels_last(binding.ty)))
            return
        super().visit_match_cast_(binding)

    def _bind(self, var: relax.Var, twin: relax.Expr) -> None:
        """`var` is the channels-first order of `twin`, computed where anybody reads it."""
        full = self.builder_.emit(transposed(twin, _to_first(var.ty.ndim)))
        self.made[full] = twin
        put(self, var, full)

    def _reduced(self, call: relax.Call) -> relax.Expr | None:
        """A reduction that forgets its axes and leaves the others in one order, wherever the channels are."""
        if op_name(call) not in _REDUCTIONS or call.attrs.keepdims:
            return None
        twin = self._reduction(call, self.visit_expr(call.args[0]))
        if twin is None:
            return None
        rank, gone = call.args[0].ty.ndim, {int(a) for a in twin.attrs.axis}
        left = [a for a in (moved_axis(a, rank) for a in range(rank)) if a not in gone]
        return twin if left == sorted(left) else None

    def _reduction(self, call: relax.Call, x: relax.Expr) -> relax.Call | None:
        """The reduction `call` of `x` as it is with its channels last; None where nobody knows that."""
        if x not in self.made or call.attrs.axis is None:
            return None
        axes = [moved_axis(int(a) % x.ty.ndim, x.ty.ndim) for a in call.attrs.axis]
        function = getattr(relax.op, op_name(call).removeprefix("relax."))
        return function(self.made[x], axes, keepdims=bool(call.attrs.keepdims))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if operator_of(call) is QuantisationGrid and call.args[0] in self.made:  # whatever the order of x
            return QuantisationGrid.call(self.made[call.args[0]])
        return call

    def _twin_of(self, call: relax.Call, ty: relax.TensorType) -> relax.Expr | None:
        """The channels-last twin of what `call` computes; None where it has none."""
        operator, name, rank = operator_of(call), op_name(call), ty.ndim
        if operator is Convolution:
            if attrs_of(call)["layout"] != "first" or len(call.args) != 2:
                return None
            made, how = self._convolutions.channels_last(call, ty, self._last)
            self._count(how)
            return self._apart(made) if isinstance(made, Neighbours) else made
        if operator is ConvolutionInteger:
            sizes, target = (ty.shape.values[0], *ty.shape.values[2:]), self._target
            last, tiles = self._last(call.args[0]), self._typical if self._tiles else None
            twin, how = integer_convolution(self.builder_, self._editor, last, call, sizes, target, tiles)
            self._count(how)
            return twin
        if operator is Pooling and attrs_of(call)["layout"] == "first":
            return Pooling.call(self._last(call.args[0]), **{**attrs_of(call), "layout": "last"})
        held = self._behind_neighbours(call, name, ty)
        if held is not None:
            return self._apart(held)
        if name in _UNARY and call.args[0] in self.made:
            return relax.Call(call.op, [self.made[call.args[0]], *call.args[1:]], call.attrs, call.ty_args)
        if name in _BINARY and any(a in self.made for a in call.args):
            args = [self._operand(a, rank, ty) for a in call.args]
            return relax.Call(call.op, args, call.attrs, call.ty_args) if all(a is not None for a in args) else None
        if name in _REDUCTIONS and call.attrs.keepdims:
            return self._reduction(call, call.args[0])
        if name == "relax.permute_dims" and call.attrs.axes and list(map(int, call.attrs.axes)) == _to_first(rank):
            return call.args[0]
        if name == "relax.concat" and isinstance(call.args[0], relax.Tuple) and call.attrs.axis is not None:
            fields = list(call.args[0].fields)
            if sum(f in self.made for f in fields) * 2 > len(fields):
                return relax.op.concat([self._last(f) for f in fields], moved_axis(int(call.attrs.axis) % rank, rank))
        return self._by_channel.twin(call, ty, self.made)

    def _apart(self, held: Neighbours) -> relax.Var:
        value = held.apart(self.builder_)
        self._held[value] = held
        return value

    def _behind_neighbours(self, call: relax.Call, name: str | None, ty: relax.TensorType) -> Neighbours | None:
        """What an element-wise call makes of values that hold several places as one; None for other calls."""
        if not (name in _UNARY or name in _BINARY):
            return None
        held = {a: self._held.get(self.made[a]) for a in call.args if a in self.made}
        first, shape = next(iter(held.values()), None), tuple(to_last(list(ty.shape.values)))
        if first is None or any(
            h is None or h.count != first.count or not same_shape(h.shape, shape) for h in held.values()
        ):
            return None
        return first.followed_by(
            self.builder_, call, held, lambda a: self._operand(a, ty.ndim, ty) if shaped(a.ty) else None
        )

    def _operand(self, arg: relax.Expr, rank: int, ty: relax.TensorType) -> relax.Expr | None:
        """An operand of a broadcasting operator with its channels last."""
        if arg in self.made:  # with other axes than the result's its channels are not the result's
            return self.made[arg] if arg.ty.ndim == rank else None
        if not shaped(arg.ty):
            return None
        dims = list(arg.ty.shape.values)
        if all(same_dimension(d, 1) for d in dims):
            return arg
        channel = len(dims) - (rank - 1)  # where the channels are in an operand of fewer dimensions
        if channel >= 0 and all(same_dimension(d, 1) for i, d in enumerate(dims) if i != channel):
            return self.builder_.emit(relax.op.reshape(arg, [dims[channel]]))
        if len(dims) == rank and all(
            same_dimension(d, 1) or same_dimension(d, s) for d, s in zip(dims, ty.shape.values)
        ):
            return self._last(arg)
        return None

    def _last(self, x: relax.Expr) -> relax.Expr:
        """`x` with its channels last."""
        if x not in self.made:
            rank = x.ty.ndim
            self.made[x] = self.builder_.emit(transposed(x, [0, *range(2, rank), 1]))
        return self.made[x]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _with_channels_last(ty: relax.TensorType) -> relax.TensorType:
    if not isinstance(ty.shape, relax.ShapeExpr):
        return ty
    return relax.TensorType(to_last(list(ty.shape.values)), ty.dtype)


def _to_first(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]
