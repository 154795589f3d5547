"""Tensors with more elements, or fewer, at both ends of their axes: Pad."""

from __future__ import annotations

from tvm import relax, te, tirx

from ..meaning.builder import is_tensor
from ..meaning.constant import Constant
from ..meaning.sizes import Dim, plain, prim
from ..meaning.wrapping import around
from ._node import Node
from ._registry import converter
from ._values import Symbolic
from .slicing import replaced


@converter("Pad")
def pad(node: Node) -> relax.Expr:
    """Modes constant, edge, reflect, wrap; a negative pad removes elements."""
    rank = node.rank(0)
    mode = node.attr("mode", "constant")
    node.refuse_unless(mode in ("constant", "edge", "reflect", "wrap"), f"mode {mode} is not known")
    old = node.opset < 11
    axes = node.ints(3) if not old and node.has(3) else list(range(rank))
    axes = [node.axis(a, rank) for a in axes]
    count = len(axes)
    shape, x = node.shape(0), node.x(0)
    fill = _fill(node, old)
    if not old and not isinstance(node.inputs[1], Constant | Symbolic):
        before, lengths = _pads_at_run_time(node, [shape[a] for a in axes])
    else:
        pads = list(node.attr("pads", None) or node.attr("paddings")) if old else node.dims(1)
        node.refuse_unless(len(pads) == 2 * count, f"expected {2 * count} pads, found {len(pads)}")
        numbers = all(isinstance(p, int) and p >= 0 for p in pads)
        if mode == "constant" and numbers and isinstance(fill, float | int) and node.dtype(0) == "float32":
            widths = [0] * (2 * rank)
            for position, axis in enumerate(axes):
                widths[2 * axis], widths[2 * axis + 1] = pads[position], pads[position + count]
            return relax.op.nn.pad(x, widths, "constant", float(fill)) if any(widths) else x
        before = pads[:count]
        lengths = [node.sizes.simplify(prim(shape[a]) + b + e) for a, b, e in zip(axes, before, pads[count:])]
        lengths = [n if node.sizes.decided(prim(n) >= 0) is True else node.sizes.maximum(n, 0) for n in lengths]
    fills = [fill] if is_tensor(fill) else []

    def compute(data: te.Tensor, out: list, first: object, *value: te.Tensor) -> te.Tensor:
        def element(*index):
            place, inside = list(index), []
            for position, axis in enumerate(axes):
                at, size = index[axis] - first[position], data.shape[axis]
                inside += [at >= 0, at < size]
                if mode == "wrap" and _is_wrapped_once(first[position], out[axis], size):
                    place[axis] = around(at, size)
                else:
                    place[axis] = at if mode == "constant" else _reflected(mode, at, size)
            if mode != "constant":
                return data(*place)
            other = value[0](*[0] * len(value[0].shape)) if value else tirx.const(fill, data.dtype)
            return tirx.if_then_else(tirx.all(*inside), data(*place), other)

        return te.compute(out, element, name="pad")

    return node.te(compute, x, replaced(shape, axes, lengths), before, *fills)


def _fill(node: Node, old: bool) -> float | int | bool | relax.Expr:
    if old:
        return float(node.attr("value", 0.0))
    if not node.has(2):
        return 0
    return node.scalar(2) if node.is_known(2) else node.x(2)


def _pads_at_run_time(node: Node, shape: list[Dim]) -> tuple[relax.Expr, list[Dim]]:
    count = len(shape)
    pads = node.x(1)

    def total(pads: te.Tensor, sizes: list) -> te.Tensor:
        def element(i):
            out = tirx.const(0, "int64")
            for position, size in enumerate(sizes):
                both = pads[position].astype("int64") + pads[position + count].astype("int64")
                out = tirx.Select(i == position, tirx.max(prim(size).astype("int64") + both, 0), out)
            return out

        return te.compute((count,), element, name="sizes")

    lengths = node.sizes_from(node.te(total, pads, shape, name="onnx_pad_sizes"), count)
    return pads, lengths


def _is_wrapped_once(before: object, out: object, size: object) -> bool:
    """Whether no pad is longer than the axis."""
    numbers = [plain(n) for n in (before, out, size)]
    if not all(isinstance(n, int) for n in numbers):
        return False
    before, out, size = numbers
    return max(before, out - size - before) <= size


def _reflected(mode: str, at: object, size: object) -> object:
    """A position outside an axis, by the position inside that stands for it."""
    if mode == "edge":
        return tirx.max(tirx.min(at, size - 1), 0)
    if mode == "wrap":
        return tirx.floormod(at, size)
    period = tirx.max(2 * (prim(size) - 1), 1)
    turned = tirx.floormod(at, period)
    return tirx.min(turned, tirx.max(period - turned, 0)) if not isinstance(size, int) or size > 1 else turned * 0
