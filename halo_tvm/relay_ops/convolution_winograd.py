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
        found = [int(d) for d in weight.shape.values]
        axes = 2 if found[1] == TILE**2 else 1
        depth = math.prod(kernel[:-axes]) * int(x.shape.values[-1])
        if found[1:3] != [TILE**axes, depth] or kernel[-axes:] != [KERNEL] * axes:
            raise ValueError(
                f"halo.convolution_winograd: expected a weight [panels, {TILE**axes}, {depth}, nr] of a kernel whose "
                f"last axes ({axes}) have 3 elements, got {weight} of {kernel}"
            )
        windows = window_sizes(x.shape.values[1:-1], kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
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
        axes = 2 if int(weight.shape[1]) == TILE**2 else 1
        front = rank - axes
        windows = window_sizes(list(x.shape[1 : rank + 1]), kernel, strides, dilations, pads)
        tiles = [tirx.floordiv(w + (RESULTS - 1), RESULTS) for w in windows[front:]]
        least = reach([*windows[:front], *(t * RESULTS for t in tiles)], kernel, strides, dilations)
        factors = padded(x, range(1, rank + 1), pads, tirx.const(0, x.dtype), least)
        # [n, *front, h, w, c] -> [n, *front, h, columns, 6, c] -> [n, *front, rows, columns, 6, 6, c]
        for step in range(axes):
            factors = _input_factors(factors, 1 + front + axes - 1 - step, tiles[axes - 1 - step], step)
        ks, c = axes_of(kernel[:front]), te.reduce_axis((0, channels), "c")

        def product(*at: ir.Expr) -> ir.Expr:
            batch, *places, m = at
            where = [o * s + k * d for o, k, s, d in zip(places, ks, strides, dilations)]
            tap, factor = tirx.const(0, "int64"), tirx.const(0, "int64")
            for k, size in zip(ks, kernel):
                tap = tap * size + k
            for index in places[front + axes :]:
                factor = factor * TILE + index
            taken = weight[tirx.floordiv(m, nr), factor, tap * channels + c, tirx.floormod(m, nr)]
            return te.sum(factors[(batch, *where, *places[front:], c)] * taken, axis=[*ks, c])

        shape = [x.shape[0], *windows[:front], *tiles, *[TILE] * axes, tirx.const(n, "int64")]
        sums = te.compute(shape, product, name="products", attrs={"halo.part": PRODUCT})
        if axes == 2:
            sums = _result_rows(sums)

        def result(*at: ir.Expr) -> ir.Expr:
            *outer, z, m = at
            tile = [tirx.floordiv(z, RESULTS)]
            if axes == 2:
                *outer, y = outer
                tile = [tirx.floordiv(y, RESULTS), *tile, tirx.floormod(y, RESULTS)]
            found = of_products([sums[(*outer, *tile, k, m)] for k in range(TILE)])
            return _chosen(tirx.floormod(z, RESULTS), found)

        attrs = {"halo.op": "convolution_winograd", **described(kernel, strides, dilations, pads)}
        return te.compute([x.shape[0], *windows, n], result, name="convolution_winograd", attrs=attrs)

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, *, n: int, kernel: Sequence[int], **attrs: Any) -> np.ndarray:
        """The convolution with the weight that `weight` was made of, by least squares."""
        panels, count, depth, nr = weight.shape
        axes = 2 if count == TILE**2 else 1
        factors = weight.transpose(1, 2, 0, 3).reshape(count, depth, panels * nr)[:, :, :n]
        each = np.eye(KERNEL**axes).reshape(-1, 1, *[KERNEL] * axes)
        once = np.linalg.pinv(pack_winograd(each, axes=axes, nr=KERNEL**axes)[0, :, 0, :])
        taps = np.tensordot(once, factors.astype(np.float64), 1)
        whole = taps.reshape(*[KERNEL] * axes, *kernel[:-axes], -1, n)
        whole = np.moveaxis(whole, range(axes), range(len(kernel) - axes, len(kernel))).astype(x.dtype)
        return Convolution.reference(x, whole, layout="last", groups=1, **attrs)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], *, kernel: Sequence[int], n: int, **attrs: Any) -> int:
        """Of the products, which are a quarter of those of the convolution, or half along one axis."""
        sizes = [tirx.IntImm("int64", size) for size in shapes[0][1:-1]]
        windows = [int(w) for w in window_sizes(sizes, kernel, **attrs)]
        _, count, depth, _ = shapes[1]
        front = len(kernel) - (2 if count == TILE**2 else 1)
        tiles = shapes[0][0] * math.prod(windows[:front]) * math.prod(-(-w // RESULTS) for w in windows[front:])
        return 2 * count * tiles * depth * n

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


def _input_factors(x: te.Tensor, axis: int, tiles: ir.Expr, number: int) -> te.Tensor:
    """[.., size, *factors, c] -> [.., tiles, 6, *factors, c] behind `axis`, for the `number`th of the axes."""
    shape = [*x.shape[:axis], tiles, *x.shape[axis + 1 : len(x.shape) - 1 - number], TILE, *x.shape[-1 - number :]]
    place = len(x.shape) - 1 - number  # of the factors in the result

    def factor(*at: ir.Expr) -> ir.Expr:
        rest = [*at[axis + 1 : place], *at[place + 1 :]]
        return _chosen(at[place], of_input([x[(*at[:axis], at[axis] * RESULTS + k, *rest)] for k in range(TILE)]))

    return te.compute(shape, factor, name="input_factors", attrs={"halo.part": f"{INPUT}{number}"})


def _result_rows(products: te.Tensor) -> te.Tensor:
    """[.., 6, 6, m] -> [.., 4, 6, m]."""
    shape = [*products.shape[:-3], RESULTS, *products.shape[-2:]]

    def row(*at: ir.Expr) -> ir.Expr:
        *outer, i, j, m = at
        return _chosen(i, of_products([products[(*outer, k, j, m)] for k in range(TILE)]))

    return te.compute(shape, row, name="result_rows", attrs={"halo.part": "winograd_rows"})


def _chosen(at: ir.Expr, values: Sequence[ir.Expr]) -> ir.Expr:
    """values[at] of an index that is known when the program runs."""
    chosen = values[-1]
    for number in range(len(values) - 2, -1, -1):
        chosen = tvm.tirx.Select(at == number, values[number], chosen)
    return chosen
