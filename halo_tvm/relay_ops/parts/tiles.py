"""Convolutions by minimal filtering, tile by tile (`halo_tvm.winograd`): what floats and integers share.

The blocks say by `halo.part` what they make: factors of the input, axis by axis (INPUT and its number), sums of
products (PRODUCT), results along the first of two axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from ...winograd import KERNEL, Filtering
from .windows import axes_of, described, padded, reach, window_sizes

INPUT, PRODUCT = "winograd_input", "winograd_product"
_ROWS = "winograd_rows"


def in_tiles(
    x: te.Tensor,
    outside: ir.Expr,
    taken: Callable[[ir.Expr, ir.Expr, ir.Expr], ir.Expr],
    filtering: Filtering,
    axes: int,
    m: int,
    types: tuple[str, str],
    op: str,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> te.Tensor:
    """The convolution [n, *windows, m] of channels-last `x`, which is surrounded by `outside`, along its last `axes`.

    `taken(factor, k, column)` is the weight's; `types` are those of factors and of products; the main block is `op`'s.
    """
    rank, channels = len(kernel), x.shape[-1]
    front, (narrow, wide) = rank - axes, types
    windows = window_sizes(list(x.shape[1 : rank + 1]), kernel, strides, dilations, pads)
    tiles = [tirx.floordiv(w + (filtering.results - 1), filtering.results) for w in windows[front:]]
    least = reach([*windows[:front], *(t * filtering.results for t in tiles)], kernel, strides, dilations)
    factors = padded(x, range(1, rank + 1), pads, outside, least)
    # [n, *front, h, w, c] -> [n, *front, h, columns, tile, c] -> [n, *front, rows, columns, tile, tile, c]
    for step in range(axes):
        factors = _input_factors(factors, narrow, filtering, 1 + front + axes - 1 - step, tiles[axes - 1 - step], step)
    ks, c = axes_of(kernel[:front]), te.reduce_axis((0, channels), "c")

    def product(*at: ir.Expr) -> ir.Expr:
        batch, *places, column = at
        where = [o * s + k * d for o, k, s, d in zip(places, ks, strides, dilations)]
        tap, factor = tirx.const(0, "int64"), tirx.const(0, "int64")
        for k, size in zip(ks, kernel):
            tap = tap * size + k
        for index in places[front + axes :]:
            factor = factor * filtering.tile + index
        weight = taken(factor, tap * channels + c, column).astype(wide)
        return te.sum(factors[(batch, *where, *places[front:], c)].astype(wide) * weight, axis=[*ks, c])

    shape = [x.shape[0], *windows[:front], *tiles, *[filtering.tile] * axes, tirx.const(m, "int64")]
    sums = te.compute(shape, product, name="products", attrs={"halo.part": PRODUCT})
    if axes == 2:
        sums = _result_rows(sums, filtering)

    def result(*at: ir.Expr) -> ir.Expr:
        *outer, z, column = at
        tile = [tirx.floordiv(z, filtering.results)]
        if axes == 2:
            *outer, y = outer
            tile = [tirx.floordiv(y, filtering.results), *tile, tirx.floormod(y, filtering.results)]
        found = filtering.of_products([sums[(*outer, *tile, k, column)] for k in range(filtering.tile)])
        chosen = _chosen(tirx.floormod(z, filtering.results), found)
        return chosen >> tirx.const(filtering.bits * axes, wide) if filtering.bits else chosen

    attrs = {"halo.op": op, **described(kernel, strides, dilations, pads)}
    return te.compute([x.shape[0], *windows, m], result, name=op, attrs=attrs)


def type_in_tiles(
    operator: str, x: relax.TensorType, weight: relax.TensorType, filtering: Filtering, attrs: dict[str, Any], m: int
) -> list[ir.Expr]:
    """The shape of the result; `ValueError` where the weight is for another kernel or other channels."""
    kernel, (_, factors, steps, _, *together) = attrs["kernel"], (int(d) for d in weight.shape.values)
    axes = filtering.axes(factors)
    depth, found = math.prod(kernel[:-axes]) * int(x.shape.values[-1]), steps * math.prod(together)
    if [factors, found] != [filtering.tile**axes, depth] or list(kernel[-axes:]) != [KERNEL] * axes:
        raise ValueError(
            f"halo.{operator}: expected a weight of {filtering.tile**axes} factors of {depth} numbers, of a kernel "
            f"whose last axes ({axes}) have {KERNEL} elements, got {weight} of {kernel}"
        )
    windows = window_sizes(x.shape.values[1:-1], kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
    return [x.shape.values[0], *windows, m]


def flops_in_tiles(
    shapes: Sequence[Sequence[int]], filtering: Filtering, m: int, *, kernel: Sequence[int], **attrs: Any
) -> int:
    """Of the products of x [n, *sizes, c] and a packed weight: `shapes` are theirs."""
    (batch, *sizes, channels), (_, factors, *_) = shapes
    windows = [int(w) for w in window_sizes([tirx.IntImm("int64", size) for size in sizes], kernel, **attrs)]
    front = len(kernel) - filtering.axes(factors)
    tiles = batch * math.prod(windows[:front]) * math.prod(-(-w // filtering.results) for w in windows[front:])
    return 2 * factors * tiles * math.prod(kernel[:front]) * channels * m


def kernel_of_factors(factors: np.ndarray, filtering: Filtering, kernel: Sequence[int]) -> np.ndarray:
    """The weight [*kernel, c, m] in float64 that factors [factors, depth, m] were made of, by least squares."""
    axes = filtering.axes(len(factors))
    one = np.array([filtering.of_kernel(list(each)) for each in np.eye(KERNEL)]).T  # [tile, 3]
    taps = np.tensordot(np.linalg.pinv(np.kron(one, one) if axes == 2 else one), factors.astype(np.float64), 1)
    whole = taps.reshape(*[KERNEL] * axes, *kernel[:-axes], -1, factors.shape[-1])
    return np.moveaxis(whole, range(axes), range(len(kernel) - axes, len(kernel)))


def _input_factors(x: te.Tensor, dtype: str, filtering: Filtering, axis: int, tiles: ir.Expr, number: int) -> te.Tensor:
    """[.., size, *factors, c] -> [.., tiles, tile, *factors, c] behind `axis`, for the `number`th of the axes."""
    shape = [*x.shape[:axis], tiles, *x.shape[axis + 1 : len(x.shape) - 1 - number], filtering.tile]
    shape += x.shape[-1 - number :]
    place = len(x.shape) - 1 - number  # of the factors in the result

    def factor(*at: ir.Expr) -> ir.Expr:
        rest, first = [*at[axis + 1 : place], *at[place + 1 :]], at[axis] * filtering.results
        elements = [x[(*at[:axis], first + k, *rest)].astype(dtype) for k in range(filtering.tile)]
        return _chosen(at[place], filtering.of_input(elements))

    return te.compute(shape, factor, name="input_factors", attrs={"halo.part": f"{INPUT}{number}"})


def _result_rows(products: te.Tensor, filtering: Filtering) -> te.Tensor:
    """[.., tile, tile, m] -> [.., results, tile, m]."""
    shape = [*products.shape[:-3], filtering.results, *products.shape[-2:]]

    def row(*at: ir.Expr) -> ir.Expr:
        *outer, i, j, m = at
        return _chosen(i, filtering.of_products([products[(*outer, k, j, m)] for k in range(filtering.tile)]))

    return te.compute(shape, row, name="result_rows", attrs={"halo.part": _ROWS})


def _chosen(at: ir.Expr, values: Sequence[ir.Expr]) -> ir.Expr:
    """values[at] of an index that is known when the program runs."""
    chosen = values[-1]
    for number in range(len(values) - 2, -1, -1):
        chosen = tirx.Select(at == number, values[number], chosen)
    return chosen
