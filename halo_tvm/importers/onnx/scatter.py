"""Elements written by index: ScatterElements, Scatter, ScatterND, TensorScatter.

Negative indices count from the end. An update outside the tensor is dropped: no kernel writes foreign memory.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..meaning.broadcast import at_most, same_sizes
from ..meaning.builder import expr_shape
from ..meaning.writing import element_count, flat_place, places_of, written
from ._node import Node
from ._registry import converter

_REDUCTIONS: dict[str, Callable[[object, object], object]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": tirx.max,
    "min": tirx.min,
}


def _reduction(node: Node) -> Callable[[object, object], object]:
    name = node.attr("reduction", "none")
    node.refuse_unless(name in _REDUCTIONS, f"reduction {name} is not known")
    node.refuse_unless(name == "none" or node.dtype(0) != "bool", f"reduction {name} of booleans")
    return _REDUCTIONS[name]


@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> relax.Expr:
    axis = int(node.attr("axis", 0)) % node.rank(0)
    inside = [None if i == axis else d for i, d in enumerate(node.shape(0))]
    indices = at_most(node, node.x(1), inside, "indices")
    return write_elements(node, node.x(0), indices, node.x(2), axis, _reduction(node))


def write_elements(
    node: Node,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    axis: int,
    combine: Callable[[object, object], object] = _REDUCTIONS["none"],
) -> relax.Expr:
    """`data` with `updates` at `indices` along `axis`; the other sizes of `indices` are at most those of `data`."""
    updates = same_sizes(node, updates, expr_shape(indices), "updates")

    def nest(ins: list, outs: list) -> tirx.Stmt:
        data, indices, updates, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        shape, given = ins[0].shape, ins[1].shape
        with IRBuilder() as builder, T.seq_scope():
            with T.serial(0, element_count(shape)) as i:
                out[i] = data[i]
            with T.serial(0, element_count(given)) as i:
                at = places_of(i, given)
                index = _from_start(indices[i], shape[axis])
                place = [index if k == axis else p for k, p in enumerate(at)]
                flat = flat_place(place, shape)
                with T.If(tirx.all(index >= 0, index < shape[axis])), T.Then():
                    out[flat] = combine(out[flat], updates[i])
        return builder.get()

    return written(node, nest, data, indices, updates)


@converter("ScatterND")
def scatter_nd(node: Node) -> relax.Expr:
    """Every row of the indices names an element or a part of the data, which an update replaces or joins."""
    combine = _reduction(node)
    count = node.shape(1)[-1]
    node.refuse_unless(
        isinstance(count, int) and count <= node.rank(0), f"expected at most {node.rank(0)} indices per row"
    )
    updates = same_sizes(node, node.x(2), [*node.shape(1)[:-1], *node.shape(0)[count:]], "updates")

    def nest(ins: list, outs: list) -> tirx.Stmt:
        data, indices, updates, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        shape = ins[0].shape
        part = element_count(shape[count:])
        with IRBuilder() as builder, T.seq_scope():
            with T.serial(0, element_count(shape)) as i:
                out[i] = data[i]
            with T.serial(0, element_count(ins[1].shape[:-1])) as row:
                places = [_from_start(indices[row * count + k], shape[k]) for k in range(count)]
                inside = [c for p, s in zip(places, shape) for c in (p >= 0, p < s)]
                first = flat_place(places, shape[:count]) * part if count else 0
                with T.If(tirx.all(*inside) if inside else tirx.const(True, "bool")), T.Then(), T.serial(0, part) as j:
                    out[first + j] = combine(out[first + j], updates[row * part + j])
        return builder.get()

    return written(node, nest, node.x(0), node.x(1), updates)


def _from_start(index: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    index = index.astype("int64")
    return tirx.Select(index < 0, index + size, index)


@converter("TensorScatter")
def tensor_scatter(node: Node) -> relax.Expr:
    """A key or value cache with new steps written behind each row's index, around the end when circular."""
    rank, mode = node.rank(0), node.attr("mode", "linear")
    node.refuse_unless(mode in ("linear", "circular"), f"mode {mode} is not known")
    axis = int(node.attr("axis", -2)) % rank
    shape = node.shape(0)
    update = same_sizes(node, node.x(1), [None if i == axis else d for i, d in enumerate(shape)], "update")
    given = [same_sizes(node, node.x(2), [shape[0]], "write_indices")] if node.has(2) else []

    def compute(past: te.Tensor, update: te.Tensor, *first: te.Tensor) -> te.Tensor:
        def element(*i):
            step = i[axis] - (first[0][i[0]].astype("int64") if first else 0)
            if mode == "circular":
                step = tirx.floormod(step, past.shape[axis])
            place = [step if k == axis else p for k, p in enumerate(i)]
            return tirx.if_then_else(tirx.all(step >= 0, step < update.shape[axis]), update(*place), past(*i))

        return te.compute(past.shape, element, name="tensor_scatter")

    return node.te(compute, node.x(0), update, *given)
