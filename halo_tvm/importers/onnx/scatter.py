"""Elements written by index: ScatterElements, Scatter, ScatterND, TensorScatter.

Negative indices count from the end. An update outside the tensor is dropped: no kernel writes foreign memory.
"""

from __future__ import annotations

from tvm import relax, te, tirx

from ..meaning.broadcast import at_most, same_sizes
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.writing import write_elements, write_rows
from ._boxes import box_of, write_box
from ._node import Node
from ._registry import converter

# ONNX's name -> ours
_REDUCTIONS = {"none": "update", **{name: name for name in ("add", "mul", "max", "min")}}


def _reduction(node: Node) -> str:
    name = node.attr("reduction", "none")
    node.refuse_unless(name in _REDUCTIONS, f"reduction {name} is not known")
    node.refuse_unless(name == "none" or node.dtype(0) != "bool", f"reduction {name} of booleans")
    return _REDUCTIONS[name]


@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> relax.Expr:
    axis = node.axis(node.attr("axis", 0), node.rank(0))
    inside = [None if i == axis else d for i, d in enumerate(node.shape(0))]
    indices = at_most(node, node.x(1), inside, "indices")
    updates = same_sizes(node, node.x(2), expr_shape(indices), "updates")
    return write_elements(node, node.x(0), indices, updates, axis, _reduction(node))


@converter("ScatterND")
def scatter_nd(node: Node) -> relax.Expr:
    """Every row of the indices names an element or a part of the data, which an update replaces or joins."""
    how = _reduction(node)
    count = node.shape(1)[-1]
    node.refuse_unless(
        isinstance(count, int) and count <= node.rank(0), f"expected at most {node.rank(0)} indices per row"
    )
    updates = same_sizes(node, node.x(2), [*node.shape(1)[:-1], *node.shape(0)[count:]], "updates")
    if how == "update" and isinstance(node.value(1), Constant):
        box = box_of(node.constant(1), node.shape(0))
        if box is not None:
            return write_box(node, node.x(0), updates, box, node.rank(1) - 1)
    return write_rows(node, node.x(0), node.x(1), updates, how)


@converter("TensorScatter")
def tensor_scatter(node: Node) -> relax.Expr:
    """A key or value cache with new steps written behind each row's index, around the end when circular."""
    rank, mode = node.rank(0), node.attr("mode", "linear")
    node.refuse_unless(mode in ("linear", "circular"), f"mode {mode} is not known")
    axis = node.axis(node.attr("axis", -2), rank)
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
