"""Convolution whose last two axes are computed in tiles of 4 x 4 results by minimal filtering (`halo_tvm.winograd`).

Shapes
    x [n, *front, h, w, c]   weight [panels, 36, prod(front kernel) * c, nr]   ->   y [n, *front', h', w', m]
    m = `n` is an attribute; columns fill panels, the last one with zeros
    `kernel` ends in 3, 3, strides and dilations in 1, 1; the axes in front are walked as any convolution walks them
Computation
    that of halo.convolution: the weight holds G g G^T of every kernel, x is transformed tile by tile
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

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, te, tirx

from ..params import pack_winograd
from ..winograd import KERNEL, RESULTS, TILE, of_input, of_products
from .convolution import Convolution
from .operator import Operator, attrs_of
from .parts.windows import axes_of, described, padded, reach, window_sizes

INPUT, PRODUCT = "winograd_input", "winograd_product"  # annotations halo.part of the blocks that read x and the weight


class ConvolutionWinograd(Operator):
    """Sliding windows of the input times a kernel, by minimal filtering."""

    name = "convolution_winograd"
    takes_stages = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:  # type: ignore[override]
        x, weight = call.args[0].ty, call.args[1].ty
        attrs: dict[str, Any] = attrs_of(call)
        kernel = [int(k) for k in attrs["kernel"]]
        depth = math.prod(kernel[:-2]) * int(x.shape.values[-1])
        sizes = [int(d) for d in weight.shape.values]
        if sizes[1:3] != [TILE * TILE, depth] or kernel[-2:] != [KERNEL, KERNEL]:
            raise ValueError(
                f"halo.convolution_winograd: expected a weight [panels, {TILE * TILE}, {depth}, nr] of a kernel that "
                f"ends in 3, 3, got {weight} of {kernel}"
            )
        sizes = x.shape.values[1:-1]
        windows = window_sizes(sizes, kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
        return relax.TensorType([x.shape.values[0], *windows, attrs["n"]], x.dtype)

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
        rank, nr, channels = len(kernel), int(weight.shape[3]), x.shape[-1]
        axes = range(1, rank + 1)
        windows = window_sizes([x.shape[a] for a in axes], kernel, strides, dilations, pads)
        tiles = [tirx.floordiv(w + (RESULTS - 1), RESULTS) for w in windows[-2:]]
        least = reach([*windows[:-2], *(t * RESULTS for t in tiles)], kernel, strides, dilations)
        source = padded(x, axes, pads, tirx.const(0, x.dtype), least)
        front = list(source.shape[1 : rank - 1])

        def along_last(*at: ir.Expr) -> ir.Expr:
            *outer, column, j, c = at
            return _chosen(j, of_input([source[(*outer, column * RESULTS + k, c)] for k in range(TILE)]))

        shape = [x.shape[0], *front, source.shape[rank - 1], tiles[1], TILE, channels]
        half = te.compute(shape, along_last, name="input_columns", attrs={"halo.part": INPUT})

        def along_rows(*at: ir.Expr) -> ir.Expr:
            *outer, row, column, i, j, c = at
            return _chosen(i, of_input([half[(*outer, row * RESULTS + k, column, j, c)] for k in range(TILE)]))

        factors = te.compute(
            [x.shape[0], *front, *tiles, TILE, TILE, channels],
            along_rows,
            name="input_rows",
            attrs={"halo.part": "winograd_rows"},
        )
        ks, c = axes_of(kernel[:-2]), te.reduce_axis((0, channels), "c")

        def product(*at: ir.Expr) -> ir.Expr:
            batch, *places, row, column, i, j, m = at
            where = [o * s + k * d for o, k, s, d in zip(places, ks, strides, dilations)]
            tap = tirx.const(0, "int64")
            for k, size in zip(ks, kernel[:-2]):
                tap = tap * size + k
            factor = weight[tirx.floordiv(m, nr), i * TILE + j, tap * channels + c, tirx.floormod(m, nr)]
            return te.sum(factors[(batch, *where, row, column, i, j, c)] * factor, axis=[*ks, c])

        shape = [x.shape[0], *windows[:-2], *tiles, TILE, TILE, tirx.const(n, "int64")]
        products = te.compute(shape, product, name="products", attrs={"halo.part": PRODUCT})

        def rows_of(*at: ir.Expr) -> ir.Expr:
            *outer, i, j, m = at
            return _chosen(i, of_products([products[(*outer, k, j, m)] for k in range(TILE)]))

        shape = [*shape[:-3], RESULTS, TILE, shape[-1]]
        rows = te.compute(shape, rows_of, name="result_rows", attrs={"halo.part": "winograd_result"})

        def result(*at: ir.Expr) -> ir.Expr:
            *outer, y, z, m = at
            tile = [tirx.floordiv(y, RESULTS), tirx.floordiv(z, RESULTS), tirx.floormod(y, RESULTS)]
            found = of_products([rows[(*outer, *tile, k, m)] for k in range(TILE)])
            return _chosen(tirx.floormod(z, RESULTS), found)

        attrs = {"halo.op": "convolution_winograd", **described(kernel, strides, dilations, pads)}
        return te.compute([x.shape[0], *windows, n], result, name="convolution_winograd", attrs=attrs)

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, *, n: int, kernel: Sequence[int], **attrs: Any) -> np.ndarray:
        """The convolution with the weight that `weight` was made of, by least squares."""
        panels, _, depth, nr = weight.shape
        factors = weight.transpose(1, 2, 0, 3).reshape(TILE * TILE, depth, panels * nr)[:, :, :n]
        once = np.linalg.pinv(pack_winograd(np.eye(9, dtype=np.float64).reshape(9, 1, 3, 3), nr=9)[0, :, 0, :])
        taps = np.tensordot(once, factors.astype(np.float64), 1).reshape(KERNEL, KERNEL, *kernel[:-2], -1, n)
        rank = len(kernel)
        whole = np.moveaxis(taps, (0, 1), (rank - 2, rank - 1)).astype(x.dtype)
        return Convolution.reference(x, whole, layout="last", groups=1, **attrs)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], *, kernel: Sequence[int], n: int, **attrs: Any) -> int:
        """Of the products, which are a quarter of those of the convolution."""
        sizes = [tirx.IntImm("int64", size) for size in shapes[0][1:-1]]
        windows = [int(w) for w in window_sizes(sizes, kernel, **attrs)]
        tiles = math.prod(-(-w // RESULTS) for w in windows[-2:])
        return 2 * TILE * TILE * tiles * shapes[0][0] * math.prod(windows[:-2]) * shapes[1][2] * n

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        rng = np.random.default_rng(0)

        def weight(m: int, c: int, *front: int, nr: int) -> np.ndarray:
            return pack_winograd(rng.standard_normal((m, c, *front, KERNEL, KERNEL), dtype=np.float32), nr=nr)

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
        )


def _chosen(at: ir.Expr, values: Sequence[ir.Expr]) -> ir.Expr:
    """values[at] of an index that is known when the program runs."""
    chosen = values[-1]
    for number in range(len(values) - 2, -1, -1):
        chosen = tvm.tirx.Select(at == number, values[number], chosen)
    return chosen
