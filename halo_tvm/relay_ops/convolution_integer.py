"""Convolution of 8-bit integers, exact integers out: what quantised convolutions are made of.

Shapes
    zero [] uint8: what x holds for 0, inside and around it
    layout "first"    x [n, c, *space] uint8   weight [m, c / groups, *kernel] int8   ->   y [n, m, *windows] int32
    layout "packed"   x [n, *space, c] uint8   weight [groups, panels, prod(kernel) * c' / 4, nr, 4] int8
                      sums [m] int32   ->   y [n, *windows, m] int32
                      c' is c / groups in whole fours, and that many where groups > 1; `m` and `kernel` are attributes
                      groups may lie `abreast`, as those of `convolution`
Computation
    y[n, m, o] = sum_{c, k} (int32(x[n, group(m) * c / groups + c, o * strides + k * dilations - pads]) - zero)
                            * int32(weight[m, c, k])
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

from ..params import sums_int8
from ..weight_windows import pack_convolution_int8
from .convolution import Convolution, channel_of, packed_at, unpacked
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
        given, groups = x.shape.values[where], attrs.get("groups", 1)
        given = tirx.floordiv(given + GROUP - 1, GROUP) * GROUP if packed and groups == 1 else given
        if not tvm.sym.Analyzer().can_prove_equal(given, channels * groups) or outer % groups:
            raise ValueError(
                f"halo.convolution_integer: expected the channels of {x} in the weight, {groups} groups of them, "
                f"got {weight}"
            )
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
        groups: int = 1,
        abreast: int = 1,
        narrow: bool = False,
    ) -> te.Tensor:
        packed = layout == "packed"
        kernel, wide, outer = _parts(weight.shape, {"layout": layout, "kernel": kernel, "m": m})
        axes = spatial_axes(len(x.shape), "last" if packed else "first")
        windows = window_sizes([x.shape[a] for a in axes], kernel, strides, dilations, pads)
        source = padded(x, axes, pads, zero[()], reach(windows, kernel, strides, dilations))
        inner = x.shape[-1 if packed else 1] if groups == 1 else wide
        c, ks = te.reduce_axis((0, inner), "c"), axes_of(kernel)
        attrs = {
            "halo.op": "convolution_integer",
            **({NARROW: 1} if narrow else {}),
            **described(kernel, strides, dilations, pads, abreast),
        }

        def at(place: Sequence[ir.Expr]) -> list[ir.Expr]:
            return [o * s + k * d for o, k, s, d in zip(place, ks, strides, dilations)]

        if not packed:

            def product(n, m, *place):
                channel = channel_of(m, c, groups, wide, outer)
                centred = source[(n, channel, *at(place))].astype("int32") - zero[()].astype("int32")
                return te.sum(centred * weight[(m, c, *ks)].astype("int32"), axis=[c, *ks])

            return te.compute([x.shape[0], outer, *windows], product, name="convolution_integer", attrs=attrs)

        def sum_of_bytes(n, *rest):
            place, m = rest[:-1], rest[-1]
            channel = channel_of(m, c, groups, wide, outer)
            factor = weight[packed_at(weight, kernel, ks, c, m, wide, outer // groups, outer, abreast)]
            return te.sum(source[(n, *at(place), channel)].astype("int32") * factor.astype("int32"), axis=[*ks, c])

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
        groups: int = 1,
        abreast: int = 1,
        narrow: bool = False,
        **attrs: Sequence[int],
    ) -> np.ndarray:
        # Padding is 0 after the zero point is taken off; float64 holds these sums exactly.
        centred = x.astype(np.float64) - zero
        if layout == "packed":
            weight = unpacked(weight, groups, m, abreast).reshape(*kernel, -1, m)[..., : x.shape[-1] // groups, :]
        layout = "last" if layout == "packed" else "first"
        y = Convolution.reference(centred, weight.astype(np.float64), layout=layout, groups=groups, **attrs)
        return y.astype(np.int32)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], *, layout: str, kernel=None, m=None, groups: int = 1, **attrs) -> int:
        if layout == "packed":
            return Convolution.flops([shapes[0], (*kernel, shapes[0][-1] // groups, m)], layout="last", **attrs)
        return Convolution.flops([shapes[0], shapes[2]], layout="first", **attrs)

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
                m, _, *attrs["kernel"] = weight
                groups, abreast = attrs.get("groups", 1), attrs.get("abreast", 1)
                how = {"nr": 16} if abreast == 1 else {"nr": abreast * m // groups, "abreast": abreast}
                packed = pack_convolution_int8(args[2], groups=groups, joined=1, **how)
                args[2:] = [packed, sums_int8(args[2].reshape(m, -1).T)]
                attrs["m"] = m
            return {"args": args, "attrs": attrs}

        around = {"strides": (1, 2), "dilations": (2, 1), "pads": (1, 0, 2, 1)}
        return (
            case((3, 9, 11, 6), (21, 6, 3, 2), 7, layout="packed", **around),
            case((2, 9, 11, 16), (40, 8, 3, 2), 7, layout="packed", groups=2, **around),
            case((2, 9, 11, 24), (24, 8, 3, 2), 7, layout="packed", groups=3, abreast=2, **around),
            case((2, 6, 9, 11), (4, 3, 3, 2), 7, groups=2, **around),
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
