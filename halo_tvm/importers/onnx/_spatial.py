"""Attributes of sliding windows, as convolution and pooling spell them: strides, dilations, pads, auto_pad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax

from ..meaning.broadcast import at_least
from ..meaning.builder import expr_shape
from ..meaning.sizes import Dim, prim
from ._node import Node


@dataclass(frozen=True)
class Window:
    """One window of every spatial axis; `pads` are all beginnings, then all ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Dim, ...]

    @property
    def is_static(self) -> bool:
        return all(isinstance(p, int) for p in self.pads)

    def attrs(self) -> dict[str, object]:
        """As the operators of relay_ops take them, apart from `pads`, which may be expressions."""
        return {"strides": self.strides, "dilations": self.dilations}


def window_of(node: Node, sizes: Sequence[Dim], kernel: Sequence[int]) -> Window:
    """The window of `node` over spatial `sizes`; auto_pad SAME of symbolic sizes gives pads that depend on them."""
    rank = len(sizes)
    strides = tuple(node.attr("strides", [1] * rank))
    dilations = tuple(node.attr("dilations", [1] * rank))
    pads: list[Dim] = list(node.attr("pads", [0] * 2 * rank))
    for name, values, length in (
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
        ("kernel_shape", kernel, rank),
    ):
        node.refuse_unless(len(values) == length, f"expected {length} {name}, found {len(values)}")
    positive = all(v > 0 for v in (*strides, *dilations, *kernel))
    node.refuse_unless(positive, "expected strides, dilations and kernel_shape above 0")
    auto = node.attr("auto_pad", "NOTSET") or "NOTSET"
    if auto == "VALID":
        pads = [0] * 2 * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
        pads = _same(node, sizes, extents, strides, auto == "SAME_UPPER")
    else:
        node.refuse_unless(auto == "NOTSET", f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {auto}")
    return Window(tuple(kernel), strides, dilations, tuple(pads))


def filled(node: Node, x: relax.Expr, window: Window) -> relax.Expr:
    """`x` [n, c, *space], in which `window` fits at least once; a run where it does not is refused."""
    shape = expr_shape(x)
    rank = len(shape) - 2
    if not window.is_static:  # auto_pad SAME: a window for every stride
        return x
    least: list[Dim | None] = [None, None]
    for size, k, d, a, b in zip(shape[2:], window.kernel, window.dilations, window.pads, window.pads[rank:]):
        extent = (k - 1) * d + 1 - a - b
        fits = node.sizes.decided(prim(size) >= extent)
        least.append(None if fits else extent)
    if all(size is None for size in least):
        return x
    # Its sizes under the names they had: nothing behind it sees a maximum.
    return node.declared(at_least(node, x, least, "an image"), shape)


def _same(node: Node, sizes: Sequence[Dim], extents: Sequence[int], strides: Sequence[int], upper: bool) -> list[Dim]:
    """So that there are ceil(size / stride) windows; the odd element goes to the end (upper) or the beginning."""
    begins, ends = [], []
    for size, extent, stride in zip(sizes, extents, strides):
        if stride == 1:
            total: Dim = extent - 1
        else:
            windows = node.sizes.ceildiv(size, stride)
            total = node.sizes.maximum((windows - 1) * stride + (extent - size), 0)
        half = node.sizes.floordiv(total, 2)
        rest = node.sizes.simplify(total - half)
        begins.append(half if upper else rest)
        ends.append(rest if upper else half)
    return begins + ends
