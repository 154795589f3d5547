"""Convolution of 8-bit integers, exact integers out: what quantised convolutions are made of.

Shapes
    zero [] uint8: what x holds for 0, inside and around it
    layout "first"    x [n, c, *space] uint8   weight [m, c, *kernel] int8   ->   y [n, m, *windows] int32
    layout "packed"   x [n, *space, c] uint8   weight [1, panels, prod(kernel) * c' / 4, nr, 4] int8   sums [m] int32
                      ->   y [n, *windows, m] int32;   c' is c in whole groups of four, `m` and `kernel` are attributes
Computation
    y[n, m, o] = sum_{c, k} (int32(x[n, c, o * strides + k * dilations - pads]) - zero) * int32(weight[m, c, k])
    outside of the input x is `zero`; `pads` are the beginnings of all axes, then their ends
    packed: sum_{c, k} int32(x) * int32(weight) - zero * sums[m],   sums[m] = sum_{c, k} weight[m, c, k]
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

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import tvm
from tvm import ir, relax, te, tirx

from ..params import pack_int8, sums_int8
from .convolution import Convolution
from .linear_w8a8 import GROUP, NARROW
from .operator import Operator, attrs_of
from .parts.windows import axes_of, described, padded, reach, spatial_axes, window_sizes


class ConvolutionInteger(Operator):
    """Sliding windows of bytes times a kernel of bytes, in int32."""

    name = "convolution_integer"
    takes_stages = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        types, attrs = [arg.ty for arg in call.args], attrs_of(call)
        packed = attrs["layout"] == "packed"
        x, _, weight, *sums = types
        dtypes = ["uint8", "uint8", "int8", *(["int32"] if packed else [])]
        if [str(ty.dtype) for ty in types] != dtypes or types[1].ndim or weight.ndim != (5 if packed else x.ndim):
            raise ValueError(
                "halo.convolution_integer: expected x of uint8, one zero point of uint8 and a weight of int8 with the "
                f"rank of x, or a packed one and its sums, got {', '.join(map(str, types))}"
            )
        kernel, channels, outer = _parts(weight.shape.values, attrs)
        where = -1 if packed else 1
        given = x.shape.values[where]
        given = tirx.floordiv(given + GROUP - 1, GROUP) * GROUP if packed else given
        if not tvm.sym.Analyzer().can_prove_equal(given, channels):
            raise ValueError(f"halo.convolution_integer: expected the channels of {x} in the weight, got {weight}")
        space = [x.shape.values[a] for a in spatial_axes(x.ndim, "last" if packed else "first")]
        windows = window_sizes(space, kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
        shape = [*windows, outer] if packed else [outer, *windows]
        return relax.TensorType([x.shape.values[0], *shape], "int32")

    @staticmethod
    def compute(
        x: te.Tensor,
        zero: te.Tensor,
        weight: te.Tensor,
        *sums: te.Tensor,
        layout: str,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        kernel: Sequence[int] | None = None,
        m: int | None = None,
        narrow: bool = False,
    ) -> te.Tensor:
        packed = layout == "packed"
        kernel, wide, outer = _parts(weight.shape, {"layout": layout, "kernel": kernel, "m": m})
        axes = spatial_axes(len(x.shape), "last" if packed else "first")
        windows = window_sizes([x.shape[a] for a in axes], kernel, strides, dilations, pads)
        source = padded(x, axes, pads, zero[()], reach(windows, kernel, strides, dilations))
        c, ks = te.reduce_axis((0, x.shape[-1 if packed else 1]), "c"), axes_of(kernel)
        attrs = {
            "halo.op": "convolution_integer",
            **({NARROW: 1} if narrow else {}),
            **described(kernel, strides, dilations, pads),
        }

        def at(place: Sequence[ir.Expr]) -> list[ir.Expr]:
            return [o * s + k * d for o, k, s, d in zip(place, ks, strides, dilations)]

        if not packed:

            def product(n, m, *place):
                centred = source[(n, c, *at(place))].astype("int32") - zero[()].astype("int32")
                return te.sum(centred * weight[(m, c, *ks)].astype("int32"), axis=[c, *ks])

            return te.compute([x.shape[0], outer, *windows], product, name="convolution_integer", attrs=attrs)

        def sum_of_bytes(n, *rest):
            place, column = rest[:-1], rest[-1]
            depth, nr = tirx.const(0, "int64"), int(weight.shape[3])
            for k, size in zip(ks, kernel):
                depth = depth * size + k
            depth = depth * wide + c
            factor = weight[0, column // nr, depth // GROUP, column % nr, depth % GROUP]
            return te.sum(source[(n, *at(place), c)].astype("int32") * factor.astype("int32"), axis=[*ks, c])

        shape = [x.shape[0], *windows, outer]
        total = te.compute(shape, sum_of_bytes, name="convolution_integer", attrs=attrs)
        return te.compute(shape, lambda *i: total[i] - zero[()].astype("int32") * sums[0][i[-1]], name="centred")

    @staticmethod
    def reference(
        x: np.ndarray,
        zero: np.ndarray,
        weight: np.ndarray,
        *sums: np.ndarray,
        layout: str,
        kernel: Sequence[int] | None = None,
        m: int | None = None,
        narrow: bool = False,
        **attrs: Sequence[int],
    ) -> np.ndarray:
        # Padding is 0 after the zero point is taken off; float64 holds these sums exactly.
        centred = x.astype(np.float64) - zero
        if layout == "packed":
            columns = weight[0].transpose(1, 3, 0, 2).reshape(*kernel, -1, weight.shape[1] * weight.shape[3])
            weight = columns[..., : x.shape[-1], :m]
        layout = "last" if layout == "packed" else "first"
        y = Convolution.reference(centred, weight.astype(np.float64), layout=layout, groups=1, **attrs)
        return y.astype(np.int32)

    @staticmethod
    def flops(
        shapes: list[tuple[int, ...]], layout: str, strides, dilations, pads, kernel=None, m=None, narrow: bool = False
    ) -> int:
        if layout == "packed":
            channels, panels, nr = shapes[0][-1], shapes[2][1], shapes[2][3]
            return Convolution.flops([shapes[0], (*kernel, channels, panels * nr)], "last", strides, dilations, pads, 1)
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
            if attrs.setdefault("layout", "first") == "packed":
                m, channels, *attrs["kernel"] = weight
                matrix = np.zeros((*attrs["kernel"], -(-channels // GROUP) * GROUP, m), np.int8)
                matrix[..., :channels, :] = np.moveaxis(args[2], (0, 1), (-1, -2))
                matrix = matrix.reshape(-1, m)
                args[2:] = [pack_int8(matrix, nr=16), sums_int8(matrix)]
                attrs["m"] = m
            return {"args": args, "attrs": attrs}

        around = {"strides": (1, 2), "dilations": (2, 1), "pads": (1, 0, 2, 1)}
        return (
            case((3, 9, 11, 6), (21, 6, 3, 2), 7, layout="packed", **around),
            case((3, 4, 9, 11), (6, 4, 3, 2), 7, strides=(1, 2), dilations=(1, 1), pads=(1, 0, 2, 1)),
            case((2, 3, 17), (5, 3, 4), 255, strides=(3,), dilations=(2,), pads=(2, 3)),
        )


def _parts(shape: Sequence[ir.Expr | int], attrs: Mapping[str, object]) -> tuple[list[int], int, int]:
    """(kernel, channels of x that the weight has rows for, channels of the result)."""
    sizes = [int(d) for d in shape]
    if attrs["layout"] == "packed":
        kernel = [int(k) for k in attrs["kernel"]]
        return kernel, sizes[2] * sizes[4] // prod(kernel), int(attrs["m"])
    return sizes[2:], sizes[1], sizes[0]
