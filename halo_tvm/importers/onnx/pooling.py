"""Pooling: windows of any rank, whole images, and the way back (MaxUnpool)."""

from __future__ import annotations

from tvm import relax, te, tirx

from ..meaning.broadcast import same_sizes
from ..meaning.pooling import global_pooling, places, pooling
from ..meaning.sizes import Dim
from ..meaning.windows import Window, is_static
from ..meaning.writing import write_elements
from ._node import Node
from ._registry import converter
from ._windows import window_of


@converter("MaxPool")
def max_pool(node: Node) -> object:
    window = _window(node)
    out = _pooled(node, window, "max")
    if len(node.outputs) < 2 or not node.outputs[1]:
        return out
    return out, places(node, node.x(0), out, window, number="columns" if node.attr("storage_order", 0) else "rows")


def averaged(node: Node, x: relax.Expr) -> relax.Expr:
    """`x` through the windows of `node`."""
    ceil, counted = bool(node.attr("ceil_mode", 0)), bool(node.attr("count_include_pad", 0))
    return pooling(node, x, _window(node), "average", ceil=ceil, include_pad=counted)


def _window(node: Node) -> Window:
    rank = node.rank(0)
    node.refuse_unless(rank > 2, f"expected an input of rank 3 or more, found {rank}")
    return window_of(node, node.attr("kernel_shape"), rank - 2)


def _pooled(node: Node, window: Window, kind: str, **options: object) -> relax.Expr:
    return pooling(node, node.x(0), window, kind, ceil=bool(node.attr("ceil_mode", 0)), **options)


for _name, _convert in {
    "AveragePool": lambda node: averaged(node, node.x(0)),
    "LpPool": lambda node: _pooled(node, _window(node), "lp", p=int(node.attr("p", 2))),
    "GlobalAveragePool": lambda node: global_pooling(node, node.x(0), "average"),
    "GlobalMaxPool": lambda node: global_pooling(node, node.x(0), "max"),
    "GlobalLpPool": lambda node: global_pooling(node, node.x(0), "lp", int(node.attr("p", 2))),
}.items():
    converter(_name)(_convert)


@converter("MaxUnpool")
def max_unpool(node: Node) -> relax.Expr:
    """Every element goes back to the place that its index names, the rest is zero."""
    shape = node.shape(0)
    window = _window(node)
    rank = len(shape) - 2
    pads, k, s = window.pads_over(node.sizes, shape[2:]), window.kernel, window.strides
    node.refuse_unless(is_static(pads), "expected pads, found auto_pad with symbolic sizes")
    sizes = [node.sizes.simplify((shape[2 + i] - 1) * s[i] + (k[i] - pads[i] - pads[rank + i])) for i in range(rank)]
    full = [*shape[:2], *sizes]
    count, total = node.sizes.product(shape), node.sizes.product(full)
    flat = node.emit(relax.op.reshape(node.x(0), [count]))
    places = node.emit(relax.op.reshape(same_sizes(node, node.x(1), shape, "indices"), [count]))
    empty = node.emit(relax.op.zeros(relax.ShapeExpr([total]), node.dtype(0)))
    image = node.emit(relax.op.reshape(write_elements(node, empty, places, flat, 0, "update"), full))
    if not node.has(2):
        return image
    # Indices count in the image that the windows make; a larger output_shape adds zeros behind it.
    wanted = node.runtime_dims(2)
    node.refuse_unless(len(wanted) == len(full), f"expected an output_shape of {len(full)} sizes, found {len(wanted)}")

    def grown(x: te.Tensor, *target: Dim) -> te.Tensor:
        def element(*index):
            inside = tirx.all(*(i < n for i, n in zip(index, x.shape)))
            return tirx.if_then_else(inside, x[index], tirx.const(0, x.dtype))

        return te.compute(target, element, name="grown")

    return node.te(grown, image, *wanted)
