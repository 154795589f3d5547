"""Transposed convolution of [n, c, *space]: every input element adds a kernel to the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from .broadcast import same_sizes
from .builder import Builder, expr_dtype, expr_shape
from .convolution import with_bias
from .phases import by_phases, meets_everywhere, phase_by_phase
from .sizes import Dim, Sizes
from .windows import Window, halved


@dataclass(frozen=True)
class Spread:
    """How far apart the kernels lie, and what is cut off their sum.

    `window.pads` are cut off, `extra` elements are added at the ends. `given` is the size of the result instead, and
    with `window.same` it is size * stride: then the pads follow.
    """

    window: Window
    extra: tuple[int, ...]
    given: tuple[int, ...] | None = None

    def over(self, sizes: Sizes, space: Sequence[Dim]) -> tuple[Window, list[Dim]]:
        """(the window with its pads, the sizes of the result) for an input of the sizes `space`."""
        window, rank = self.window, len(space)
        whole = [
            (size - 1) * stride + (more + extent)
            for size, stride, more, extent in zip(space, window.strides, self.extra, window.extents)
        ]
        if self.given is None and not window.same:
            pads: tuple[Dim, ...] = window.pads
        else:
            wanted = self.given or [sizes.simplify(size * stride) for size, stride in zip(space, window.strides)]
            totals = [sizes.simplify(full - target) for full, target in zip(whole, wanted)]
            totals = totals if self.given else [sizes.maximum(total, 0) for total in totals]
            pads = halved(sizes, totals, window.same == "upper")
        full = [sizes.simplify(whole[i] - pads[i] - pads[rank + i]) for i in range(rank)]
        return Window(window.kernel, window.strides, window.dilations, pads), list(self.given or full)


def transposed_convolution(
    builder: Builder, x: relax.Expr, weight: relax.Expr, bias: relax.Expr | None, spread: Spread, groups: int
) -> relax.Expr:
    """x [n, c, *space], weight [c, m/groups, *kernel], bias [m]; sums in float32, or float64."""
    channels, inner = expr_shape(weight)[:2]
    builder.refuse_unless(
        groups > 0 and channels % groups == 0, f"expected input channels in {groups} groups, found {channels}"
    )
    x = same_sizes(builder, x, [None, channels, *[None] * (len(expr_shape(x)) - 2)], "input")
    known = builder.known(weight)
    sizes = spread.over(builder.sizes, expr_shape(x)[2:])[1]
    is_empty = any(isinstance(size, int) and size < 1 for size in sizes)  # no convolution to make phases of
    floats = expr_dtype(weight) == expr_dtype(x) and expr_dtype(x).startswith(("float", "bfloat"))
    is_known = all(isinstance(size, int) for size in expr_shape(weight))
    # TVM takes minutes to build what interleaves groups of open volumes.
    is_slow = groups > 1 and len(sizes) > 2 and any(not isinstance(size, int) for size in sizes)
    # Volumes are padded in memory, where a weight that is infinite meets zeros; one that is known is taken for finite.
    is_served = known is not None or is_known and len(sizes) < 3
    if is_served and floats and not is_empty and not is_slow:
        cut = lambda space: spread.over(builder.sizes, space)  # noqa: E731
        at_once = known is not None or meets_everywhere(spread.window)
        made = (by_phases if at_once else phase_by_phase)(builder, x, known or weight, cut, groups)
        return with_bias(builder, made, bias)
    part, dtype = channels // groups, expr_dtype(x)
    wide = "float64" if dtype == "float64" else "float32"

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        window, sizes = spread.over(builder.sizes, list(x.shape[2:]))
        shape = [x.shape[0], inner * groups, *sizes]
        c = te.reduce_axis((0, part), "c")
        ks = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window.kernel)]

        def element(n, m, *place):
            group = tirx.floordiv(m, inner)
            inside, at = _sources(place, ks, window, x.shape[2:])
            product = x[(n, group * part + c, *at)].astype(wide) * w[(group * part + c, m - group * inner, *ks)].astype(
                wide
            )
            return te.sum(tirx.if_then_else(inside, product, tirx.const(0, wide)), axis=[c, *ks])

        out = te.compute(shape, element, name="convolution_transposed")
        return out if wide == x.dtype else te.compute(shape, lambda *i: out[i].astype(x.dtype), name="narrow")

    return with_bias(builder, builder.te(compute, x, weight, name="convolution_transposed"), bias)


def _sources(place: Sequence, ks: Sequence, window: Window, sizes: Sequence[Dim]) -> tuple[object, list]:
    """Which element of the input meets kernel element `ks` at `place`, and whether there is one."""
    inside, at = [], []
    for i, (o, k) in enumerate(zip(place, ks)):
        shifted = o + window.pads[i] - k * window.dilations[i]
        source = tirx.floordiv(shifted, window.strides[i])
        inside += [shifted >= 0, source < sizes[i]]
        if window.strides[i] != 1:
            inside.append(tirx.floormod(shifted, window.strides[i]) == 0)
        at.append(source)
    return tirx.all(*inside), at
