"""Convolution over any number of spatial axes, in groups.

Shapes
    layout "first"   x [n, c, *space]   weight [m, c/groups, *kernel]   ->   y [n, m, *windows]
    layout "last"    x [n, *space, c]   weight [*kernel, c/groups, m]   ->   y [n, *windows, m]
    layout "packed"  x [n, *space, c]   weight [groups, panels, prod(kernel) * c/groups, nr]   ->   y [n, *windows, m]
                     m = `n` and `kernel` are attributes; columns of a group fill panels, the last one with zeros;
                     or weight [groups, panels, prod(kernel) * c/groups / 2, nr, 2] of bfloat16 under x of float32
                     groups narrower than a vector may lie `abreast`: [ceil(groups/abreast), 1, .., nr], a panel has
                     the columns of so many groups, the last one of the last ones
    bias [m] (optional)
    `zero` (optional): x is of bytes, which stand for x - zero in float32, as y is
Computation
    y[n, m, o] = sum_{c, k} x[n, group(m) * c/groups + c, o * strides + k * dilations - pads] * weight[m, c, k]
                 + bias[m]
    outside of the input x is zero; `pads` are the beginnings of all axes, then their ends
Lifts
    none: importers build it
Rejects
    nothing: there are no lifts
Numerics
    accumulates in float32; float64 in float64, integers in int32
References
    arXiv:1603.07285
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import tvm
from tvm import ir, relax, te, tirx

from ..weight_windows import pack_convolution
from .operator import Operator, attrs_of
from .parts.windows import LAYOUTS, axes_of, described, padded, reach, spatial_axes, window_sizes


class Convolution(Operator):
    """Sliding windows of the input times a kernel."""

    name = "convolution"
    takes_stages = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        x, weight, attrs = call.args[0].ty, call.args[1].ty, attrs_of(call)
        layout, groups = attrs["layout"], attrs["groups"]
        if layout not in (*LAYOUTS, "packed"):
            raise ValueError(f"halo.convolution: layout must be first, last or packed, got {layout}: choose one")
        if weight.ndim not in ((4, 5) if layout == "packed" else (x.ndim,)):
            raise ValueError(
                f"halo.convolution: x and weight have one rank, or the weight is packed, got {x}, {weight}"
            )
        if layout == "packed" and weight.ndim == 5 and (str(weight.dtype), str(x.dtype)) != ("bfloat16", "float32"):
            raise ValueError(f"halo.convolution: expected pairs of bfloat16 under float32, got {weight} under {x}")
        kernel, inner, outer = _weight_parts(weight.shape.values, layout, attrs.get("kernel"), attrs.get("n"))
        channels = x.shape.values[1 if layout == "first" else -1]
        if not tvm.sym.Analyzer().can_prove_equal(channels, inner * groups) or outer % groups:
            raise ValueError(
                f"halo.convolution: weight {weight} must have the channels of {x} divided by groups = {groups}"
            )
        sizes = [x.shape.values[a] for a in spatial_axes(x.ndim, layout)]
        windows = window_sizes(sizes, kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
        batch = x.shape.values[0]
        shape = [batch, outer, *windows] if layout == "first" else [batch, *windows, outer]
        return relax.TensorType(shape, x.dtype if attrs.get("zero") is None else "float32")

    @staticmethod
    def compute(
        x: te.Tensor,
        weight: te.Tensor,
        *bias: te.Tensor,
        layout: str,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        groups: int,
        kernel: Sequence[int] | None = None,
        n: int | None = None,
        zero: int | None = None,
        abreast: int = 1,
    ) -> te.Tensor:
        kernel, inner, outer = _weight_parts(weight.shape, layout, kernel, n)
        axes = spatial_axes(len(x.shape), layout)
        windows = window_sizes([x.shape[a] for a in axes], kernel, strides, dilations, pads)
        source = padded(x, axes, pads, tirx.const(zero or 0, x.dtype), reach(windows, kernel, strides, dilations))
        wide = _accumulator(x.dtype) if zero is None else "float32"
        c = te.reduce_axis((0, inner), "c")
        ks = axes_of(kernel)

        def product(*index):
            m = index[1] if layout == "first" else index[-1]
            place = index[2:] if layout == "first" else index[1:-1]
            channel = channel_of(m, c, groups, inner, outer)
            at = [o * s + k * d for o, k, s, d in zip(place, ks, strides, dilations)]
            if layout == "first":
                value, factor = source[(index[0], channel, *at)], weight[(m, c, *ks)]
            else:
                at_weight = (
                    (*ks, c, m)
                    if layout == "last"
                    else packed_at(weight, kernel, ks, c, m, inner, outer // groups, outer, abreast)
                )
                value, factor = source[(index[0], *at, channel)], weight[at_weight]
            value = value.astype(wide) - tirx.const(zero, wide) if zero else value.astype(wide)
            return te.sum(value * factor.astype(wide), axis=[*ks, c])

        shape = [x.shape[0], outer, *windows] if layout == "first" else [x.shape[0], *windows, outer]
        attrs = {"halo.op": "convolution", **described(kernel, strides, dilations, pads, abreast)}
        out = te.compute(shape, product, name="convolution", attrs=attrs)
        if bias:
            total = out
            where = 1 if layout == "first" else -1
            out = te.compute(shape, lambda *i: total[i] + bias[0][i[where]].astype(wide), name="bias")
        if x.dtype != wide and zero is None:
            exact = out
            out = te.compute(shape, lambda *i: exact[i].astype(x.dtype), name="narrow")
        return out

    @staticmethod
    def reference(
        x: np.ndarray,
        weight: np.ndarray,
        *bias: np.ndarray,
        layout: str,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        groups: int,
        kernel: Sequence[int] | None = None,
        n: int | None = None,
        zero: int | None = None,
        abreast: int = 1,
    ) -> np.ndarray:
        x = x if zero is None else x.astype(weight.dtype) - zero
        if layout == "packed":
            weight = weight.astype(np.float32) if weight.ndim == 5 else weight  # tensordot knows no bfloat16
            weight = unpacked(weight, groups, n, abreast).reshape(*kernel, -1, n)
            layout = "last"
        if layout == "last":
            x, weight = np.moveaxis(x, -1, 1), np.moveaxis(weight, (-1, -2), (0, 1))
        kernel, rank = weight.shape[2:], weight.ndim - 2
        x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
        reached = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
        windows = np.lib.stride_tricks.sliding_window_view(x, reached, axis=tuple(range(2, 2 + rank)))
        windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]
        windows = windows[(..., *(slice(None, None, d) for d in dilations))]
        inner, outer = weight.shape[1], weight.shape[0] // groups
        parts = []
        for g in range(groups):
            part = windows[:, g * inner : (g + 1) * inner]
            factor = weight[g * outer : (g + 1) * outer]
            over = [1, *range(2 + rank, 2 + 2 * rank)]
            parts.append(np.tensordot(part, factor, axes=(over, range(1, 2 + rank))))
        y = np.concatenate(parts, axis=-1)
        y = y + bias[0] if bias else y
        return y if layout == "last" else np.moveaxis(y, -1, 1)

    @staticmethod
    def flops(
        shapes: list[tuple[int, ...]], *, layout: str, kernel=None, n=None, strides, dilations, pads, **_others
    ) -> int:
        kernel, inner, outer = _weight_parts(shapes[1], layout, kernel, n)
        axes = spatial_axes(len(shapes[0]), layout)
        sizes = [tirx.IntImm("int64", shapes[0][a]) for a in axes]
        windows = [int(w) for w in window_sizes(sizes, kernel, strides, dilations, pads)]
        return 2 * int(np.prod([shapes[0][0], outer, *windows])) * int(np.prod(kernel)) * inner

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        import ml_dtypes  # a dependency of TVM

        plain = {"layout": "first", "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
        packed = {**plain, "layout": "packed", "groups": 2, "kernel": (3, 2)}
        packed |= {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 2, 1)}
        rng = np.random.default_rng(0)
        pairs = rng.standard_normal((2, 2, 48, 16, 2)).astype(ml_dtypes.bfloat16)
        three = rng.standard_normal((24, 4, 3, 2)).astype("float32")
        three = pack_convolution(three, groups=3, joined=1, nr=16, abreast=2)
        return (
            {"args": [(3, 4, 9, 11), (6, 4, 3, 2)], "attrs": plain},
            {"args": [(3, 4, 9, 11), (6, 2, 3, 2), (6,)], "attrs": {**plain, "groups": 2, "pads": (1, 0, 2, 1)}},
            {
                "args": [(5, 9, 11, 4), (3, 3, 1, 4), (4,)],
                "attrs": {**plain, "layout": "last", "groups": 4, "strides": (2, 1), "dilations": (1, 2)},
            },
            {
                "args": [rng.integers(0, 256, (2, 9, 11, 6)).astype("uint8"), (3, 3, 1, 6)],
                "attrs": {**plain, "layout": "last", "groups": 6, "pads": (1, 0, 2, 1), "zero": 7},
            },
            {
                "args": [(2, 3, 17), (5, 3, 4)],
                "attrs": {"layout": "first", "strides": (3,), "dilations": (2,), "pads": (2, 3), "groups": 1},
            },
            {
                "args": [(2, 5, 6, 7, 3), (2, 2, 2, 3, 4)],
                "attrs": {
                    "layout": "last",
                    "strides": (1, 2, 1),
                    "dilations": (1, 1, 1),
                    "pads": (0, 1, 1, 1, 0, 0),
                    "groups": 1,
                },
            },
            {"args": [(2, 9, 11, 6), (2, 2, 18, 4)], "attrs": {**packed, "n": 10}},
            {"args": [(2, 9, 11, 32), pairs, (40,)], "attrs": {**packed, "n": 40}},
            {"args": [(2, 9, 11, 12), three], "attrs": {**packed, "groups": 3, "n": 24, "abreast": 2}},
        )


def _weight_parts(
    shape: Sequence[ir.Expr | int], layout: str, kernel: Sequence[int] | None = None, n: int | None = None
) -> tuple[list[int], int, int]:
    """(kernel, input channels of a group, output channels); a packed weight does not show `kernel` and `n`."""
    sizes = [int(d) for d in shape]
    if layout == "packed":
        return list(kernel), sizes[2] * prod(sizes[4:]) // prod(kernel), n
    return (sizes[2:], sizes[1], sizes[0]) if layout == "first" else (sizes[:-2], sizes[-2], sizes[-1])


def unpacked(weight: np.ndarray, groups: int, m: int, abreast: int = 1) -> np.ndarray:
    """A packed weight as [prod(kernel) * channels of a group, m]."""
    if weight.ndim == 5:
        weight = weight.swapaxes(-1, -2).reshape(*weight.shape[:2], -1, weight.shape[3])
    number, panels, depth, nr = weight.shape
    columns = weight.transpose(2, 0, 1, 3).reshape(depth, number, panels * nr)
    if abreast > 1:  # the last panel ends where the columns do
        return np.concatenate([columns[:, :-1].reshape(depth, -1), columns[:, -1, number * nr - m :]], axis=1)
    return columns[:, :, : m // groups].reshape(depth, m)


def packed_at(
    weight: te.Tensor,
    kernel: Sequence[int],
    ks: Sequence[ir.Expr],
    c: ir.Expr,
    m: ir.Expr,
    inner: int,
    outer: int,
    columns: int,
    abreast: int = 1,
) -> tuple[ir.Expr, ...]:
    """Where the packed weight has channel `c` of a group of `inner`, element `ks`, for channel `m` of `columns`.

    A group makes `outer` of these; the weight may have several steps of a column side by side.
    """
    nr, depth = int(weight.shape[3]), tirx.const(0, "int64")
    for k, size in zip(ks, kernel):
        depth = depth * size + k
    step = depth * inner + c
    if abreast > 1:
        panel = tirx.floordiv(m, nr)
        lane = m - tirx.min(panel * nr, columns - nr) if columns % nr else tirx.floormod(m, nr)
        front = panel, tirx.const(0, "int64")
    else:
        column = tirx.floormod(m, outer)
        front, lane = (tirx.floordiv(m, outer), tirx.floordiv(column, nr)), tirx.floormod(column, nr)
    if len(weight.shape) == 5:
        side = int(weight.shape[4])
        return *front, tirx.floordiv(step, side), lane, tirx.floormod(step, side)
    return *front, step, lane


def channel_of(m: ir.Expr, c: ir.Expr, groups: int, inner: int, outer: int) -> ir.Expr:
    """The channel of x that is `c` of the group of `inner` which makes channel `m` of the `outer` of the result."""
    if groups == 1:
        return c
    if inner == 1 and outer == groups:
        return m
    return tirx.floordiv(m, outer // groups) * inner + c


def _accumulator(dtype: str) -> str:
    if dtype == "float64":
        return dtype
    return "float32" if str(dtype).startswith(("float", "bfloat")) else "int32"
