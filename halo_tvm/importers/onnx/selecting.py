"""Elements by value: NonZero, Compress, TopK."""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ._broadcast import at_least
from ._dims import prim
from ._node import Node, expr_shape
from ._registry import converter
from ._values import Dim
from .scatter import _places, _product

_PASSES = 32  # of a merge sort: rows of up to 2**32 elements


@converter("NonZero")
def nonzero(node: Node) -> relax.Expr:
    node.refuse_unless(node.rank(0) > 0, "expected a rank of 1 or more, found a single number")
    return places_of(node, node.x(0))


def places_of(node: Node, x: relax.Expr) -> relax.Expr:
    """int64 [rank, count]: where `x` is not zero, in order; `count` is a new dimension."""
    rank = len(expr_shape(x))

    def count(data: te.Tensor) -> te.Tensor:
        def nest(ins: list, outs: list) -> tirx.Stmt:
            data, out = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
            with IRBuilder() as builder, T.seq_scope():
                out[0] = tirx.const(0, "int64")
                with T.serial(0, _product(ins[0].shape)) as i:
                    out[0] = out[0] + _is_set(data[i]).astype("int64")
            return builder.get()

        return _extern([data], nest, [(1,)], ["int64"])

    (found,) = node.sizes_from(node.te(count, x, name="onnx_count"), 1)

    def fill(data: te.Tensor, size: list) -> list[te.Tensor]:
        def nest(ins: list, outs: list) -> tirx.Stmt:
            data, out, at = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0]), T.buffer_proxy(outs[1])
            with IRBuilder() as builder, T.seq_scope():
                at[0] = tirx.const(0, "int64")
                with T.serial(0, _product(ins[0].shape)) as i:
                    with T.If(_is_set(data[i])), T.Then(), T.seq_scope():
                        for k, place in enumerate(_places(i, ins[0].shape)):
                            out[at[0] + size[0] * k] = place
                        at[0] = at[0] + 1
            return builder.get()

        return _extern([data], nest, [(rank, size[0]), (1,)], ["int64", "int64"])

    filled = node.graph.builder.emit_te(fill, x, [found], primfunc_name_hint="onnx_nonzero")
    return node.emit(relax.TupleGetItem(filled, 0))


def _is_set(value: tirx.PrimExpr) -> tirx.PrimExpr:
    dtype = value.ty.dtype
    return value if str(dtype) == "bool" else value != tirx.const(0, dtype)


def _extern(inputs: list[te.Tensor], nest: object, shapes: list, dtypes: list[str]) -> object:
    return te.extern(
        shapes, inputs, nest, name="select", dtype=dtypes,
        in_buffers=[tirx.decl_buffer(a.shape, a.dtype, name=f"in{i}") for i, a in enumerate(inputs)],
        out_buffers=[tirx.decl_buffer(s, d, name=f"out{i}") for i, (s, d) in enumerate(zip(shapes, dtypes))],
    )  # fmt: skip


@converter("Compress")
def compress(node: Node) -> relax.Expr:
    """Slices (or elements) whose condition holds; the longer one of condition and axis is cut."""
    x, axis = node.x(0), node.attr("axis", None)
    if axis is None:
        x, axis = node.emit(relax.op.reshape(x, [node.sizes.product(node.shape(0))])), 0
    axis = int(axis) % len(expr_shape(x))
    node.refuse_unless(node.rank(1) == 1, f"expected a condition of rank 1, found {node.rank(1)}")
    condition, length, size = node.x(1), node.shape(1)[0], expr_shape(x)[axis]
    if node.sizes.decided(prim(length) <= prim(size)) is not True:
        condition = node.te(_cut, condition, [size], name="onnx_cut")
    found = places_of(node, condition)
    flat = node.emit(relax.op.reshape(found, [expr_shape(found)[1]]))
    return relax.op.take(x, flat, axis, mode="clip")


def _cut(condition: te.Tensor, size: list) -> te.Tensor:
    return te.compute([tirx.min(condition.shape[0], size[0])], lambda i: condition[i], name="cut")


@converter("TopK")
def top_k(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """The k largest or smallest, sorted; of equal ones the first comes first."""
    rank = node.rank(0)
    axis = int(node.attr("axis", -1)) % rank
    largest = bool(node.attr("largest", 1))
    k: Dim = int(node.attr("k")) if node.opset < 10 else node.runtime_dims(1)[0]
    order = [i for i in range(rank) if i != axis] + [axis]
    x = at_least(node, node.x(0), [k if i == axis else None for i in range(rank)], "input, with k elements to find,")
    rows = node.emit(relax.op.permute_dims(x, order)) if axis != rank - 1 else x
    ranked = sorted_places(node, rows, largest)
    shape = [*expr_shape(rows)[:-1], k]

    def places(ranked: te.Tensor, out: list) -> te.Tensor:
        return te.compute(out, lambda *i: ranked(*i[:-1], tirx.min(i[-1], ranked.shape[-1] - 1)), name="first")

    def values(data: te.Tensor, ranked: te.Tensor, out: list) -> te.Tensor:
        def element(*i):
            return data(*i[:-1], ranked(*i[:-1], tirx.min(i[-1], ranked.shape[-1] - 1)))

        return te.compute(out, element, name="values")

    results = node.te(values, rows, ranked, shape), node.te(places, ranked, shape)
    if axis == rank - 1:
        return results
    back = [order.index(i) for i in range(rank)]
    return tuple(node.emit(relax.op.permute_dims(r, back)) for r in results)


def sorted_places(node: Node, rows: relax.Expr, descending: bool) -> relax.Expr:
    """int64, of the shape of `rows`: the places of each row's elements in sorted order; a stable merge sort.

    NaN counts as the largest number, as in `passes/_sorting`.
    """

    def sort(data: te.Tensor) -> list[te.Tensor]:
        def nest(ins: list, outs: list) -> tirx.Stmt:
            data, out, spare, state = (T.buffer_proxy(b) for b in (*ins, *outs))
            shape = ins[0].shape
            n, count = prim(shape[-1]), _product(shape[:-1])
            with IRBuilder() as builder, T.serial(0, count) as row, T.seq_scope():
                base = row * n
                with T.serial(0, n) as i:
                    out[base + i] = i
                with T.serial(0, _passes(n)) as step:
                    width = tirx.shift_left(tirx.const(1, "int64"), step.astype("int64"))
                    with T.If(width < n), T.Then(), T.seq_scope():
                        with T.serial(0, tirx.floordiv(n + 2 * width - 1, 2 * width)) as block, T.seq_scope():
                            low = block * 2 * width
                            middle, high = tirx.min(low + width, n), tirx.min(low + 2 * width, n)
                            state[0], state[1] = low, middle
                            with T.serial(0, high - low) as i:
                                left = data[base + out[base + tirx.min(state[0], n - 1)]]
                                right = data[base + out[base + tirx.min(state[1], n - 1)]]
                                kept = _kept(left, right, descending)
                                from_left = tirx.all(state[0] < middle, tirx.any(state[1] >= high, kept))
                                with T.If(from_left):
                                    with T.Then(), T.seq_scope():
                                        spare[base + low + i] = out[base + state[0]]
                                        state[0] = state[0] + 1
                                    with T.Else(), T.seq_scope():
                                        spare[base + low + i] = out[base + state[1]]
                                        state[1] = state[1] + 1
                        with T.serial(0, n) as i:
                            out[base + i] = spare[base + i]
            return builder.get()

        shapes = [data.shape, data.shape, (2,)]
        return _extern([data], nest, shapes, ["int64"] * 3)

    both = node.graph.builder.emit_te(sort, rows, primfunc_name_hint="onnx_sort")
    return node.emit(relax.TupleGetItem(both, 0))


def _kept(left: tirx.PrimExpr, right: tirx.PrimExpr, descending: bool) -> tirx.PrimExpr:
    """Whether two elements may stay in this order. No comparison is negated: TVM turns those of NaN around."""
    dtype = str(left.ty.dtype)
    ordered = left >= right if descending else left <= right
    if not dtype.startswith(("float", "bfloat")):
        return ordered
    last = left if descending else right  # NaN is the largest
    return tirx.any(ordered, tirx.isnan(last if dtype in ("float32", "float64") else last.astype("float32")))


def _passes(n: tirx.PrimExpr) -> int:
    return max(1, int(np.ceil(np.log2(max(int(n), 2))))) if isinstance(n, tirx.IntImm) else _PASSES
