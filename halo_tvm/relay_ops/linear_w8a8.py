"""Multiplication of 8-bit rows with an 8-bit weight, in integers, and the way back to float32.

Shapes
    q [..., k] uint8   scale [...] float32       as `halo.quantize` makes them, zero point 128
    weight [k/kc, ceil(n/nr), kc/4, nr, 4] int8  groups of four along k, padded columns zero (params.w8_pack)
    weight_scale [n] float32   correction [n] int32   bias [n] float32 (optional)
    ->   y [..., n] float32
Computation
    acc[..., j] = sum_k int32(q[..., k]) * int32(weight(k, j))
    y[..., j] = float32(acc[..., j] + correction[j]) * (scale[...] * weight_scale[j]) + bias[j]
    correction[j] = -128 * sum_k weight(k, j) takes the zero point of q out again
Lifts
    none: the pass `quantise` makes it of halo.linear
Rejects
    none
Numerics
    the sum is exact: |acc| <= 255 * 127 * k, so k up to 66000 fits int32. Way back: one conversion, two products,
    one addition that may be contracted with a product.
References
    arXiv:1712.05877 for the correction by column sums
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te

from .operator import Operator, attrs_of, same_shape
from .parts.packed_weight import packed_at, unpacked
from .quantize import ZERO_POINT

NARROW = "halo.narrow_pairs"  # annotation of a block, see `packed_sums`
GROUP = 4  # products along k that one dot instruction adds up
DEEPEST = (2**31 - 1) // (255 * 127) // GROUP * GROUP  # k whose sum fits int32


class LinearW8A8(Operator):
    """(q - 128) @ weight, times the scales of the row and of the column, plus bias."""

    name = "linear_w8a8"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        attrs, types = attrs_of(call), [arg.ty for arg in call.args]
        if len(types) not in (5, 6) or attrs.get("layout") != "packed":
            raise ValueError(
                "halo.linear_w8a8: expected q, scale, weight, weight_scale, correction, at most one bias and "
                f'layout="packed", got {len(types)} arguments and {attrs}'
            )
        dtypes = ("uint8", "float32", "int8", "float32", "int32", "float32")
        for what, ty, dtype in zip(("q", "scale", "weight", "weight_scale", "correction", "bias"), types, dtypes):
            if str(ty.dtype) != dtype or not isinstance(ty.shape, relax.ShapeExpr):
                raise ValueError(f"halo.linear_w8a8: expected {what} of {dtype} and of known shape, got {ty}")
        q, scale, weight, *vectors = (list(ty.shape.values) for ty in types)
        n = int(attrs["n"])
        if not same_shape(q[:-1], scale):
            raise ValueError(f"halo.linear_w8a8: expected one scale a row of {types[0]}, got {types[1]}")
        if len(weight) != 5 or int(weight[4]) != GROUP or not same_shape([weight[0] * weight[2] * GROUP], q[-1:]):
            raise ValueError(
                f"halo.linear_w8a8: expected a weight [k/kc, ceil(n/nr), kc/4, nr, 4] for {types[0]}, got {types[2]}"
            )
        if int(weight[0] * weight[2]) * GROUP > DEEPEST:
            raise ValueError(f"halo.linear_w8a8: expected k of at most {DEEPEST}, whose sum fits int32, got {types[0]}")
        if not 0 <= int(weight[1] * weight[3]) - n < int(weight[3]) or any(not same_shape(v, [n]) for v in vectors):
            raise ValueError(f"halo.linear_w8a8: expected weight and vectors of n = {n} columns, got {types[2:]}")
        return relax.TensorType([*q[:-1], n], "float32")

    @staticmethod
    def compute(
        q: te.Tensor,
        scale: te.Tensor,
        weight: te.Tensor,
        weight_scale: te.Tensor,
        correction: te.Tensor,
        *bias: te.Tensor,
        layout: str,
        n: int,
    ) -> te.Tensor:
        total = packed_sums(q, weight)

        def dequantised(*i):
            j = i[-1]
            y = (total[i] + correction[j]).astype("float32") * (scale[i[:-1]] * weight_scale[j])
            return y + bias[0][j] if bias else y

        return te.compute([*q.shape[:-1], n], dequantised, name="dequantise")

    @staticmethod
    def reference(
        q: np.ndarray,
        scale: np.ndarray,
        weight: np.ndarray,
        weight_scale: np.ndarray,
        correction: np.ndarray,
        *bias: np.ndarray,
        layout: str,
        n: int,
    ) -> np.ndarray:
        # float64 holds these sums exactly and multiplies matrices faster than integers are.
        total = q.astype(np.float64) @ unpacked(weight, n).astype(np.float64) + correction
        y = total * (scale[..., None] * weight_scale)
        return y + bias[0] if bias else y

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], layout: str, n: int) -> int:
        return 2 * int(np.prod(shapes[0])) * n

    @staticmethod
    def cases():
        return (
            _case((5,), (1, 1, 6, 48, 4), 10, bias=False),
            _case((2, 3), (1, 2, 8, 48, 4), 96, bias=True),
            _case((13,), (1, 3, 17, 48, 4), 131, bias=True),
            _case((4,), (2, 2, 8, 16, 4), 29, bias=True),
            _case((1,), (1, 3, 16, 48, 4), 131, bias=False),
        )


def packed_sums(q: te.Tensor, weight: te.Tensor, narrow: bool = False) -> te.Tensor:
    """sum_k q[..., k] * weight(k, j) in int32 of a packed weight; the padding columns of its last panel, too.

    `narrow` says that most sums of two products fit 16 bits, which some instruction sets make use of.
    """
    _, panels, _, nr, _ = map(int, weight.shape)
    k = te.reduce_axis((0, q.shape[-1]), "k")

    def product(*i):
        factor = packed_at(weight, k, i[-1] // nr, i[-1] % nr)
        return te.sum(q[(*i[:-1], k)].astype("int32") * factor.astype("int32"), axis=k)

    # As in halo.linear the padding columns are computed without a bounds check, and cut off behind.
    attrs = {"halo.op": "linear_w8a8", **({NARROW: 1} if narrow else {})}
    return te.compute([*q.shape[:-1], panels * nr], product, name="linear_w8a8", attrs=attrs)


def _case(rows: tuple[int, ...], shape: tuple[int, ...], n: int, bias: bool) -> dict[str, object]:
    """Random integers over their whole range, with the correction that belongs to them."""
    rng = np.random.default_rng(n)
    chunks, panels, groups, nr, group = shape
    weight = rng.integers(-127, 128, shape).astype("int8")
    columns = weight.astype(np.int32).sum((0, 2, 4)).reshape(panels * nr)
    weight[:, -1, :, n - (panels - 1) * nr :] = 0
    args = [
        rng.integers(0, 256, (*rows, chunks * groups * group)).astype("uint8"),
        rng.uniform(0.001, 0.1, rows).astype("float32"),
        weight,
        rng.uniform(0.001, 0.1, n).astype("float32"),
        (-ZERO_POINT * columns[:n]).astype("int32"),
    ]
    if bias:
        args.append(rng.standard_normal(n).astype("float32"))
    return {"args": args, "attrs": {"layout": "packed", "n": n}}
