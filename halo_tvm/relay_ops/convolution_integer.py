"""Convolution of 8-bit integers, exact integers out: what quantised convolutions are made of.

Shapes
    x [n, c, *space] uint8   zero [] uint8: what x holds for 0, inside and around it
    weight [m, c, *kernel] int8   ->   y [n, m, *windows] int32
Computation
    y[n, m, o] = sum_{c, k} (int32(x[n, c, o * strides + k * dilations - pads]) - zero) * int32(weight[m, c, k])
    outside of the input x is `zero`; `pads` are the beginnings of all axes, then their ends
Lifts
    none: importers build it; scales, biases and the way back to 8 bits are element-wise neighbours
Rejects
    none
Numerics
    exact: |sum| <= 255 * 128 * c * prod(kernel), which fits int32 up to 65000 products
References
    arXiv:1712.05877
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, te

from ._operator import Operator, attrs_of
from ._windows import axes_of, padded, reach, window_sizes
from .convolution import Convolution


class ConvolutionInteger(Operator):
    """Sliding windows of bytes times a kernel of bytes, in int32."""

    name = "convolution_integer"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        (x, zero, weight), attrs = (arg.ty for arg in call.args), attrs_of(call)
        if (
            [str(ty.dtype) for ty in (x, zero, weight)] != ["uint8", "uint8", "int8"]
            or zero.ndim
            or weight.ndim != x.ndim
        ):
            raise ValueError(
                "halo.convolution_integer: expected x of uint8, one zero point of uint8 and a weight of int8 with the "
                f"rank of x, got {x}, {zero} and {weight}"
            )
        outer, channels, *kernel = (int(d) for d in weight.shape.values)
        if not tvm.sym.Analyzer().can_prove_equal(x.shape.values[1], channels):
            raise ValueError(f"halo.convolution_integer: expected the channels of {x} in the weight, got {weight}")
        windows = window_sizes(x.shape.values[2:], kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
        return relax.TensorType([x.shape.values[0], outer, *windows], "int32")

    @staticmethod
    def compute(
        x: te.Tensor,
        zero: te.Tensor,
        weight: te.Tensor,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
    ) -> te.Tensor:
        outer, channels, *kernel = (int(d) for d in weight.shape)
        axes = range(2, len(x.shape))
        windows = window_sizes(list(x.shape[2:]), kernel, strides, dilations, pads)
        source = padded(x, axes, pads, zero[()], reach(windows, kernel, strides, dilations))
        c, ks = te.reduce_axis((0, channels), "c"), axes_of(kernel)

        def product(n, m, *place):
            at = [o * s + k * d for o, k, s, d in zip(place, ks, strides, dilations)]
            centred = source[(n, c, *at)].astype("int32") - zero[()].astype("int32")
            return te.sum(centred * weight[(m, c, *ks)].astype("int32"), axis=[c, *ks])

        shape = [x.shape[0], outer, *windows]
        return te.compute(shape, product, name="convolution_integer", attrs={"halo.op": "convolution_integer"})

    @staticmethod
    def reference(x: np.ndarray, zero: np.ndarray, weight: np.ndarray, **attrs) -> np.ndarray:
        # Padding is 0 after the zero point is taken off; float64 holds these sums exactly.
        centred = x.astype(np.float64) - zero
        y = Convolution.reference(centred, weight.astype(np.float64), layout="first", groups=1, **attrs)
        return y.astype(np.int32)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], strides, dilations, pads) -> int:
        return Convolution.flops([shapes[0], shapes[2]], "first", strides, dilations, pads, 1)

    @staticmethod
    def cases():
        rng = np.random.default_rng(0)

        def case(x: tuple[int, ...], weight: tuple[int, ...], zero: int, **attrs):
            args = [
                rng.integers(0, 256, x).astype("uint8"),
                np.array(zero, "uint8"),
                rng.integers(-128, 128, weight).astype("int8"),
            ]
            return {"args": args, "attrs": attrs}

        return (
            case((3, 4, 9, 11), (6, 4, 3, 2), 7, strides=(1, 2), dilations=(1, 1), pads=(1, 0, 2, 1)),
            case((2, 3, 17), (5, 3, 4), 255, strides=(3,), dilations=(2,), pads=(2, 3)),
        )
