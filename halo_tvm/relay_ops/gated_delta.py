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

from ..prim_text import prim_func
from .operator import attrs_of
from .parts.kept_state import StateOperator, begun, expect, scan_shapes, scan_words

_TEXT = """
@T.prim_func(s_tir=True, private=True)
def gated_delta({arguments}):
    {variables}
    {match}
    for task in {tasks}:
        with T.sblock("gated_delta"):
            vt = T.axis.remap("S", [task])
            T.reads({reads})
            T.writes({writes})
            T.sblock_attr({{"halo.op": "gated_delta"}})
            {held}
            delta = T.alloc_buffer(({w},), "float32", scope="local")
            sums = T.alloc_buffer(({w},), "float32", scope="local")
            decay = T.alloc_buffer((T.int64(1),), "float32", scope="local")
            m: T.let[T.int64] = vt // {tasks_of_row}
            a: T.let[T.int64] = vt // {blocks} % {h}
            at: T.let[T.int64] = vt % {blocks} * {w}
            if {begins}:
                for j in T.serial({states}):
                    for e in {lanes}:
                        {place} = T.float32(0)
            for i in T.serial({steps}):
                decay[0] = T.exp(falls[m, i, a])
                for e in {lanes}:
                    delta[e] = T.float32(0)
                    sums[e] = T.float32(0)
                for j in T.serial({states}):
                    for e in {lanes}:
                        {place} = decay[0] * {place}
                        delta[e] = delta[e] + k[m, i, a // {share}, j] * {place}
                for e in {lanes}:
                    delta[e] = beta[m, i, a] * (v[m, i, a, at + e] - delta[e])
                for j in T.serial({states}):
                    for e in {lanes}:
                        {place} = {place} + k[m, i, a // {share}, j] * delta[e]
                        sums[e] = sums[e] + q[m, i, a // {share}, j] * {place}
                for e in {lanes}:
                    y[m, i, a, at + e] = sums[e]
            {rest}
"""
_REST = """if lengths[m] < 0:
                for i in T.serial({s}):
                    for e in {lanes}:
                        y[m, i, a, at + e] = T.float32(0)"""


class GatedDelta(StateOperator):
    """The gated delta rule."""

    name = "gated_delta"

    @classmethod
    def infer_type(cls, call: relax.Call) -> relax.Type:
        names = _names(attrs_of(call))
        shapes = scan_shapes(cls.name, names, call, values="v", keys="k")
        of_head = shapes["v"][:3]
        expect(cls.name, names, call, {**shapes, "q": shapes["k"], "falls": of_head, "beta": of_head})
        return cls.result(call)

    @classmethod
    def lowered(cls, types: Sequence[relax.TensorType], **attrs: object) -> tirx.PrimFunc:
        by_name = dict(zip(_names(attrs), types))
        words = scan_words(by_name, values="v", keys="k", row="m", head="a")
        text = _TEXT.format(**words, rest=_REST.format(**words) if attrs.get("has_state") else "pass")
        return prim_func(text)

    @staticmethod
    def reference(*args: np.ndarray, **attrs: Any) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        given = dict(zip(_names(attrs), args))
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


def _names(attrs: dict[str, Any]) -> list[str]:
    state = ["state", "lengths"] if attrs.get("has_state") else []
    return ["v", *state, "k", "q", "falls", "beta"]
