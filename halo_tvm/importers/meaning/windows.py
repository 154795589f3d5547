"""Sliding windows, as convolution and pooling move them over the spatial axes of [n, c, *space]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax

from .broadcast import at_least
from .builder import Builder, expr_shape
from .sizes import Dim, Sizes, prim


@dataclass(frozen=True)
class Window:
    """One window of every spatial axis.

    `pads` are all beginnings, then all ends. Where `same` is "upper" or "lower" they follow from the sizes instead:
    ceil(size / stride) windows fit, and an odd element goes to the end (upper) or the beginning (lower).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] = ()
    same: str = ""

    def checked(self, builder: Builder) -> Window:
        """The window itself; refused where its parts do not fit each other."""
        rank = len(self.kernel)
        lengths = {"strides": rank, "dilations": rank} | ({} if self.same else {"pads": 2 * rank})
        for name, length in lengths.items():
            found = len(getattr(self, name))
            builder.refuse_unless(found == length, f"expected {length} {name}, found {found}")
        positive = all(v > 0 for v in (*self.strides, *self.dilations, *self.kernel))
        builder.refuse_unless(positive, "expected strides, dilations and kernel sizes above 0")
        return self

    @property
    def extents(self) -> list[int]:
        """Elements between the first and the last of a window, both counted."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]

    def pads_over(self, sizes: Sizes, space: Sequence[Dim]) -> tuple[Dim, ...]:
        """Elements added to axes of the sizes `space`: all beginnings, then all ends."""
        if not self.same:
            return self.pads
        totals: list[Dim] = []
        for size, extent, stride in zip(space, self.extents, self.strides):
            if stride == 1:
                totals.append(extent - 1)
            else:
                windows = sizes.ceildiv(size, stride)
                totals.append(sizes.maximum((windows - 1) * stride + (extent - size), 0))
        return halved(sizes, totals, self.same == "upper")


def halved(sizes: Sizes, totals: Sequence[Dim], upper: bool) -> tuple[Dim, ...]:
    """Each total as (beginning, end), all beginnings first; the odd element at the end (upper) or the beginning."""
    halves = [sizes.floordiv(total, 2) for total in totals]
    rests = [sizes.simplify(total - half) for total, half in zip(totals, halves)]
    return (*halves, *rests) if upper else (*rests, *halves)


def is_static(pads: Sequence[Dim]) -> bool:
    return all(isinstance(p, int) for p in pads)


def filled(builder: Builder, x: relax.Expr, window: Window, *, ceil: bool = False) -> relax.Expr:
    """`x` [n, c, *space], in which `window` fits at least once; a run where it does not is refused.

    With `ceil` a last window may be cut off, by less than a stride: the first may be it.
    """
    if window.same:  # a window for every stride
        return x
    shape = expr_shape(x)
    rank = len(shape) - 2
    least: list[Dim | None] = [None, None]
    for size, extent, stride, a, b in zip(shape[2:], window.extents, window.strides, window.pads, window.pads[rank:]):
        needed = extent - a - b - (stride - 1 if ceil else 0)
        least.append(None if builder.sizes.decided(prim(size) >= needed) else needed)
    if all(size is None for size in least):
        return x
    # Its sizes under the names they had: nothing behind it sees a maximum.
    what = f"an image under a window of {' x '.join(map(str, window.kernel))}"
    return builder.declared(at_least(builder, x, least, what), shape)
