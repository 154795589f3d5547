"""A state space whose transition depends on the token: a state of every channel, moved from token to token.

Shapes
    x [b, s, h, p]   state [b, h, n, p], lengths int32 [b] (has_state)
    dt [b, s, h], a [h], d [h], or by channel dt [b, s, h, p], a [h, n, p], d [h, p]
    to, of [b, s, g, n], g divides h   ->   y [b, s, h, p], with a state the state; float32
Computation
    for every token i, with e = head // (h / g):
    state[j, c] = exp(dt[i, c] * a[j, c]) * state[j, c] + to[i, e, j] * dt[i, c] * x[i, c]
    y[i, c] = sum_j of[i, e, j] * state[j, c] + d[c] * x[i, c]
    The state is overwritten in place; `parts/kept_state` has what lengths say
Numerics
    float32, one token after the other, sums over j in order
References
    arXiv:2312.00752 (Mamba: `to` and `of` are its B and C, by channel), arXiv:2405.21060 (Mamba 2, by head)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from .operator import attrs_of
from .parts.kept_state import StateOperator, begun, expect, scan, scan_shapes

_STEP = """
                {decay}
                for e in {lanes}:
                    fed[e] = {dt} * x[row, i, head, at + e]
                    sums[e] = {d} * x[row, i, head, at + e]
                for j in T.serial({states}):
                    {factors}
                    for e in {lanes}:
                        {place} = {factor} * {place} + to[row, i, head // {share}, j] * fed[e]
                        sums[e] = sums[e] + of[row, i, head // {share}, j] * {place}
                for e in {lanes}:
                    y[row, i, head, at + e] = sums[e]
"""
_FACTORS = """for e in {lanes}:
                        decay[e] = T.exp(dt[row, i, head, at + e] * a[head, j, at + e])"""


class SelectiveScan(StateOperator):
    """The scan of a state space layer."""

    name = "selective_scan"
    arguments = ("x", "dt", "a", "to", "of", "d")

    @classmethod
    def infer_type(cls, call: relax.Call) -> relax.Type:
        names = cls.names(attrs_of(call))
        shapes = scan_shapes(cls.name, names, call, values="x", keys="to")
        (b, s, h, p), n = shapes["x"], shapes["to"][3]
        by_channel = call.args[names.index("dt")].ty.ndim == 4
        own = (
            {"dt": (b, s, h, p), "a": (h, n, p), "d": (h, p)} if by_channel else {"dt": (b, s, h), "a": (h,), "d": (h,)}
        )
        expect(cls.name, names, call, {**shapes, "of": shapes["to"], **own})
        return cls.result(call)

    @classmethod
    def lowered(cls, types: Sequence[relax.TensorType], **attrs: object) -> tirx.PrimFunc:
        by_name = dict(zip(cls.names(attrs), types))
        by_channel = by_name["dt"].ndim == 4
        own = {
            "dt": "dt[row, i, head, at + e]" if by_channel else "dt[row, i, head]",
            "d": "d[head, at + e]" if by_channel else "d[head]",
            "decay": "pass" if by_channel else "decay[0] = T.exp(dt[row, i, head] * a[head])",
            "factors": _FACTORS if by_channel else "pass",
            "factor": "decay[e]" if by_channel else "decay[0]",
        }
        buffers = {"fed": "{w}", "sums": "{w}", "decay": "{w}" if by_channel else "T.int64(1)"}
        return scan(cls.name, by_name, _STEP, buffers, values="x", keys="to", **own)

    @classmethod
    def reference(cls, *args: np.ndarray, **attrs: Any) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        given = dict(zip(cls.names(attrs), args))
        x, dt, a, d = (given[name] for name in ("x", "dt", "a", "d"))
        (b, s, h, p), n = x.shape, given["to"].shape[3]
        to, of = (np.repeat(given[name], h // given[name].shape[2], axis=2) for name in ("to", "of"))
        if dt.ndim == 3:
            dt, a, d = dt[..., None], a[:, None, None], d[:, None]
        taking, kept, state = begun(given, (b, h, n, p))
        y = np.empty_like(x)
        for i in range(s):
            decay = np.exp(dt[:, i, :, None] * a)
            state = decay * state + to[:, i, :, :, None] * (dt[:, i] * x[:, i])[:, :, None]
            y[:, i] = np.einsum("bhn,bhnp->bhp", of[:, i], state) + d * x[:, i]
        y = np.where(taking, y, 0)
        return (y, np.where(taking, state, kept)) if "state" in given else y

    @staticmethod
    def flops(shapes: Sequence[tuple[int, ...]], **attrs: object) -> int:
        return 5 * int(np.prod(shapes[0])) * int(shapes[-2][3])

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        rng = np.random.default_rng(0)

        def steps(*shape: int) -> np.ndarray:
            return rng.uniform(0.01, 0.9, shape).astype("float32")

        def falls(*shape: int) -> np.ndarray:
            return -rng.uniform(0.5, 4.0, shape).astype("float32")

        lengths, state = np.array([4, 0, -1], "int32"), {"has_state": True}
        groups, one = (3, 5, 2, 16), (3, 1, 2, 16)
        rows = [(2, 7, 1, 80), steps(2, 7, 1, 80), falls(1, 8, 80), (2, 7, 1, 8), (2, 7, 1, 8), (1, 80)]
        kept = [(3, 4, 1, 48), (3, 1, 8, 48), lengths, steps(3, 4, 1, 48), falls(1, 8, 48)]
        return (
            {"args": [(2, 9, 4, 20), steps(2, 9, 4), falls(4), (2, 9, 2, 8), (2, 9, 2, 8), (4,)], "attrs": {}},
            # One token, then several; a row that begins and one that takes no part.
            {
                "args": [(3, 1, 4, 64), (3, 4, 16, 64), lengths, steps(3, 1, 4), falls(4), one, one, (4,)],
                "attrs": state,
            },
            {
                "args": [(3, 5, 4, 24), (3, 4, 16, 24), lengths, steps(3, 5, 4), falls(4), groups, groups, (4,)],
                "attrs": state,
            },
            {"args": rows, "attrs": {}},
            {"args": [*kept, (3, 4, 1, 8), (3, 4, 1, 8), (1, 48)], "attrs": state},
        )
