"""Pooling: windows of any rank, whole images, and the way back (MaxUnpool)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from ...relay_ops.pooling import Pooling
from ..meaning.broadcast import same_sizes
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._spatial import Window, filled, window_of
from .scatter import write_elements


@converter("MaxPool")
def max_pool(node: Node) -> object:
    window = _window(node)
    out = _pooled(node, window, "max")
    if len(node.outputs) < 2 or not node.outputs[1]:
        return out
    return out, _places(node, out, window)


@converter("AveragePool")
def average_pool(node: Node) -> relax.Expr:
    return _pooled(node, _window(node), "average", include_pad=bool(node.attr("count_include_pad", 0)))


@converter("LpPool")
def lp_pool(node: Node) -> relax.Expr:
    return _pooled(node, _window(node), "lp", p=int(node.attr("p", 2)))


def _window(node: Node) -> Window:
    shape = node.shape(0)
    node.refuse_unless(len(shape) > 2, f"expected an input of rank 3 or more, found {len(shape)}")
    return window_of(node, shape[2:], node.attr("kernel_shape"))


def _pooled(node: Node, window: Window, kind: str, include_pad: bool = False, p: int = 2) -> relax.Expr:
    attrs = {
        "layout": "first",
        "kind": kind,
        "kernel": window.kernel,
        **window.attrs(),
        "ceil": bool(node.attr("ceil_mode", 0)),
        "include_pad": include_pad,
        "p": p,
    }
    if window.is_static:
        return node.emit(Pooling.call(filled(node, node.x(0), window), **attrs, pads=window.pads))

    def compute(x: te.Tensor) -> te.Tensor:
        return Pooling.compute(x, **attrs, pads=window_of(node, list(x.shape[2:]), window.kernel).pads)

    return node.te(compute, node.x(0))


def _places(node: Node, out: relax.Expr, window: Window) -> relax.Expr:
    """Where each largest element is: its number in the whole input, rows first unless storage_order is 1."""
    column_major = bool(node.attr("storage_order", 0))

    def compute(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        sizes = list(x.shape[2:])
        pads = window_of(node, sizes, window.kernel).pads
        image = _product(sizes)
        ks = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window.kernel)]
        none = te.max_value("int64")

        def element(n, c, *place):
            at = [o * s + k * d - b for o, k, s, d, b in zip(place, ks, window.strides, window.dilations, pads)]
            inside = tirx.all(*(test for i, size in zip(at, sizes) for test in (i >= 0, i < size)))
            number = tirx.const(0, "int64")
            for axis in reversed(range(len(at))) if column_major else range(len(at)):
                number = number * sizes[axis] + at[axis]
            number = (n * x.shape[1] + c) * image + number
            found = tirx.if_then_else(inside, x[(n, c, *at)] == y[(n, c, *place)], tirx.const(False, "bool"))
            return te.min(tirx.Select(found, number, none), axis=ks)

        return te.compute(y.shape, element, name="places")

    return node.te(compute, node.x(0), out)


@converter("GlobalAveragePool")
def global_average_pool(node: Node) -> relax.Expr:
    return relax.op.mean(node.x(0), _spatial(node), keepdims=True)


@converter("GlobalMaxPool")
def global_max_pool(node: Node) -> relax.Expr:
    return relax.op.max(node.x(0), _spatial(node), keepdims=True)


@converter("GlobalLpPool")
def global_lp_pool(node: Node) -> relax.Expr:
    p, dtype = int(node.attr("p", 2)), node.dtype(0)
    size = node.emit(relax.op.abs(node.x(0)))
    power = size
    for _ in range(p - 1):
        power = node.emit(relax.op.multiply(power, size))
    total = node.emit(relax.op.sum(power, _spatial(node), keepdims=True))
    return total if p == 1 else relax.op.power(total, relax.const(1.0 / p, dtype))


def _spatial(node: Node) -> list[int]:
    node.refuse_unless(node.rank(0) > 2, f"expected an input of rank 3 or more, found {node.rank(0)}")
    return list(range(2, node.rank(0)))


@converter("MaxUnpool")
def max_unpool(node: Node) -> relax.Expr:
    """Every element goes back to the place that its index names, the rest is zero."""
    shape = node.shape(0)
    window = _window(node)
    rank = len(shape) - 2
    node.refuse_unless(window.is_static, "expected pads, found auto_pad with symbolic sizes")
    pads, k, s = window.pads, window.kernel, window.strides
    sizes = [node.sizes.simplify((shape[2 + i] - 1) * s[i] + (k[i] - pads[i] - pads[rank + i])) for i in range(rank)]
    full = [*shape[:2], *sizes]
    count, total = node.sizes.product(shape), node.sizes.product(full)
    flat = node.emit(relax.op.reshape(node.x(0), [count]))
    places = node.emit(relax.op.reshape(same_sizes(node, node.x(1), shape, "indices"), [count]))
    empty = node.emit(relax.op.zeros(relax.ShapeExpr([total]), node.dtype(0)))
    image = node.emit(relax.op.reshape(write_elements(node, empty, places, flat, 0), full))
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


def _product(sizes: Sequence[Dim]) -> Dim:
    out = sizes[0]
    for size in sizes[1:]:
        out = out * size
    return out
