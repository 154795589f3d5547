"""Multiplication with a weight of eight or four bits in groups along k, each group with a scale of its own.

Shapes
    x [..., k] float32
    weight [1, ceil(n/nr), k/(32/bits), nr, 4] uint8   scale [ceil(n/nr), k/g, nr] float16    (weight_groups)
    least [ceil(n/nr), k/g, nr] float16                where the attribute `least` says so
    bias [n] float32 (optional)   ->   y [..., n] float32
Computation
    w(k, j) = (q(k, j) - zero) * scale(k / g, j),   zero 128 of eight bits, 8 of four, or q * scale + least
    y[..., j] = sum_k x[..., k] * w(k, j) + bias[j]
Lifts
    none: the pass `quantise` makes it of halo.linear
Rejects
    none
Numerics
    On CPUs rows are rounded, too: by groups of the same length, to 127 steps on either side of zero, so that the
    products of a group are exact in int32; sums of groups are float32, added in the order of k whatever the number of
    rows. Elsewhere the sums are float32 of the unrounded rows.
References
    arXiv:2208.07339 (groups), arXiv:2306.00978 (four bits)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from ..weight_groups import ZERO, group_grid, group_pack, unpacked
from .operator import Operator, attrs_of, f32, same_shape

BYTES = 4  # of one column in a step of the packed weight


class LinearGroups(Operator):
    """x @ (integers * scales of groups) + bias."""

    name = "linear_groups"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:  # type: ignore[override]
        attrs: dict[str, Any] = attrs_of(call)
        types = [arg.ty for arg in call.args]
        bits, n, least = int(attrs["bits"]), int(attrs["n"]), bool(attrs["least"])
        if attrs.get("layout") != "packed" or bits not in ZERO or len(types) not in (3 + least, 4 + least):
            raise ValueError(
                "halo.linear_groups: expected x, weight, scale, least where it is said, at most one bias, "
                f'bits of 4 or 8 and layout="packed", got {len(types)} arguments and {attrs}'
            )
        dtypes = ("float32", "uint8", "float16", *(["float16"] if least else []), "float32")
        for ty, dtype in zip(types, dtypes):
            if str(ty.dtype) != dtype or not isinstance(ty.shape, relax.ShapeExpr):
                raise ValueError(f"halo.linear_groups: expected a tensor of {dtype} and of known shape, got {ty}")
        x, weight, scale, *more = (list(ty.shape.values) for ty in types)
        if len(weight) != 5 or not same_shape([weight[0], weight[2] * (32 // bits), weight[4]], [1, x[-1], BYTES]):
            raise ValueError(
                f"halo.linear_groups: expected a weight [1, ceil(n/nr), k/{32 // bits}, nr, 4] for {types[0]}, "
                f"got {types[1]}"
            )
        if not 0 <= int(weight[1] * weight[3]) - n < int(weight[3]):
            raise ValueError(f"halo.linear_groups: expected a weight of n = {n} columns, got {types[1]}")
        panels, groups, nr = (int(d) for d in scale)
        depth = int(weight[2]) * (32 // bits)
        if not same_shape([panels, nr], [weight[1], weight[3]]) or depth % groups or depth // groups % 32:
            raise ValueError(
                f"halo.linear_groups: expected scales of groups of a multiple of 32 for {types[1]}, got {types[2]}"
            )
        if (least and not same_shape(more[0], scale)) or (len(more) > least and not same_shape(more[-1], [n])):
            raise ValueError(f"halo.linear_groups: expected least values as scales and a bias of {n}, got {types[3:]}")
        return relax.TensorType([*x[:-1], n], "float32")

    @staticmethod
    def compute(
        x: te.Tensor,
        weight: te.Tensor,
        scale: te.Tensor,
        *more: te.Tensor,
        layout: str,
        n: int,
        bits: int,
        least: bool,
    ) -> te.Tensor:
        k = te.reduce_axis((0, x.shape[-1]), "k")
        panels, nr = int(weight.shape[1]), int(weight.shape[3])

        def product(*i: ir.Expr) -> ir.Expr:
            value = group_value(weight, scale, more[0] if least else None, bits, k, i[-1])
            return te.sum(x[(*i[:-1], k)] * value, axis=k)

        # As in halo.linear the padding columns are computed without a bounds check, and cut off behind.
        total = te.compute(
            [*x.shape[:-1], panels * nr], product, name="linear_groups", attrs={"halo.op": "linear_groups"}
        )
        shape, bias = [*x.shape[:-1], n], more[1:] if least else more
        if bias:
            return te.compute(shape, lambda *i: total[i] + bias[0][i[-1]], name="bias")
        return total if panels * nr == n else te.compute(shape, lambda *i: total[i], name="crop")

    @staticmethod
    def reference(
        x: np.ndarray,
        weight: np.ndarray,
        scale: np.ndarray,
        *more: np.ndarray,
        layout: str,
        n: int,
        bits: int,
        least: bool,
    ) -> np.ndarray:
        y: np.ndarray = x @ unpacked(weight, scale, more[0] if least else None, bits=bits, n=n)
        bias = more[1:] if least else more
        return y + bias[0] if bias else y

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], layout: str, n: int, bits: int, least: bool) -> int:
        return 2 * int(np.prod(shapes[0])) * n

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        return (
            _case((5,), 96, 10, 48, bits=8, group=32, least=False, bias=False),
            _case((2, 3), 128, 96, 48, bits=8, group=64, least=False, bias=True),
            _case((13,), 128, 131, 48, bits=4, group=32, least=False, bias=True),
            _case((1,), 256, 131, 48, bits=4, group=128, least=False, bias=False),
            _case((4,), 64, 29, 16, bits=4, group=32, least=True, bias=True),
        )


def group_value(
    weight: te.Tensor, scale: te.Tensor, least: te.Tensor | None, bits: int, k: ir.Expr, j: ir.Expr
) -> ir.Expr:
    """float32 weight(k, j) of packed integers."""
    nr, step = int(weight.shape[3]), 32 // bits
    group = int(weight.shape[2]) * step // int(scale.shape[1])
    stored = weight[0, j // nr, k // step, j % nr, k % BYTES]
    if bits == 4:
        stored = (stored >> (k % step // BYTES * 4).astype("uint8")) & tirx.const(15, "uint8")
    at = (j // nr, k // group, j % nr)
    if least is not None:
        return stored.astype("float32") * f32(scale[at]) + f32(least[at])
    return (stored.astype("float32") - tirx.const(float(ZERO[bits]), "float32")) * f32(scale[at])


def exact_rows(rows: tuple[int, ...], k: int, group: int, seed: int) -> np.ndarray:
    """Rows that lie on a grid of 127 steps by groups, so that rounding them loses nothing."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-126, 127, (*rows, k // group, group))
    numbers[..., seed % group] = rng.choice([-127, 127], (*rows, k // group))
    steps = 2.0 ** rng.integers(-9, -5, (*rows, k // group, 1))
    return (numbers * steps).reshape(*rows, k).astype(np.float32)


def _case(
    rows: tuple[int, ...], k: int, n: int, nr: int, *, bits: int, group: int, least: bool, bias: bool
) -> dict[str, object]:
    rng = np.random.default_rng(n + bits)
    weight = rng.standard_normal((k, n), dtype=np.float32)
    how: dict[str, Any] = {"layout": "kn", "group": group, "nr": nr}
    grid = group_grid(weight, **how, bits=bits, least=least)
    packed = np.ascontiguousarray(group_pack(weight, grid, **how, bits=bits))
    args = [exact_rows(rows, k, group, n), packed, *grid, *([rng.standard_normal(n)] if bias else [])]
    args = [a.astype(np.float32) if a.dtype == np.float64 else a for a in args]
    return {"args": args, "attrs": {"layout": "packed", "n": n, "bits": bits, "least": least}}
