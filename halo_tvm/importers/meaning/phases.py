"""A transposed convolution as one ordinary convolution, and a move behind it.

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
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from ...relay_ops.convolution import Convolution
from .builder import Builder, expr_shape
from .constant import Constant
from .sizes import Dim
from .windows import Window, is_static

# sizes of the spatial axes of x -> (the window, whose pads are cut off the whole result; the sizes that are left)
Cut = Callable[[Sequence[Dim]], tuple[Window, list[Dim]]]


def by_phases(builder: Builder, x: relax.Expr, weight: Constant | relax.Expr, cut: Cut, groups: int) -> relax.Expr:
    """x [n, c, *space] and weight [c, m/groups, *kernel] -> [n, m, *sizes].

    A weight that is known is arranged now, one that is computed by the model.
    """
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
    if isinstance(weight, Constant):
        arranged = builder.weight(_of_phases(weight, window, taps, groups))
    else:
        arranged = _computed_phases(builder, weight, window, taps, groups)
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


def meets_everywhere(window: Window) -> bool:
    """Whether as many elements of the kernel meet in every phase: then there are no zeros among their weights."""
    return all(
        stride == 1 or dilation == 1 and kernel % stride == 0
        for kernel, stride, dilation in zip(window.kernel, window.strides, window.dilations)
    )


def _computed_phases(
    builder: Builder, weight: relax.Expr, window: Window, taps: Sequence[int], groups: int
) -> relax.Expr:
    """As `_of_phases`, of a weight that the model computes and a window that meets everywhere."""

    def arranged(w: te.Tensor) -> te.Tensor:
        channels, outer = (int(n) for n in w.shape[:2])
        inner, phases = channels // groups, math.prod(window.strides)

        def element(row: tirx.Var, c: tirx.Var, *tap: tirx.Var) -> tirx.PrimExpr:
            phase, at = tirx.floormod(tirx.floordiv(row, outer), phases), []
            for t, count, stride in reversed(list(zip(tap, taps, window.strides))):
                at.append((count - 1 - t) * stride + tirx.floormod(phase, stride))
                phase = tirx.floordiv(phase, stride)
            group = tirx.floordiv(row, outer * phases)
            return w[(group * inner + c, tirx.floormod(row, outer), *reversed(at))]

        return te.compute([groups * phases * outer, inner, *taps], element, name="phases")

    return builder.te(arranged, weight, name="phases")


def phase_by_phase(builder: Builder, x: relax.Expr, weight: relax.Expr, cut: Cut, groups: int) -> relax.Expr:
    """As `by_phases`, of a computed weight, by a convolution for each phase: no weight of them is a zero of ours."""
    window, _ = cut(expr_shape(x)[2:])
    found = []
    for phase in np.ndindex(*window.strides):
        met = [_run(p, *axis) for p, *axis in zip(phase, window.kernel, window.strides, window.dilations)]
        runs = [run for run in met if run is not None]
        if len(runs) == len(met):  # else no element of the kernel gets there
            found.append((phase, runs, _convolved(builder, x, weight, runs, groups)))

    def interleaved(x: te.Tensor, *parts: te.Tensor) -> te.Tensor:
        over, sizes = cut(list(x.shape[2:]))

        def element(n: tirx.Var, m: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
            spots = [o + begin for o, begin in zip(place, over.pads)]
            value = tirx.const(0, x.dtype)
            for (phase, runs, _), part in zip(found, parts):
                at = [tirx.floordiv(s, stride) - run.first for s, stride, run in zip(spots, window.strides, runs)]
                met = [
                    tirx.floormod(s, stride) == p for s, stride, p in zip(spots, window.strides, phase) if stride > 1
                ]
                met += [c for q, size in zip(at, part.shape[2:]) for c in (q >= 0, q < size)]
                value = tirx.if_then_else(tirx.all(*met), part[(n, m, *at)], value)
            return value

        return te.compute([x.shape[0], parts[0].shape[1], *sizes], element, name="interleaved")

    return builder.te(interleaved, x, *[part for *_, part in found], name="interleaved")


@dataclass(frozen=True)
class _Run:
    """The elements of a kernel that one phase meets along an axis: `count` from `begin` on, every `step`-th.

    The first of them takes its input `first` elements back, each other one `apart` further.
    """

    begin: int
    step: int
    count: int
    first: int
    apart: int


def _run(phase: int, kernel: int, stride: int, dilation: int) -> _Run | None:
    met = [k for k in range(kernel) if k * dilation % stride == phase]
    if not met:
        return None
    step = stride // math.gcd(stride, dilation)
    return _Run(met[0], step, len(met), (met[0] * dilation - phase) // stride, step * dilation // stride)


def _convolved(builder: Builder, x: relax.Expr, weight: relax.Expr, runs: Sequence[_Run], groups: int) -> relax.Expr:
    """The places of one phase that any element of `x` reaches, from the first on."""

    def arranged(w: te.Tensor) -> te.Tensor:
        channels, outer = (int(n) for n in w.shape[:2])
        inner = channels // groups

        def element(row: tirx.Var, c: tirx.Var, *tap: tirx.Var) -> tirx.PrimExpr:
            at = [run.begin + (run.count - 1 - t) * run.step for t, run in zip(tap, runs)]
            return w[(tirx.floordiv(row, outer) * inner + c, tirx.floormod(row, outer), *at)]

        return te.compute([groups * outer, inner, *[run.count for run in runs]], element, name="phase")

    reach = tuple((run.count - 1) * run.apart for run in runs)
    attrs = {"strides": (1,) * len(runs), "dilations": tuple(run.apart for run in runs), "pads": (*reach, *reach)}
    kernel = builder.te(arranged, weight, name="phase")
    return builder.emit(Convolution.call(x, kernel, layout="first", groups=groups, **attrs))
