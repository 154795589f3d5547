"""Convolution whose last two axes, or last one, are computed in tiles of 4 results by minimal filtering.

Shapes
    x [n, *front, h, w, c]   weight [panels, 36, prod(front kernel) * c, nr]   ->   y [n, *front', h', w', m]
    x [n, *front, w, c]      weight [panels, 6, prod(front kernel) * c, nr]    ->   y [n, *front', w', m]
    m = `n` is an attribute; columns fill panels, the last one with zeros
    `kernel` ends in 3, 3 (or 3), strides and dilations in ones; the axes in front are walked as in any convolution
Computation
    that of halo.convolution: the weight holds the factors of every kernel, x is transformed tile by tile
    (`halo_tvm.winograd`)
Lifts
    none: the pass `channels_last` chooses it
Rejects
    nothing: there are no lifts
Numerics
    float32; the error is a few times that of the sum itself. A number in a tile that is infinite or none reaches all of
    its results
References
    arXiv:1509.09308
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from ..weight_windows import pack_winograd
from ..winograd import FLOATS, KERNEL
from .convolution import Convolution
from .operator import Operator, attrs_of
from .parts.tiles import flops_in_tiles, in_tiles, kernel_of_factors, type_in_tiles


class ConvolutionWinograd(Operator):
    """Sliding windows of the input times a kernel, by minimal filtering."""

    name = "convolution_winograd"
    takes_stages = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:  # type: ignore[override]
        x, weight = call.args[0].ty, call.args[1].ty
        attrs: dict[str, Any] = attrs_of(call)
        return relax.TensorType(type_in_tiles("convolution_winograd", x, weight, FLOATS, attrs, attrs["n"]), x.dtype)

    @staticmethod
    def compute(
        x: te.Tensor,
        weight: te.Tensor,
        *,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        kernel: Sequence[int],
        n: int,
    ) -> te.Tensor:
        _, factors, _, nr = (int(size) for size in weight.shape)

        def taken(factor: ir.Expr, k: ir.Expr, m: ir.Expr) -> ir.Expr:
            return weight[tirx.floordiv(m, nr), factor, k, tirx.floormod(m, nr)]

        how = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads}
        axes, around, types = FLOATS.axes(factors), tirx.const(0, x.dtype), ("float32", "float32")
        return in_tiles(x, around, taken, FLOATS, axes, n, types, "convolution_winograd", **how)

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, *, n: int, kernel: Sequence[int], **attrs: Any) -> np.ndarray:
        """The convolution with the weight that `weight` was made of, by least squares."""
        _, count, depth, _ = weight.shape
        factors = weight.transpose(1, 2, 0, 3).reshape(count, depth, -1)[:, :, :n]
        whole = kernel_of_factors(factors, FLOATS, kernel).astype(x.dtype)
        return Convolution.reference(x, whole, layout="last", groups=1, **attrs)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], *, kernel: Sequence[int], n: int, **attrs: Any) -> int:
        """Of the products, which are a quarter of those of the convolution, or half along one axis."""
        return flops_in_tiles(shapes, FLOATS, n, kernel=kernel, **attrs)

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        rng = np.random.default_rng(0)

        def weight(m: int, c: int, *front: int, nr: int, axes: int = 2) -> np.ndarray:
            kernel = (*front, *[KERNEL] * axes)
            return pack_winograd(rng.standard_normal((m, c, *kernel), dtype=np.float32), axes=axes, nr=nr)

        plain = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "kernel": (3, 3)}
        return (
            {"args": [(2, 9, 11, 6), weight(10, 6, nr=8)], "attrs": {**plain, "n": 10}},
            {"args": [(1, 6, 10, 3), weight(4, 3, nr=4)], "attrs": {**plain, "pads": (0, 2, 1, 0), "n": 4}},
            {
                "args": [(1, 7, 5, 6, 4), weight(5, 4, 3, nr=8)],
                "attrs": {
                    "strides": (2, 1, 1),
                    "dilations": (1, 1, 1),
                    "pads": (1, 1, 1, 1, 1, 1),
                    "kernel": (3, 3, 3),
                    "n": 5,
                },
            },
            {
                "args": [(2, 13, 5), weight(6, 5, nr=8, axes=1)],
                "attrs": {"strides": (1,), "dilations": (1,), "pads": (2, 1), "kernel": (3,), "n": 6},
            },
        )
