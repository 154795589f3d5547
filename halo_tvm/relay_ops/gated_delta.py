"""A linear attention that corrects what its state says of a key: the gated delta rule, token by token.

Shapes
    v [b, s, h, p]   state [b, h, n, p], lengths int32 [b] (has_state)   k, q [b, s, g, n], g divides h
    falls, beta [b, s, h]   ->   y [b, s, h, p], with a state the state; float32
Computation
    for every token i, with e = head // (h / g):
    state[j, c] = exp(falls[i]) * state[j, c]
    delta[c] = beta[i] * (v[i, c] - sum_j k[i, e, j] * state[j, c])
    state[j, c] = state[j, c] + k[i, e, j] * delta[c]
    y[i, c] = sum_j q[i, e, j] * state[j, c]
    The state is overwritten in place; `parts/kept_state` has what lengths say
Numerics
    float32, one token after the other, sums over j in order
References
    arXiv:2412.06464 (Gated DeltaNet)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from .operator import attrs_of
from .parts.kept_state import StateOperator, begun, expect, scan, scan_shapes

_STEP = """
                decay[0] = T.exp(falls[row, i, head])
                for e in {lanes}:
                    delta[e] = T.float32(0)
                    sums[e] = T.float32(0)
                for j in T.serial({states}):
                    for e in {lanes}:
                        {place} = decay[0] * {place}
                        delta[e] = delta[e] + k[row, i, head // {share}, j] * {place}
                for e in {lanes}:
                    delta[e] = beta[row, i, head] * (v[row, i, head, at + e] - delta[e])
                for j in T.serial({states}):
                    for e in {lanes}:
                        {place} = {place} + k[row, i, head // {share}, j] * delta[e]
                        sums[e] = sums[e] + q[row, i, head // {share}, j] * {place}
                for e in {lanes}:
                    y[row, i, head, at + e] = sums[e]
"""


class GatedDelta(StateOperator):
    """The gated delta rule."""

    name = "gated_delta"
    arguments = ("v", "k", "q", "falls", "beta")

    @classmethod
    def infer_type(cls, call: relax.Call) -> relax.Type:
        names = cls.names(attrs_of(call))
        shapes = scan_shapes(cls.name, names, call, values="v", keys="k")
        of_head = shapes["v"][:3]
        expect(cls.name, names, call, {**shapes, "q": shapes["k"], "falls": of_head, "beta": of_head})
        return cls.result(call)

    @classmethod
    def lowered(cls, types: Sequence[relax.TensorType], **attrs: object) -> tirx.PrimFunc:
        buffers = {"delta": "{w}", "sums": "{w}", "decay": "T.int64(1)"}
        return scan(cls.name, dict(zip(cls.names(attrs), types)), _STEP, buffers, values="v", keys="k")

    @classmethod
    def reference(cls, *args: np.ndarray, **attrs: Any) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        given = dict(zip(cls.names(attrs), args))
        v, falls, beta = (given[name] for name in ("v", "falls", "beta"))
        (b, s, h, p), n = v.shape, given["k"].shape[3]
        k, q = (np.repeat(given[name], h // given[name].shape[2], axis=2) for name in ("k", "q"))
        taking, kept, state = begun(given, (b, h, n, p))
        y = np.empty_like(v)
        for i in range(s):
            state = np.exp(falls[:, i])[:, :, None, None] * state
            delta = beta[:, i, :, None] * (v[:, i] - np.einsum("bhn,bhnp->bhp", k[:, i], state))
            state = state + k[:, i, :, :, None] * delta[:, :, None]
            y[:, i] = np.einsum("bhn,bhnp->bhp", q[:, i], state)
        y = np.where(taking, y, 0)
        return (y, np.where(taking, state, kept)) if "state" in given else y

    @staticmethod
    def flops(shapes: Sequence[tuple[int, ...]], **attrs: object) -> int:
        return 7 * int(np.prod(shapes[0])) * int(shapes[-3][3])

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        rng = np.random.default_rng(0)

        def numbers(low: float, high: float, *shape: int) -> np.ndarray:
            return rng.uniform(low, high, shape).astype("float32")

        def after(b: int, s: int, h: int, g: int, n: int) -> list[np.ndarray]:
            keys = [numbers(-0.4, 0.4, b, s, g, n) for _ in range(2)]
            return [*keys, numbers(-2.0, -0.01, b, s, h), numbers(0.0, 1.0, b, s, h)]

        lengths, state = np.array([4, 0, -1], "int32"), {"has_state": True}
        return (
            {"args": [(2, 9, 4, 20), *after(2, 9, 4, 2, 8)], "attrs": {}},
            # One token, then several; a row that begins and one that takes no part.
            {"args": [(3, 1, 4, 64), (3, 4, 16, 64), lengths, *after(3, 1, 4, 2, 16)], "attrs": state},
            {"args": [(3, 5, 4, 24), (3, 4, 16, 24), lengths, *after(3, 5, 4, 4, 16)], "attrs": state},
        )
