"""Rotary position embedding.

Shapes
    x [b, s, h, d], d even   positions [s] or [b, s] integer   cos, sin [p, d/2]   ->   y [b, s, h, d]
Computation
    c = cos[positions, i], n = sin[positions, i] for the pair i < d/2
    half         y[i] = x[i] c - x[i + d/2] n,   y[i + d/2] = x[i + d/2] c + x[i] n
    interleaved  the same on the pairs (x[2i], x[2i + 1])
    turned       only so many heads, the first; the others stay: queries and keys of a joined projection (0: all)
Lifts
    x * cos(f) + rotated(x) * sin(f), f = concat(a, a), x [b, h, s, d] or [b, s, h, d]   (see `_rotary_lift`)
Rejects
    an odd head dimension; tables of another width than d/2; cos and sin of different shapes
Numerics
    the tables are parameters, computed in float64 (`rotary_tables`), so no angle is ever rounded to float32.
    A position outside 0..p-1 is clamped, as halo.embedding clamps ids.
References
    arXiv:2104.09864
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ._rotary_lift import rotary_lifts
from .operator import Lift, Operator, clamped, f32, same_shape


class Rotary(Operator):
    """Rotate pairs of channels by an angle proportional to the position."""

    name = "rotary"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        if len(call.args) != 4:
            raise ValueError(f"halo.rotary: takes x, positions, cos and sin, got {len(call.args)} arguments")
        x, positions, cos, sin = (arg.ty for arg in call.args)
        shaped = x.ndim == 4 and positions.ndim in (1, 2) and cos.ndim == 2
        if not shaped or 2 * int(cos.shape.values[1]) != int(x.shape.values[3]):
            raise ValueError(
                "halo.rotary: expected x [b, s, h, d], positions [s] or [b, s] and tables [p, d/2], "
                f"got {x}, {positions} and {cos}"
            )
        if not same_shape(cos.shape.values, sin.shape.values):
            raise ValueError(f"halo.rotary: cos and sin must have one shape, got {cos} and {sin}: cut both alike")
        return x

    @staticmethod
    def compute(
        x: te.Tensor, positions: te.Tensor, cos: te.Tensor, sin: te.Tensor, *, interleaved: bool, turned: int = 0
    ) -> te.Tensor:
        half = int(x.shape[3]) // 2

        def value(b, s, h, j):
            if interleaved:
                pair, first, partner = j // 2, j % 2 < 1, j + 1 - 2 * (j % 2)
            else:
                pair, first, partner = j % half, j < half, (j + half) % (2 * half)
            position = positions[s] if len(positions.shape) == 1 else positions[b, s]
            row = clamped(position, cos.shape[0])
            other = f32(x[b, s, h, partner]) * f32(sin[row, pair])
            # A sign, not a choice between -other and other, whose places would be simplified apart: see `chosen`.
            sign = tirx.Select(first, tirx.const(-1.0, "float32"), tirx.const(1.0, "float32"))
            y = (f32(x[b, s, h, j]) * f32(cos[row, pair]) + sign * other).astype(x.dtype)
            return tirx.Select(h < turned, y, x[b, s, h, j]) if turned else y

        return te.compute(x.shape, value, name="rotary", attrs={"halo.op": "rotary"})

    @staticmethod
    def reference(
        x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool, turned: int = 0
    ) -> np.ndarray:
        lead = (1,) if positions.ndim == 1 else ()
        positions = np.clip(positions, 0, len(cos) - 1)
        c, n = (t[positions].reshape(*lead, *positions.shape, 1, t.shape[1]) for t in (cos, sin))
        first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, axis=-1)
        pairs = [first * c - second * n, second * c + first * n]
        y = np.stack(pairs, axis=-1).reshape(x.shape) if interleaved else np.concatenate(pairs, axis=-1)
        return np.where(np.arange(x.shape[2])[:, None] < turned, y, x) if turned else y

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], interleaved: bool, turned: int = 0) -> int:
        b, s, h, d = shapes[0]
        return 3 * b * s * (turned or h) * d

    @staticmethod
    def lifts() -> Sequence[Lift]:
        return rotary_lifts(Rotary.call)

    @staticmethod
    def cases():
        cos, sin = rotary_tables(40, 16, 10000.0)
        other = rotary_tables(40, 8, 500000.0)
        positions = np.random.default_rng(1).integers(0, 40, (2, 5))
        return (
            {"args": [(2, 7, 3, 16), np.arange(7), cos, sin], "attrs": {"interleaved": False}},
            {"args": [(2, 5, 3, 16), positions, cos, sin], "attrs": {"interleaved": True}},
            {"args": [(1, 5, 2, 8), np.arange(5), *other], "attrs": {"interleaved": False}},
            {"args": [(1, 5, 4, 8), np.arange(5), *other], "attrs": {"interleaved": False, "turned": 3}},
        )


def rotary_tables(positions: int, d: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [positions, d/2] float32 of the angles position * theta^(-2i/d), each rounded once from float64."""
    angle = np.outer(np.arange(positions, dtype=np.float64), theta ** (-np.arange(0, d, 2, dtype=np.float64) / d))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
