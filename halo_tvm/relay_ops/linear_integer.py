"""Multiplication of 8-bit rows with an 8-bit weight, exact integers out: what quantised model files are made of.

Shapes
    q [..., k] uint8   zero [] uint8: what q holds for 0
    weight, by `layout`:
        "kn"      [k, n] int8
        "packed"  [1, ceil(n/nr), k/4, nr, 4] int8 and sums [n] int32   as params.pack_int8 makes them, k padded to
                  groups of four by zeros
    ->   y [..., n] int32
Computation
    y[..., j] = sum_k (int32(q[..., k]) - zero) * int32(weight(k, j))
    packed: sum_k int32(q[..., k]) * int32(weight(k, j)) - zero * sums[j],   sums[j] = sum_k weight(k, j)
Lifts
    none: importers build it; scales, biases and the way back to 8 bits are element-wise neighbours that fusion puts
    behind the product
Rejects
    none
Numerics
    exact: |sum| <= 255 * 128 * k, so k up to 65000 fits int32
References
    arXiv:1712.05877 for the zero point by column sums
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te

from ..params import pack_int8, sums_int8
from .linear_w8a8 import GROUP, packed_sums
from .operator import Operator, attrs_of, same_shape
from .parts.packed_weight import unpacked

DEEPEST = (2**31 - 1) // (255 * 128) // GROUP * GROUP  # k whose sum fits int32
LAYOUTS = {"kn": (3, 2), "packed": (4, 5)}  # number of arguments, rank of the weight


class LinearInteger(Operator):
    """(q - zero) @ weight in int32."""

    name = "linear_integer"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        attrs, types = attrs_of(call), [arg.ty for arg in call.args]
        if (len(types), getattr(types[2], "ndim", -1)) != LAYOUTS.get(str(attrs.get("layout"))):
            raise ValueError(
                'halo.linear_integer: expected q, zero and a weight [k, n] in layout "kn", or with a packed weight and '
                f'its sums in layout "packed", got {types} and {attrs}'
            )
        for what, ty, dtype in zip(("q", "zero", "weight", "sums"), types, ("uint8", "uint8", "int8", "int32")):
            if str(ty.dtype) != dtype or not isinstance(ty.shape, relax.ShapeExpr):
                raise ValueError(f"halo.linear_integer: expected {what} of {dtype} and of known shape, got {ty}")
        q, weight, n = list(types[0].shape.values), list(types[2].shape.values), int(attrs["n"])
        packed = attrs["layout"] == "packed"
        depth = weight[2] * weight[4] if packed else weight[0]
        width = int(weight[1] * weight[3]) if packed else n
        if not same_shape([depth], q[-1:]) or int(depth) > DEEPEST or types[1].ndim:
            raise ValueError(
                f"halo.linear_integer: expected one zero point and k of at most {DEEPEST}, the same in q and weight, "
                f"got {types}"
            )
        if not n <= width or not packed and not same_shape(weight[1:], [n]):
            raise ValueError(f"halo.linear_integer: expected a weight of n = {n} columns, got {types[2]}")
        return relax.TensorType([*q[:-1], n], "int32")

    @staticmethod
    def compute(
        q: te.Tensor, zero: te.Tensor, weight: te.Tensor, *sums: te.Tensor, layout: str, n: int, narrow: bool = False
    ) -> te.Tensor:
        shape = [*q.shape[:-1], n]
        if layout == "packed":
            total = packed_sums(q, weight, narrow)
            return te.compute(shape, lambda *i: total[i] - zero[()].astype("int32") * sums[0][i[-1]], name="centred")
        k = te.reduce_axis((0, q.shape[-1]), "k")

        def product(*i):
            centred = q[(*i[:-1], k)].astype("int32") - zero[()].astype("int32")
            return te.sum(centred * weight[k, i[-1]].astype("int32"), axis=k)

        return te.compute(shape, product, name="linear_integer", attrs={"halo.op": "linear_integer"})

    @staticmethod
    def reference(
        q: np.ndarray,
        zero: np.ndarray,
        weight: np.ndarray,
        *sums: np.ndarray,
        layout: str,
        n: int,
        narrow: bool = False,
    ) -> np.ndarray:
        weight = unpacked(weight, n) if layout == "packed" else weight
        # float64 holds these sums exactly and multiplies matrices faster than integers are.
        return ((q.astype(np.float64) - zero) @ weight.astype(np.float64)).astype(np.int32)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], layout: str, n: int, narrow: bool = False) -> int:
        return 2 * int(np.prod(shapes[0])) * n

    @staticmethod
    def cases():
        return (
            _case((5,), 24, 10, 3, None),
            _case((2, 3), 32, 96, 255, 48),
            _case((13,), 68, 131, 128, 48),
            _case((1,), 64, 131, 0, 16),
        )


def _case(rows: tuple[int, ...], k: int, n: int, zero: int, nr: int | None) -> dict[str, object]:
    """Random integers over their whole range; packed in panels of `nr` columns where it is given."""
    rng = np.random.default_rng(n)
    weight = rng.integers(-128, 128, (k, n)).astype("int8")
    args = [rng.integers(0, 256, (*rows, k)).astype("uint8"), np.array(zero, "uint8"), weight]
    if nr is None:
        return {"args": args, "attrs": {"layout": "kn", "n": n}}
    args[2:] = [pack_int8(weight, nr=nr), sums_int8(weight)]
    return {"args": args, "attrs": {"layout": "packed", "n": n}}
