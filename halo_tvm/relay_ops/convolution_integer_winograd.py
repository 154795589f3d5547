"""Convolution of 8-bit integers whose last two axes, or last one, are computed in tiles of 2 results, exactly.

Shapes
    x [n, *front, h, w, c] uint8, surrounded by zero [] uint8
    weight [panels, 16, prod(front kernel) * c / 2, nr, 2] int16   sums [m] int32   ->   y [n, *front', h', w', m] int32
    along one axis: x [n, *front, w, c], 4 factors in the place of 16
    `m` is an attribute, c is even; `kernel` ends in 3, 3 (or 3), strides and dilations in ones
Computation
    that of halo.convolution_integer: y = sum_{c, k} x * kernel - zero * sums[m],   sums[m] = sum_{c, k} kernel[m, c, k]
    the weight holds the factors of every kernel, x is transformed tile by tile (`halo_tvm.winograd.INTEGERS`)
Lifts
    none: the pass `channels_last` chooses it
Rejects
    nothing: there are no lifts
Numerics
    exact for sums of up to `MOST_PRODUCTS`: four times a result then fits int32, and what overflows before that does
    not matter. Factors of bytes and of kernels are at most 1020 and 1152, of 16 bits
References
    arXiv:1509.09308
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from ..weight_windows import pack_winograd_integers
from ..winograd import INTEGERS, KERNEL
from .convolution import Convolution
from .operator import Operator, attrs_of
from .parts.tiles import flops_in_tiles, in_tiles, kernel_of_factors, type_in_tiles

PAIR = 2  # neighbouring channels, which lie side by side in the weight
MOST_PRODUCTS = (1 << 31) // (255 * 128 << 2 * INTEGERS.bits)  # of a result


class ConvolutionIntegerWinograd(Operator):
    """Sliding windows of bytes times a kernel of bytes, by minimal filtering."""

    name = "convolution_integer_winograd"
    takes_stages = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:  # type: ignore[override]
        x, _, weight, _ = types = [arg.ty for arg in call.args]
        attrs: dict[str, Any] = attrs_of(call)
        if [str(ty.dtype) for ty in types] != ["uint8", "uint8", "int16", "int32"] or weight.ndim != 5:
            raise ValueError(
                "halo.convolution_integer_winograd: expected x and a zero point of uint8, a packed weight of int16 and "
                f"sums of int32, got {', '.join(map(str, types))}"
            )
        shape = type_in_tiles("convolution_integer_winograd", x, weight, INTEGERS, attrs, attrs["m"])
        products = prod(attrs["kernel"]) * int(x.shape.values[-1])
        if products > MOST_PRODUCTS:
            raise ValueError(
                f"halo.convolution_integer_winograd: expected sums of at most {MOST_PRODUCTS} products, got {products}"
            )
        return relax.TensorType(shape, "int32")

    @staticmethod
    def compute(
        x: te.Tensor,
        zero: te.Tensor,
        weight: te.Tensor,
        sums: te.Tensor,
        *,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        kernel: Sequence[int],
        m: int,
    ) -> te.Tensor:
        _, factors, _, nr, _ = (int(size) for size in weight.shape)

        def taken(factor: ir.Expr, k: ir.Expr, column: ir.Expr) -> ir.Expr:
            pair, one = tirx.floordiv(k, PAIR), tirx.floormod(k, PAIR)
            return weight[tirx.floordiv(column, nr), factor, pair, tirx.floormod(column, nr), one]

        how = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads}
        axes, types = INTEGERS.axes(factors), ("int16", "int32")
        total = in_tiles(x, zero[()], taken, INTEGERS, axes, m, types, "convolution_integer_winograd", **how)
        return te.compute(total.shape, lambda *i: total[i] - zero[()].astype("int32") * sums[i[-1]], name="centred")

    @staticmethod
    def reference(
        x: np.ndarray,
        zero: np.ndarray,
        weight: np.ndarray,
        sums: np.ndarray,
        *,
        kernel: Sequence[int],
        m: int,
        **attrs: Any,
    ) -> np.ndarray:
        """The convolution with the weight that `weight` was made of."""
        _, count, half, nr, _ = weight.shape
        factors = weight.transpose(1, 2, 4, 0, 3).reshape(count, half * PAIR, -1)[:, :, :m]
        whole = np.round(kernel_of_factors(factors, INTEGERS, kernel))
        # Padding is 0 after the zero point is taken off; float64 holds these sums exactly.
        return Convolution.reference(x.astype(np.float64) - zero, whole, layout="last", groups=1, **attrs).astype(
            "int32"
        )

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], *, kernel: Sequence[int], m: int, **attrs: Any) -> int:
        """Of the products, four ninths of those of the convolution, or two thirds along one axis."""
        return flops_in_tiles([shapes[0], shapes[2]], INTEGERS, m, kernel=kernel, **attrs)

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        rng = np.random.default_rng(0)

        def case(
            x: tuple[int, ...], m: int, zero: int, pads: tuple[int, ...], *front: int, nr: int, stride: int = 1
        ) -> Mapping[str, object]:
            axes = len(x) - 2 - len(front)
            kernel, ones = (*front, *[KERNEL] * axes), (1,) * axes
            weight = rng.integers(-128, 128, (m, x[-1], *kernel)).astype("int8")
            args = [
                rng.integers(0, 256, x).astype("uint8"),
                np.array(zero, "uint8"),
                pack_winograd_integers(weight, axes=axes, nr=nr),
                weight.reshape(m, -1).sum(1, dtype="int32"),
            ]
            strides, dilations = (*[stride] * len(front), *ones), (1,) * len(kernel)
            attrs = {"strides": strides, "dilations": dilations, "pads": pads, "kernel": kernel, "m": m}
            return {"args": args, "attrs": attrs}

        return (
            case((2, 9, 11, 6), 10, 7, (1, 1, 1, 1), nr=8),
            case((1, 6, 10, 4), 4, 255, (0, 2, 1, 0), nr=4),
            case((1, 7, 5, 6, 4), 5, 128, (1, 1, 1, 1, 1, 1), 3, nr=8, stride=2),
            case((2, 13, 6), 6, 0, (2, 1), nr=8),
        )
