"""A transposed convolution with a known weight as one ordinary convolution, and a move behind it.

Computation
    Place t of the whole result, nothing cut off, gets x[i] * w[k] where i * stride + k * dilation = t. Of one phase
    t mod stride always the same k meet, at neighbouring i: that is a convolution of stride 1. All phases are one of
    prod(strides) * m output channels:
        z[n, (group, phase, m), q] = sum_e x[n, c, q - e] * w[c, m, k],   k * dilation = e * stride + phase
        y[n, m, t] = z[n, (group, phase = t mod stride, m), t // stride],   t = place + pad
    A phase that fewer elements of the kernel meet than another has zeros in place of them.
Numerics
    as `halo.convolution`; where the stride does not divide the kernel, NaN and infinities also reach the phases whose
    weight is such a zero
References
    arXiv:1609.07009: the same for pixels
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx

from ...relay_ops.convolution import Convolution
from .builder import Builder, expr_shape
from .constant import Constant
from .sizes import Dim
from .windows import Window, is_static

# sizes of the spatial axes of x -> (the window, whose pads are cut off the whole result; the sizes that are left)
Cut = Callable[[Sequence[Dim]], tuple[Window, list[Dim]]]


def by_phases(builder: Builder, x: relax.Expr, weight: Constant, cut: Cut, groups: int) -> relax.Expr:
    """x [n, c, *space] and weight [c, m/groups, *kernel] -> [n, m, *sizes]."""
    space = expr_shape(x)[2:]
    window, sizes = cut(space)
    strides, rank = window.strides, len(space)
    begins = window.pads[:rank]
    taps, apart = _taps(window)
    reach = [(count - 1) * step for count, step in zip(taps, apart)]
    # Which place, counted from the first of the last element of x, the last one of the result is.
    ends = [
        builder.sizes.simplify(size - 1 + begin - (n - 1) * stride)
        for size, begin, n, stride in zip(sizes, begins, space, strides)
    ]
    known = is_static(begins) and is_static(ends)
    if known:  # of the phases only what is left, as far as nothing is cut off x
        first = [min(begin // stride, most) for begin, stride, most in zip(begins, strides, reach)]
        after = [max(end // stride, 0) for end, stride in zip(ends, strides)]
    else:
        first, after = [0] * rank, reach
    arranged = builder.weight(_of_phases(weight, window, taps, groups))
    pads = (*(most - start for most, start in zip(reach, first)), *after)
    attrs = {"layout": "first", "strides": (1,) * rank, "dilations": apart, "pads": pads, "groups": groups}
    made = builder.emit(Convolution.call(x, arranged, **attrs))
    if set(strides) == {1} and known and list(begins) == first and after == ends:
        return made

    def interleaved(z: te.Tensor) -> te.Tensor:
        """The places of `z`, which begin at `first`, in their order."""
        inner = [builder.sizes.simplify(size + (start - end)) for size, start, end in zip(z.shape[2:], first, after)]
        over, sizes = cut(inner)
        phases = math.prod(strides)
        outer = int(z.shape[1]) // (groups * phases)

        def element(n: tirx.Var, m: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
            phase, at = tirx.const(0, "int64"), []
            for o, begin, stride, start in zip(place, over.pads, strides, first):
                phase = phase * stride + tirx.floormod(o + begin, stride)
                at.append(tirx.floordiv(o + begin, stride) - start)
            channel = phase * outer + m
            if groups > 1:
                channel = (tirx.floordiv(m, outer) * phases + phase) * outer + tirx.floormod(m, outer)
            if known:
                return z[(n, channel, *at)]
            inside = [c for q, size in zip(at, z.shape[2:]) for c in (q >= 0, q < size)]
            return tirx.if_then_else(tirx.all(*inside), z[(n, channel, *at)], tirx.const(0, z.dtype))

        return te.compute([z.shape[0], groups * outer, *sizes], element, name="interleaved")

    return builder.te(interleaved, made, name="interleaved")


def _taps(window: Window) -> tuple[list[int], tuple[int, ...]]:
    """(elements of the kernel of a phase, how far they lie apart) along each axis."""
    taps, apart = [], []
    for kernel, stride, dilation in zip(window.kernel, window.strides, window.dilations):
        whole = dilation % stride == 0
        taps.append(kernel if whole else (kernel - 1) * dilation // stride + 1)
        apart.append(dilation // stride if whole else 1)
    return taps, tuple(apart)


def _of_phases(weight: Constant, window: Window, taps: Sequence[int], groups: int) -> Constant:
    """[c, m/groups, *kernel] as the weight [groups * phases * m/groups, c/groups, *taps] of all phases."""
    channels, outer = weight.shape[:2]
    phases = math.prod(window.strides)
    shape = (groups * phases * outer, channels // groups, *taps)

    def arranged() -> np.ndarray:
        given = weight.load().reshape(groups, channels // groups, outer, *window.kernel)
        made = np.zeros((groups, *window.strides, outer, channels // groups, *taps), given.dtype)
        for k in np.ndindex(*window.kernel):
            phase, tap = [], []
            for at, stride, dilation, count in zip(k, window.strides, window.dilations, taps):
                phase.append(at * dilation % stride)
                # a convolution walks forwards, where the sum over e walks backwards
                tap.append(count - 1 - (at if dilation % stride == 0 else at * dilation // stride))
            made[(slice(None), *phase, slice(None), slice(None), *tap)] = given[
                (slice(None), slice(None), slice(None), *k)
            ].swapaxes(1, 2)
        return made.reshape(shape)

    return Constant(shape, weight.dtype, arranged, f"{weight.name}.phases")
