"""Operators whose result depends on an order or on how many elements qualify, as kernels every runtime has.

Before -> after
    sort, argsort         ->   order = ... of rows;  what was asked for, taken by it
    topk                  ->   the first k of that order, which a heap finds without the others
    nonzero(x)            ->   count = ...;  k = the size that count holds;  places = ... [k];  their coordinates
    unique(x)             ->   order, groups, count = ...;  k = ...;  first, counts = ... [k];  take(x, first)
TVM's own lowerings call its library of extras or Python, which a deployed artifact has not.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te, tirx

from ..dimensions import is_one, product
from ..heaps import first_places
from ._radix_sort import places_in_order
from ._sizes import one_name_each
from ._sorting import argsort_kernel, groups_kernel, members_kernel, nonzero_count_kernel, nonzero_fill_kernel
from .graph_pass import op_name

Argsort = Callable[[relax.BlockBuilder, relax.Expr, bool], relax.Expr]  # of x [rows, n], descending or not


def lower_data_dependent(mod: tvm.IRModule, *, gpu: bool) -> tvm.IRModule:
    """`mod` without the operators above, in every function and branch."""
    lowering = _Lowering(mod, _by_merges if gpu else _by_digits)
    for gvar, func in list(mod.functions_items()):
        if isinstance(func, relax.Function) and _occurs(func):
            lowering.builder_.update_func(gvar, lowering.visit_expr(func))
    mod = lowering.builder_.get()
    for gvar, func in list(mod.functions_items()):
        if isinstance(func, relax.Function):
            mod[gvar] = one_name_each(mod, func)
    return mod


def _occurs(func: relax.Function) -> bool:
    found = []
    relax.analysis.post_order_visit(func, lambda e: found.append(e) if op_name(e) in _LOWERINGS else None)
    return bool(found)


@relax.expr_functor.mutator
class _Lowering(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, argsort: Argsort) -> None:
        super().__init__(mod)
        self._argsort = argsort

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        lower = _LOWERINGS.get(op_name(call))
        return call if lower is None else lower(self.builder_, call, self._argsort)


def _order(
    bb: relax.BlockBuilder, x: relax.Expr, axis: int, argsort: Argsort, descending: bool, k: int = -1
) -> relax.Expr:
    """int64 of x's shape: the argsort along `axis`, or of it the first `k` where that is a number above 0."""
    rank = x.ty.ndim
    back = [*range(axis), rank - 1, *range(axis, rank - 1)]
    if axis != rank - 1:
        x = bb.emit(relax.op.permute_dims(x, [*range(axis), *range(axis + 1, rank), axis]))
    *lead, n = x.ty.shape.values
    rows = product(lead)
    if k < 1 or (isinstance(n, tirx.IntImm) and k >= int(n)):
        k = n
    x = bb.emit(relax.op.reshape(x, [rows, n]))
    if isinstance(k, int):
        order = bb.emit_te(first_places, x, k, largest=descending, primfunc_name_hint="topk")
    else:
        order = argsort(bb, x, descending)
    order = bb.emit(relax.op.reshape(order, [*lead, k]))
    return order if axis == rank - 1 else bb.emit(relax.op.permute_dims(order, back))


def _by_digits(bb: relax.BlockBuilder, x: relax.Expr, descending: bool) -> relax.Expr:
    made = bb.emit_te(places_in_order, x, descending=descending, primfunc_name_hint="argsort")
    return bb.emit(relax.TupleGetItem(made, 0))


def _by_merges(bb: relax.BlockBuilder, x: relax.Expr, descending: bool) -> relax.Expr:
    """For GPUs, where a row is a thread's."""
    rows, n = x.ty.shape.values
    x = bb.emit(relax.op.reshape(x, [rows, n, 1]))
    gvar = bb.add_func(argsort_kernel(str(x.ty.dtype), descending=descending), "argsort")
    return bb.emit(relax.op.call_tir(gvar, [x], relax.TensorType([rows, n], "int64")))


def _sort(bb: relax.BlockBuilder, call: relax.Call, argsort: Argsort) -> relax.Expr:
    x, axis = _along(bb, call, int(call.attrs.axis))
    return relax.op.gather_elements(x, _order(bb, x, axis, argsort, bool(call.attrs.descending)), axis)


def _argsort(bb: relax.BlockBuilder, call: relax.Call, argsort: Argsort) -> relax.Expr:
    x, axis = _along(bb, call, int(call.attrs.axis))
    return _cast(_order(bb, x, axis, argsort, bool(call.attrs.descending)), call.ty.dtype)


def _topk(bb: relax.BlockBuilder, call: relax.Call, argsort: Argsort) -> relax.Expr:
    attrs = call.attrs
    x, axis = _along(bb, call, int(attrs.axis))
    order = _order(bb, x, axis, argsort, bool(attrs.largest), int(attrs.k))
    values = bb.emit(relax.op.gather_elements(x, order, axis))
    indices = bb.emit(_cast(order, attrs.dtype))
    one = {"values": values, "indices": indices}
    return one[str(attrs.ret_type)] if str(attrs.ret_type) in one else relax.Tuple([values, indices])


def _along(bb: relax.BlockBuilder, call: relax.Call, axis: int) -> tuple[relax.Expr, int]:
    x = call.args[0]
    return x, axis % max(x.ty.ndim, 1)


def _nonzero(bb: relax.BlockBuilder, call: relax.Call, _argsort: Argsort) -> relax.Expr:
    x = call.args[0]
    dims = list(x.ty.shape.values)
    flat = bb.emit(relax.op.reshape(x, [product(dims)]))
    dtype = str(x.ty.dtype)
    count = bb.add_func(nonzero_count_kernel(dtype), "nonzero_count")
    k = _size(bb, bb.emit(relax.op.call_tir(count, [flat], relax.TensorType([1], "int64"))))
    fill = bb.add_func(nonzero_fill_kernel(dtype), "nonzero_fill")
    places = bb.emit(relax.op.call_tir(fill, [flat], relax.TensorType([k], "int64")))

    def coordinates(at: te.Tensor, like: te.Tensor) -> te.Tensor:
        shape = list(like.shape) or [tirx.IntImm("int64", 1)]  # the kernel's own symbols

        def one(axis: tirx.Var, j: tirx.Var) -> tvm.ir.Expr:
            value = tirx.const(0, "int64")
            for number in range(len(shape)):
                here = tirx.floormod(tirx.floordiv(at[j], product(shape[number + 1 :])), tirx.max(shape[number], 1))
                value = tirx.if_then_else(axis == number, here, value)
            return value

        return te.compute((len(dims) or 1, k), one, name="coordinates")

    return bb.call_te(coordinates, places, x, primfunc_name_hint="coordinates")


def _unique(bb: relax.BlockBuilder, call: relax.Call, argsort: Argsort) -> relax.Expr:
    x, in_order, *wanted = call.args[:5]
    axis = call.args[5] if len(call.args) > 5 else None
    axis = None if axis is None or not isinstance(axis, tirx.IntImm) else int(axis) % x.ty.ndim
    if axis is None:
        x, axis = bb.emit(relax.op.reshape(x, [product(x.ty.shape.values)])), 0
    rank = x.ty.ndim
    front = x if axis == 0 else bb.emit(relax.op.permute_dims(x, [axis, *(i for i in range(rank) if i != axis)]))
    n, *rest = front.ty.shape.values
    dtype = str(x.ty.dtype)
    width = product(rest)
    rows = bb.emit(relax.op.reshape(front, [1, n, width]))
    if is_one(width):
        order = argsort(bb, bb.emit(relax.op.reshape(rows, [1, n])), False)
    else:
        sort = bb.add_func(argsort_kernel(dtype), "argsort")
        order = bb.emit(relax.op.call_tir(sort, [rows], relax.TensorType([1, n], "int64")))
    numbering = bb.add_func(groups_kernel(dtype, bool(int(in_order))), "groups")
    types = [relax.TensorType([n], "int64"), relax.TensorType([1], "int64")]
    found = bb.emit(relax.op.call_tir(numbering, [rows, order], types))
    group = bb.emit(relax.TupleGetItem(found, 0))
    k = _size(bb, bb.emit(relax.TupleGetItem(found, 1)))
    members = bb.add_func(members_kernel(), "members")
    made = bb.emit(relax.op.call_tir(members, [group], [relax.TensorType([k], "int64")] * 2))
    first, counts = (bb.emit(relax.TupleGetItem(made, i)) for i in range(2))
    values = bb.emit(relax.op.take(x, first, axis, mode="clip"))
    extra = [value for value, flag in zip((first, group, counts), wanted) if bool(int(flag))]
    return relax.Tuple([values, *extra]) if extra else values


def _size(bb: relax.BlockBuilder, count: relax.Expr) -> tirx.Var:
    """A new dimension of the size that `count` [1] holds."""
    k = tirx.Var("k", "int64")
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(count)), relax.ShapeType([k]))
    return k


def _cast(x: relax.Expr, dtype: object) -> relax.Expr:
    dtype = str(getattr(dtype, "dtype", dtype))
    return x if str(x.ty.dtype) == dtype else relax.op.astype(x, dtype)


_LOWERINGS = {
    "relax.sort": _sort,
    "relax.argsort": _argsort,
    "relax.topk": _topk,
    "relax.nonzero": _nonzero,
    "relax.unique": _unique,
}
