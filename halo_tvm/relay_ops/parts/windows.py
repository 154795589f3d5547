"""Windows that slide over the spatial axes of a tensor: what convolution and pooling share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import tvm
from tvm import ir, te, tirx

ABREAST = "halo.abreast"  # block annotation: groups whose columns lie side by side in a panel
WINDOW = "halo.window"  # block annotation: JSON of how windows lie
PADDING = "halo.padding"  # annotation of the block that pads what windows read
LAYOUTS = ("first", "last")  # where the channels are: [n, c, *space] or [n, *space, c]


def spatial_axes(rank: int, layout: str) -> range:
    """Which axes of a tensor of `rank` are spatial."""
    return range(2, rank) if layout == "first" else range(1, rank - 1)


def window_sizes(
    sizes: Sequence[ir.Expr],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    ceil: bool = False,
) -> list[ir.Expr]:
    """Number of windows along each spatial axis; `pads` are all beginnings, then all ends.

    `ceil` counts a last window that is cut off, unless it would begin behind the input and its left padding.
    """
    analyzer, out = tvm.sym.Analyzer(), []
    for i, size in enumerate(sizes):
        before, after, stride = pads[i], pads[len(sizes) + i], strides[i]
        room = size + (before + after - ((kernel[i] - 1) * dilations[i] + 1))
        if ceil:
            count = tirx.min(
                tirx.floordiv(room + (stride - 1), stride) + 1, tirx.floordiv(size + (before + stride - 1), stride)
            )
        else:
            count = tirx.floordiv(room, stride) + 1
        out.append(analyzer.simplify(count))
    return out


def padded(
    x: te.Tensor, axes: Sequence[int], pads: Sequence[int], value: ir.Expr, least: Sequence[ir.Expr]
) -> te.Tensor:
    """`x` with `value` around its spatial `axes`, and behind them as far as the windows reach (`least`)."""
    spatial = len(axes)
    moved = any(not isinstance(p, int) or p for p in pads)  # an expression may be anything
    if not moved and all(tvm.sym.Analyzer().can_prove(x.shape[a] >= n) for a, n in zip(axes, least)):
        return x
    begin = {a: pads[i] for i, a in enumerate(axes) if not isinstance(pads[i], int) or pads[i]}
    shape = list(x.shape)
    analyzer = tvm.sym.Analyzer()
    for i, a in enumerate(axes):
        wide = x.shape[a] + (pads[i] + pads[spatial + i])
        shape[a] = analyzer.simplify(tirx.max(wide, least[i]))
    whole = {a for i, a in enumerate(axes) if a not in begin and analyzer.can_prove_equal(shape[a], x.shape[a])}

    def element(*index):
        at = [i - begin[a] if a in begin else i for a, i in enumerate(index)]
        inside = [c for a in axes if a not in whole for c in (at[a] >= 0, at[a] < x.shape[a])]
        return tirx.if_then_else(tirx.all(*inside), x[tuple(at)], value) if inside else x[tuple(at)]

    return te.compute(shape, element, name="padded", attrs={PADDING: 1})


def described(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], abreast: int = 1
) -> dict[str, object]:
    """Annotations of a main block by which schedule rules know its windows; none where padding depends on sizes.

    `abreast` says how many groups lie side by side in a panel of the weight.
    """
    if not all(isinstance(p, int) for p in pads):
        return {}
    fields = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    window = {WINDOW: json.dumps({name: [int(v) for v in values] for name, values in fields.items()})}
    return {**window, ABREAST: abreast} if abreast > 1 else window


def reach(
    counts: Sequence[ir.Expr], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[ir.Expr]:
    """Least padded size along each axis, so that every window lies inside."""
    return [(n - 1) * s + ((k - 1) * d + 1) for n, k, s, d in zip(counts, kernel, strides, dilations)]


def axes_of(kernel: Sequence[int]) -> list[tirx.IterVar]:
    """A reduction axis for each axis of the window."""
    return [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]


def valid_counts(
    sizes: Sequence[ir.Expr],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    include_pad: bool,
) -> Callable[[Sequence[ir.Expr]], ir.Expr]:
    """How many elements of the window at a spatial place count: those of the input, or of its padding as well."""

    def count(place: Sequence[ir.Expr]) -> ir.Expr:
        total = tirx.const(1, "int64")
        for i, at in enumerate(place):
            start = at * strides[i] - pads[i]
            low, high = (-pads[i], sizes[i] + pads[len(sizes) + i]) if include_pad else (0, sizes[i])
            first = tirx.max(tirx.floordiv(low - start + (dilations[i] - 1), dilations[i]), 0)
            last = tirx.min(tirx.floordiv(high - 1 - start, dilations[i]), kernel[i] - 1)
            total = total * (last - first + 1)
        return total

    return count
