"""Treat [batch, sequence, width] as [rows, width] wherever an operator works row by row.

Before -> after
    y: [b, s, n] = halo.linear(x: [b, s, k], w)
        ->   r: [m, k] = reshape(x);  q: [m, n] = halo.linear(r, w);  y = reshape(q),   m = b * s
    t: [b, s, c] = y[..., :c]   ->   p: [m, c] = q[:, :c];  t = reshape(p)
    z = relu(halo.convolution(x, w) + b), not flat yet   ->   the same: what follows joins the kernel of its windows
    z = float32(transpose(x)) * s, which no row-wise operator reads   ->   the same: its neighbours join it
    reshape(float32(q) * s) of bytes q   ->   float32(reshape(q)) * s: the kernel in front ends with bytes
A reshape moves no data. Reshapes between two row-wise operators vanish, so a transformer runs on
matrices except inside attention, and every kernel sees one symbolic row count.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..dimensions import integers_of, product
from ..relay_ops.operator import number_of, operator_of, same_dimension, same_places, same_shape, shaped
from ._pointwise import BINARY, BYTES, UNARY, operands_of, pointwise_of
from ._rewrite import BlockMutator, put
from .graph_pass import Context, Pass, Report, bindings, op_name, replace_main

# Operators that treat every row by itself: their data arguments come first, then weights.
_ROW_OPERATORS = ("linear", "linear_integer", "layer_norm", "rms_norm")


@dataclass(frozen=True)
class FlattenRows(Pass):
    """Run row-wise operators on matrices."""

    name = "flatten_rows"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        flattener = _Flattener(mod)
        func = flattener.visit_expr(mod["main"])
        mod = replace_main(flattener.builder_.get(), func)
        clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(clean)(mod), {"flattened": flattener.counts}


@relax.expr_functor.mutator
class _Flattener(BlockMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.counts: dict[str, int] = {}
        self.made: dict[relax.Expr, relax.Var] = {}  # value of rank >= 3 -> the same as a matrix
        self._towards = _towards_rows(mod["main"])
        self._stages: set[relax.Expr] = set()  # results of kernels that take stages, and what may become their stages

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(value, relax.Call):
            call = relax.Call(value.op, [self.visit_expr(a) for a in value.args], value.attrs, value.ty_args)
            flat = self._flat_call(call, binding.var)
            if flat is not None:
                name = op_name(value).removeprefix("relax.")
                self.counts[name] = self.counts.get(name, 0) + 1
                matrix = self.builder_.emit(flat)
                full = self.builder_.emit(relax.op.reshape(matrix, binding.var.ty.shape))
                self.made[full] = matrix
                put(self, binding.var, full)
                return
        super().visit_var_binding_(binding)
        if isinstance(value, relax.Call) and self._is_stage(value):
            self._stages.add(self.visit_expr(binding.var))

    def _is_stage(self, call: relax.Call) -> bool:
        """Whether the kernel of an operator that takes stages computes `call`, or may compute it."""
        operator = operator_of(call)
        if operator is not None:
            return operator.takes_stages
        known = op_name(call) in UNARY | BINARY | {"relax.call_tir"}
        return known and any(self.visit_expr(a) in self._stages for a in operands_of(call))

    def _flat_call(self, call: relax.Call, var: relax.Var) -> relax.Call | None:
        """`call`, which gives `var`, on matrices, or None when it does not work row by row on rank 3 and more."""
        ty = var.ty
        if op_name(call) == "relax.call_tir" and shaped(ty) and ty.ndim >= 3:
            if not any(a in self.made for a in operands_of(call)):
                return None
            kernel = pointwise_of(self.builder_.get(), call)
            return None if kernel is None else kernel.on(self.builder_, self._as_matrix)
        if op_name(call) == "relax.strided_slice":
            return self._columns(call, ty)
        if not call.args or not all(shaped(t) for t in (ty, *(arg.ty for arg in call.args))) or ty.ndim < 3:
            return None
        if any(same_dimension(d, 0) for d in ty.shape.values):
            return None  # TVM reshapes no tensor without elements
        name, operator = op_name(call), operator_of(call)
        data = [call.args[0]]
        if operator is not None and operator.name in _ROW_OPERATORS:
            # Norms may carry a residual behind their vectors: same shape as x.
            flat = {i for i, a in enumerate(call.args) if i == 0 or a.ty.ndim == ty.ndim}
        elif name in UNARY:
            flat = {0}
        elif name in BINARY:
            data = [a for a in call.args if a.ty.ndim == ty.ndim]
            flat = {i for i, a in enumerate(call.args) if a.ty.ndim == ty.ndim}
            vectors = [a for a in call.args if a.ty.ndim < ty.ndim]
            if any(a.ty.ndim > 1 for a in vectors):
                return None
        else:
            return None
        lead = ty.shape.values[:-1]
        if not all(same_shape(a.ty.shape.values[:-1], lead) for a in data):
            return None
        if operator is None and not any(a in self.made for a in data):
            if var not in self._towards or any(a in self._stages for a in data):
                return None
        args = [self._as_matrix(a) if i in flat else a for i, a in enumerate(call.args)]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _columns(self, call: relax.Call, ty: relax.TensorType) -> relax.Call | None:
        """A slice of the columns of what a matrix was made to, as one of the matrix."""
        x, axes, *bounds = call.args
        if x not in self.made or not shaped(ty) or any(same_dimension(d, 0) for d in ty.shape.values):
            return None
        if ty.ndim < 3 or integers_of(axes) not in ([-1], [ty.ndim - 1]):
            return None
        return relax.op.strided_slice(self.made[x], [1], *bounds, assume_inbound=bool(call.attrs.assume_inbound))

    def _as_matrix(self, x: relax.Expr) -> relax.Var:
        if x not in self.made:
            *lead, width = x.ty.shape.values
            made = self._of_bytes(x)
            self.made[x] = self.builder_.emit(relax.op.reshape(x, [product(lead), width]) if made is None else made)
        return self.made[x]

    def _of_bytes(self, x: relax.Expr) -> relax.Call | None:
        """`x` as a matrix made of a matrix of bytes, where single numbers and bytes make it element by element.

        A kernel in front then ends with bytes, and what reads `x` reads these.
        """
        call = self.builder_.lookup_binding(x) if isinstance(x, relax.Var) else None
        if op_name(call) not in UNARY | BINARY or str(x.ty.dtype) in BYTES:
            return None
        data, *numbers = call.args
        if any(number_of(number) is None or number.ty.ndim for number in numbers) or not same_places(data.ty, x.ty):
            return None
        if str(data.ty.dtype) not in BYTES and self._of_bytes(data) is None:
            return None
        return relax.Call(call.op, [self._as_matrix(data), *numbers], call.attrs, call.ty_args)


def _towards_rows(func: relax.Function) -> set[relax.Var]:
    """What row-wise operators read, element-wise operators in between or not."""
    found: set[relax.Var] = set()
    for binding in reversed(bindings(func)):
        call = binding.value
        operator = operator_of(call) if isinstance(call, relax.Call) else None
        rows = operator is not None and operator.name in _ROW_OPERATORS
        if rows or binding.var in found and op_name(call) in UNARY | BINARY:
            found.update(arg for arg in call.args if isinstance(arg, relax.Var))
    return found
