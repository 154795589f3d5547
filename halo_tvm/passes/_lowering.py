"""Lowerings of Relax operators to one block each: of elements that are broadcast, and along axes."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, relax, te, tirx

from ..dimensions import is_one

HALVES = ("float16", "bfloat16")
Lowering = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def plain(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's own lowering of `call`."""
    return call.op.get_attr("FLegalize")(bb, call)


def elementwise(bb: relax.BlockBuilder, call: relax.Call, function: Callable[..., ir.Expr], name: str) -> relax.Expr:
    """function(element of every operand), broadcast as NumPy does."""

    def compute(*operands: te.Tensor) -> te.Tensor:
        rank = max(len(x.shape) for x in operands)
        shape: list[ir.Expr] = [tirx.IntImm("int64", 1)] * rank
        for x in operands:
            for axis, dim in enumerate(x.shape, rank - len(x.shape)):
                shape[axis] = dim if is_one(shape[axis]) else shape[axis]

        def element(*index: ir.Expr) -> ir.Expr:
            def own(x: te.Tensor) -> ir.Expr:
                first = rank - len(x.shape)
                places = zip(x.shape, shape[first:], index[first:])
                # An axis of size one in the result, too, is read at its place: so TVM sees a stage of what makes x.
                return x(*(0 if is_one(d) and not is_one(whole) else i for d, whole, i in places))

            return function(*(own(x) for x in operands))

        return te.compute(shape, element, name=name)

    return bb.call_te(compute, *call.args, primfunc_name_hint=name)


def reduced(
    bb: relax.BlockBuilder,
    call: relax.Call,
    reducer: Callable[..., ir.Expr],
    name: str,
    *,
    wide: str | None = None,
    after: Callable[[ir.Expr, ir.Expr], ir.Expr] | None = None,
) -> relax.Expr:
    """The axes of a reduction's call, by `reducer`.

    `wide`: the type that elements are reduced in, where it is not their own
    `after`: what is made of the reduced value and the number of elements
    """
    x, keepdims = call.args[0], bool(call.attrs.keepdims)
    rank, dtype = x.ty.ndim, str(x.ty.dtype)
    over = sorted(int(a) % rank for a in (call.attrs.axis if call.attrs.axis is not None else range(rank)))

    def compute(x: te.Tensor) -> te.Tensor:
        axes = {a: te.reduce_axis((0, x.shape[a]), f"k{a}") for a in over}
        kept = [a for a in range(rank) if a not in axes]
        shape = [1 if a in axes else x.shape[a] for a in range(rank)] if keepdims else [x.shape[a] for a in kept]

        def element(*index: ir.Expr) -> ir.Expr:
            left = dict(zip(range(rank) if keepdims else kept, index))
            value = x(*(axes[a] if a in axes else left[a] for a in range(rank)))
            return reducer(value.astype(wide) if wide else value, axis=list(axes.values()))

        out = te.compute(shape, element, name=name)
        if wide is None and after is None:
            return out
        count = tirx.IntImm("int64", 1)
        for a in over:
            count = count * x.shape[a]

        def narrowed(*index: ir.Expr) -> ir.Expr:
            value = out(*index)
            return (after(value, count) if after else value).astype(dtype)

        return te.compute(shape, narrowed, name=f"{name}_rounded")

    return bb.call_te(compute, x, primfunc_name_hint=name)
