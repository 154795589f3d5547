"""Pooling: the largest element, the mean or the p-norm of sliding windows, each channel by itself.

Shapes
    layout "first"   x [n, c, *space]   ->   y [n, c, *windows]
    layout "last"    x [n, *space, c]   ->   y [n, *windows, c]
Computation
    window(o) = { x[o * strides + k * dilations - pads] : k < kernel }, without what is outside of the input
    kind "max"       the largest element
    kind "average"   the sum, divided by the number of elements; with include_pad those of the padding count, as zeros
    kind "lp"        (sum |x|^p) ^ (1/p)
    `pads` are the beginnings of all axes, then their ends; `ceil` adds a last window that is cut off
Lifts
    none: importers build it
Rejects
    nothing: there are no lifts
Numerics
    sums in float32; float64 in float64
References
    none: the definition
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax, te, tirx

from ..extremes import maximum
from .operator import Operator, attrs_of
from .parts.windows import LAYOUTS, axes_of, described, padded, reach, spatial_axes, valid_counts, window_sizes

KINDS = ("max", "average", "lp")


class Pooling(Operator):
    """Reduce sliding windows, channel by channel."""

    name = "pooling"
    takes_stages = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        x, attrs = call.args[0].ty, attrs_of(call)
        if attrs["layout"] not in LAYOUTS or attrs["kind"] not in KINDS:
            raise ValueError(
                f"halo.pooling: layout must be first or last and kind max, average or lp, got {attrs}: "
                "choose among these"
            )
        axes = spatial_axes(x.ndim, attrs["layout"])
        if len(attrs["kernel"]) != len(axes):
            raise ValueError(f"halo.pooling: a window of rank {len(attrs['kernel'])} does not fit {x}")
        shape = list(x.shape.values)
        for a, n in zip(axes, _windows([shape[a] for a in axes], attrs)):
            shape[a] = n
        return relax.TensorType(shape, x.dtype)

    @staticmethod
    def compute(x: te.Tensor, **attrs: object) -> te.Tensor:
        kernel, strides, dilations, pads = (attrs[k] for k in ("kernel", "strides", "dilations", "pads"))
        axes = spatial_axes(len(x.shape), attrs["layout"])
        sizes = [x.shape[a] for a in axes]
        windows = _windows(sizes, attrs)
        kind, dtype = attrs["kind"], x.dtype
        outside = least(dtype) if kind == "max" else tirx.const(0, dtype)
        source = padded(x, axes, pads, outside, reach(windows, kernel, strides, dilations))
        ks = axes_of(kernel)
        largest = te.comm_reducer(maximum, least)
        wide = "float32" if dtype in ("float16", "bfloat16") or kind != "max" and dtype != "float64" else dtype
        shape = list(x.shape)
        for a, n in zip(axes, windows):
            shape[a] = n

        def reduced(*index):
            at = list(index)
            for a, k, s, d in zip(axes, ks, strides, dilations):
                at[a] = index[a] * s + k * d
            value = source[tuple(at)].astype(wide)
            if kind == "max":
                return largest(value, axis=ks)
            return te.sum(_power(value, attrs["p"]) if kind == "lp" else value, axis=ks)

        annotations = {"halo.op": "pooling", **described(kernel, strides, dilations, pads)}
        out = te.compute(shape, reduced, name="pooling", attrs=annotations)
        if kind == "max":
            return out if wide == dtype else te.compute(shape, lambda *i: out[i].astype(dtype), name="rounded")
        total = out
        if kind == "lp":
            return te.compute(shape, lambda *i: _root(total[i], attrs["p"], wide).astype(dtype), name="lp_norm")
        count = valid_counts(sizes, kernel, strides, dilations, pads, attrs["include_pad"])
        return te.compute(
            shape, lambda *i: (total[i] / count([i[a] for a in axes]).astype(wide)).astype(dtype), name="mean"
        )

    @staticmethod
    def reference(x: np.ndarray, **attrs: object) -> np.ndarray:
        kernel, strides, dilations, pads = (attrs[k] for k in ("kernel", "strides", "dilations", "pads"))
        if attrs["layout"] == "last":
            x = np.moveaxis(x, -1, 1)
        sizes = x.shape[2:]
        windows = [int(n) for n in _windows([tirx.IntImm("int64", s) for s in sizes], attrs)]
        y = np.zeros((*x.shape[:2], *windows), x.dtype)
        for place in itertools.product(*map(range, windows)):
            starts = [o * s - b for o, s, b in zip(place, strides, pads)]
            picks = [
                [i for i in range(a, a + k * d, d) if 0 <= i < n]
                for a, k, d, n in zip(starts, kernel, dilations, sizes)
            ]
            part = x[(slice(None), slice(None), *np.ix_(*picks))].reshape(*x.shape[:2], -1)
            if attrs["kind"] == "max":
                value = part.max(-1)
            elif attrs["kind"] == "lp":
                value = (np.abs(part) ** attrs["p"]).sum(-1) ** (1 / attrs["p"])
            else:
                ends = pads[len(sizes) :]
                count = [
                    sum(-b <= i < n + e for i in range(a, a + k * d, d))
                    for a, k, d, n, b, e in zip(starts, kernel, dilations, sizes, pads, ends)
                ]
                value = part.sum(-1) / (np.prod(count) if attrs["include_pad"] else part.shape[-1])
            y[(slice(None), slice(None), *place)] = value
        return y if attrs["layout"] == "first" else np.moveaxis(y, 1, -1)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], **attrs: object) -> int:
        return int(np.prod(_result(shapes, attrs))) * int(np.prod(attrs["kernel"]))

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        plain = {
            "layout": "first",
            "kind": "max",
            "kernel": (3, 2),
            "strides": (2, 1),
            "dilations": (1, 1),
            "pads": (0, 0, 0, 0),
            "ceil": False,
            "include_pad": False,
            "p": 2,
        }
        return (
            {"args": [(5, 3, 9, 8)], "attrs": plain},
            {"args": [(5, 9, 8, 3)], "attrs": {**plain, "layout": "last", "pads": (1, 0, 1, 1), "ceil": True}},
            {"args": [(2, 3, 10, 8)], "attrs": {**plain, "kind": "average", "pads": (1, 1, 0, 0), "ceil": True}},
            {
                "args": [(2, 3, 10, 8)],
                "attrs": {**plain, "kind": "average", "pads": (1, 1, 1, 0), "dilations": (2, 1), "include_pad": True},
            },
            {"args": [(2, 3, 10, 8)], "attrs": {**plain, "kind": "lp", "p": 3}},
        )


def least(dtype: str) -> tirx.PrimExpr:
    """What every element is at least; `te.max` starts from a finite number."""
    return tirx.const(-math.inf, dtype) if "float" in str(dtype) else te.min_value(str(dtype))


def _windows(sizes: Sequence, attrs: Mapping[str, object]) -> list:
    return window_sizes(sizes, attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["pads"], attrs["ceil"])


def _result(shapes: list[tuple[int, ...]], attrs: Mapping[str, object]) -> list[int]:
    shape = list(shapes[0])
    axes = spatial_axes(len(shape), attrs["layout"])
    sizes = [tirx.IntImm("int64", shape[a]) for a in axes]
    for a, n in zip(axes, _windows(sizes, attrs)):
        shape[a] = int(n)
    return shape


def _power(value, p: int):
    """|value| ^ p by multiplication: exact where the library's power is not."""
    factor = te.abs(value) if p % 2 else value
    out = factor
    for _ in range(p - 1):
        out = out * factor
    return out


def _root(value, p: int, dtype: str):
    if p == 1:
        return value
    return te.sqrt(value) if p == 2 else te.power(value, tirx.const(1.0 / p, dtype))
