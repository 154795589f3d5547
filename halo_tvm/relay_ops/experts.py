"""Multiplication of every row with the weights of the experts that it is sent to.

Shapes
    x [r, k] float32, or [r, top, k]: a row of its own for each expert   ids [r, top] int32
    weight of e experts, by `layout`
        "nk"      [e, n, k] float32
        "packed"  as `halo.linear` or, with scales, `halo.linear_groups` has it of the e * panels * nr columns of all
                  experts side by side, each filled up with zeros to panels = ceil(n/nr) whole panels
    scale, least as of `halo.linear_groups`, where `bits` is 8 or 4   bias [e, n] float32 (optional)
    ->   y [r, top, n] float32
Computation
    y[i, t, j] = sum_k x[i, (t,) k] * weight(ids[i, t], j, k) + bias[ids[i, t], j]
Lifts
    none: a model's definition calls it
Rejects
    none
Numerics
    as `halo.linear` and `halo.linear_groups`. An id outside 0..e-1 is clamped: no kernel reads foreign memory
References
    arXiv:1701.06538
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import ir, relax, te

from .. import weight_groups
from ..weight_groups import group_grid, group_pack
from .linear_groups import group_value
from .operator import Operator, attrs_of, clamped, f32, same_dimension
from .parts.packed_weight import packed_at, unpacked


class Experts(Operator):
    """x @ the weights of the chosen experts."""

    name = "experts"
    fusible = False

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:  # type: ignore[override]
        attrs: dict[str, Any] = attrs_of(call)
        x, ids, weight, *more = (arg.ty for arg in call.args)
        beside = _beside(attrs.get("bits", 0), attrs.get("least", False))
        rows_fit = x.ndim in (2, 3) and ids.ndim == 2 and same_dimension(x.shape.values[0], ids.shape.values[0])
        if rows_fit and x.ndim == 3:
            rows_fit = same_dimension(x.shape.values[1], ids.shape.values[1])
        if not rows_fit or (str(x.dtype), str(ids.dtype)) != ("float32", "int32"):
            raise ValueError(
                f"halo.experts: expected float32 x [rows(, top), k] and int32 ids [rows, top], got {x} and {ids}"
            )
        rank = {"nk": (3,), "packed": (4, 5)}[attrs["layout"]]
        if weight.ndim not in rank or len(more) not in (beside, beside + 1):
            raise ValueError(
                f"halo.experts: expected a weight of rank {' or '.join(map(str, rank))}, {beside} tensors of groups "
                f"and at most one bias, got {weight} and {len(more)} more"
            )
        e, n = int(attrs["experts"]), int(attrs["n"])
        columns = math.prod(int(weight.shape.values[at]) for at in ((0, 1) if weight.ndim == 3 else (1, 3)))
        if columns % e or columns // e < n or (weight.ndim == 3 and columns != e * n):
            raise ValueError(f"halo.experts: expected the {n} columns of {e} experts, got {weight}")
        return relax.TensorType([*ids.shape.values, n], "float32")

    @staticmethod
    def compute(
        x: te.Tensor,
        ids: te.Tensor,
        weight: te.Tensor,
        *more: te.Tensor,
        layout: str,
        n: int,
        experts: int,
        bits: int = 0,
        least: bool = False,
    ) -> te.Tensor:
        beside = _beside(bits, least)
        k = te.reduce_axis((0, x.shape[-1]), "k")
        if layout == "packed":
            nr, panels = int(weight.shape[3]), int(weight.shape[1]) // experts

        def at(e: ir.Expr, j: ir.Expr) -> ir.Expr:
            if layout == "nk":
                return weight[e, j, k]
            if bits:
                return group_value(weight, more[0], more[1] if least else None, bits, k, e * (panels * nr) + j)
            return packed_at(weight, k, e * panels + j // nr, j % nr)

        def product(i: ir.Expr, t: ir.Expr, j: ir.Expr) -> ir.Expr:
            row = x[i, k] if len(x.shape) == 2 else x[i, t, k]
            value = at(clamped(ids[i, t], experts), j)
            return te.sum(row * (value if bits else f32(value)), axis=k)

        shape = [*ids.shape, n]
        out = te.compute(shape, product, name="experts", attrs={"halo.op": "experts"})
        if len(more) == beside:
            return out
        bias = more[-1]
        return te.compute(shape, lambda i, t, j: out[i, t, j] + bias[clamped(ids[i, t], experts), j], name="bias")

    @staticmethod
    def reference(
        x: np.ndarray,
        ids: np.ndarray,
        weight: np.ndarray,
        *more: np.ndarray,
        layout: str,
        n: int,
        experts: int,
        bits: int = 0,
        least: bool = False,
    ) -> np.ndarray:
        beside = _beside(bits, least)
        if layout == "packed":
            columns = weight.shape[1] * weight.shape[3]
            if bits:
                kn = weight_groups.unpacked(weight, more[0], more[1] if least else None, bits=bits, n=columns)
            else:
                kn = unpacked(weight, columns)
            weight = kn.T.reshape(experts, -1, x.shape[-1])[:, :n]
        ids = np.clip(ids, 0, experts - 1)
        y = np.empty((*ids.shape, n), x.dtype)
        for i, t in np.ndindex(*ids.shape):
            row = x[i] if x.ndim == 2 else x[i, t]
            y[i, t] = weight[ids[i, t]].astype(x.dtype) @ row
        return y + more[-1][ids] if len(more) > beside else y

    @staticmethod
    def flops(
        shapes: list[tuple[int, ...]], layout: str, n: int, experts: int, bits: int = 0, least: bool = False
    ) -> int:
        return 2 * int(np.prod(shapes[1])) * shapes[0][-1] * n

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        import ml_dtypes  # a dependency of TVM

        rng = np.random.default_rng(0)

        def ids(rows: int, top: int, e: int) -> np.ndarray:
            return np.argsort(rng.random((rows, e)), axis=-1)[:, :top].astype(np.int32)

        pairs = rng.standard_normal((1, 3 * 2, 16, 16, 2)).astype(ml_dtypes.bfloat16)
        nk: dict[str, object] = {"layout": "nk", "n": 20, "experts": 3}
        packed = {**nk, "layout": "packed"}
        out_of_range = np.array([[-1, 7], [0, 2]], np.int32)
        return (
            {"args": [(5, 24), ids(5, 2, 3), (3, 20, 24)], "attrs": nk},
            {"args": [(5, 2, 24), ids(5, 2, 3), (3, 20, 24), (3, 20)], "attrs": nk},
            {"args": [(2, 24), out_of_range, (3, 20, 24)], "attrs": nk},
            {"args": [(29, 32), ids(29, 2, 3), (2, 3 * 2, 16, 16), (3, 20)], "attrs": packed},
            {"args": [(1, 2, 32), ids(1, 2, 3), (1, 3 * 2, 32, 16)], "attrs": packed},
            {"args": [(9, 32), ids(9, 2, 3), pairs], "attrs": packed},
            _in_groups(rng, ids(9, 2, 3), bits=8, least=False),
            _in_groups(rng, ids(9, 2, 3), bits=4, least=True),
        )


def _beside(bits: int, least: bool) -> int:
    """Tensors that belong to a weight in groups."""
    return (2 if least else 1) if bits else 0


def _in_groups(rng: np.random.Generator, ids: np.ndarray, *, bits: int, least: bool) -> dict[str, object]:
    experts, n, k, nr = 3, 32, 64, 16
    # Rows on a grid of 127 steps, so that rounding them loses nothing.
    x = rng.integers(-127, 128, (len(ids), k)).astype(np.float32)
    x[:, ::32] = 127
    weight = rng.standard_normal((experts * n, k)).astype(np.float32)
    how: dict[str, Any] = {"layout": "nk", "group": 32, "nr": nr, "bits": bits}
    grid = group_grid(weight, **how, least=least, search=False).astype(np.float16)
    attrs = {"layout": "packed", "n": n, "experts": experts, "bits": bits, "least": least}
    return {"args": [x / 127, ids, group_pack(weight, grid, **how), *grid], "attrs": attrs}
