"""A short convolution over time, by channel, that sees no later token; the inputs behind its window may be kept.

Shapes
    x [b, s, c]   state [b, k - 1, c], lengths int32 [b] (has_state)   weight [k, c]   bias [c] (has_bias), float32
    ->   y [b, s, c], with a state the state
Computation
    z[n] = state[n] and x[n] one behind the other, [k - 1 + s, c]; zeros for the state of a row without tokens
    y[n, i, e] = act(bias[e] + sum_j weight[j, e] * z[n, i + j, e])
    state[n] = the last k - 1 rows of z[n], in place; `parts/kept_state` has what lengths say
Numerics
    sums in float32, the oldest input first
References
    the short convolutions of arXiv:2312.00752 (Mamba) and of LFM2, where act is silu or none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..prim_text import prim_func
from .operator import attrs_of, shaped
from .parts.kept_state import LANES, TASKS, StateOperator, begun, expect, lanes_of, marked, size_text

ACTIVATIONS = ("", "silu")
_TEXT = """
@T.prim_func(s_tir=True, private=True)
def causal_convolution(p_x: T.handle, {arguments} p_weight: T.handle, {bias_argument} p_y: T.handle):
    {variables}
    x = T.match_buffer(p_x, ({b}, {s}, {c}), "float32")
    {match}
    weight = T.match_buffer(p_weight, ({k}, {c}), "float32")
    {bias}
    y = T.match_buffer(p_y, ({b}, {s}, {c}), "float32")
    for task in {tasks}:
        with T.sblock("causal_convolution"):
            vt = T.axis.remap("S", [task])
            T.reads({reads})
            T.writes({writes})
            T.sblock_attr({{"halo.op": "causal_convolution"}})
            window = T.alloc_buffer(({k}, {w}), "float32", scope="local")
            sums = T.alloc_buffer(({w},), "float32", scope="local")
            n: T.let[T.int64] = vt // {blocks}
            at: T.let[T.int64] = vt % {blocks} * {w}
            for j in T.serial({k}):
                for e in {lanes}:
                    window[j, e] = T.float32(0)
            {begin}
            for i in T.serial({s}):
                for e in {lanes}:
                    window[{last}, e] = x[n, i, at + e]
                    sums[e] = {first}
                for j in T.serial({k}):
                    for e in {lanes}:
                        sums[e] = sums[e] + weight[j, at + e] * window[j, e]
                for e in {lanes}:
                    y[n, i, at + e] = {value}
                for j in T.serial({last}):
                    for e in {lanes}:
                        window[j, e] = window[j + T.int64(1), e]
            {end}
"""
_BEGIN = """if lengths[n] > 0:
                for j in T.serial({last}):
                    for e in {lanes}:
                        window[j, e] = state[n, j, at + e]"""
_END = """if lengths[n] >= 0:
                for j in T.serial({last}):
                    for e in {lanes}:
                        state[n, j, at + e] = window[j, e]"""


class CausalConvolution(StateOperator):
    """A depthwise convolution over the tokens so far."""

    name = "causal_convolution"
    arguments = ("x", "weight", "bias")

    @classmethod
    def infer_type(cls, call: relax.Call) -> relax.Type:
        attrs = attrs_of(call)
        unknown = attrs.keys() - {"layer", "has_state", "has_bias", "activation"}
        if unknown or attrs.get("activation", "") not in ACTIVATIONS:
            raise ValueError(f"halo.causal_convolution: has_state, has_bias and activation expected, got {attrs}")
        names = cls.names(attrs)
        x, weight = call.args[0].ty, call.args[names.index("weight")].ty
        if not shaped(x) or not shaped(weight):
            raise ValueError(f"halo.causal_convolution: tensors of known shapes expected, got {x} and {weight}")
        if (x.ndim, weight.ndim) != (3, 2):
            raise ValueError(f"halo.causal_convolution: x [b, s, c] and weight [k, c] expected, got {x} and {weight}")
        (b, _, c), k = x.shape.values, int(weight.shape.values[0])
        shapes = {"x": x.shape.values, "state": (b, k - 1, c), "lengths": (b,), "weight": (k, c), "bias": (c,)}
        expect(cls.name, names, call, shapes)
        return cls.result(call)

    @classmethod
    def lowered(cls, types: Sequence[relax.TensorType], **attrs: object) -> tirx.PrimFunc:
        by_name = dict(zip(cls.names(attrs), types))
        (b, s, c), k = by_name["x"].shape.values, int(by_name["weight"].shape.values[0])
        b_text, s_text, c = size_text(b, "b"), size_text(s, "s"), int(c)
        w = lanes_of(c)
        state, bias, blocks = bool(attrs.get("has_state")), bool(attrs.get("has_bias")), f"T.int64({c // w})"
        words = {"last": f"T.int64({k - 1})", "lanes": marked(f"T.int64({w})", LANES)}
        zero, whole = "T.int64(0):", f"T.int64(0):T.int64({c})"
        kept = f"state[{zero}{b_text}, {zero}{words['last']}, {whole}]"
        text = _TEXT.format(
            **words,
            b=b_text,
            s=s_text,
            c=f"T.int64({c})",
            k=f"T.int64({k})",
            w=f"T.int64({w})",
            blocks=blocks,
            tasks=marked(f"{b_text} * {blocks}", TASKS),
            variables="; ".join(f"{v} = T.int64()" for v, t in (("b", b_text), ("s", s_text)) if v == t) or "pass",
            arguments="p_state: T.handle, p_lengths: T.handle, " if state else "",
            bias_argument="p_bias: T.handle, " if bias else "",
            match=f'state = T.match_buffer(p_state, ({b_text}, {words["last"]}, T.int64({c})), "float32"); '
            f'lengths = T.match_buffer(p_lengths, ({b_text},), "int32")'
            if state
            else "pass",
            bias=f'bias = T.match_buffer(p_bias, (T.int64({c}),), "float32")' if bias else "pass",
            reads=", ".join(
                [f"x[{zero}{b_text}, {zero}{s_text}, {whole}]", f"weight[{zero}T.int64({k}), {whole}]"]
                # That the state is read, too, would keep TVM's rule for GPUs from taking the block.
                + ([f"lengths[{zero}{b_text}]"] if state else [])
                + ([f"bias[{whole}]"] if bias else [])
            ),
            writes=", ".join([f"y[{zero}{b_text}, {zero}{s_text}, {whole}]"] + ([kept] if state else [])),
            first="bias[at + e]" if bias else "T.float32(0)",
            value="sums[e] / (T.float32(1) + T.exp(-sums[e]))" if attrs.get("activation") else "sums[e]",
            begin=_BEGIN.format(**words) if state else "pass",
            end=_END.format(**words) if state else "pass",
        )
        return prim_func(text)

    @classmethod
    def reference(cls, *args: np.ndarray, **attrs: Any) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        given = dict(zip(cls.names(attrs), args))
        x, weight = given["x"], given["weight"]
        k, s = len(weight), x.shape[1]
        taking, kept, before = begun(given, (len(x), k - 1, x.shape[2]))
        z = np.concatenate([before, x], axis=1)
        y = sum(z[:, j : j + s] * weight[j] for j in range(k)) + given.get("bias", 0)
        if attrs.get("activation"):
            y = y / (1 + np.exp(-y))
        if "state" not in given:
            return y
        return y, np.where(taking, z[:, s:], kept)

    @classmethod
    def flops(cls, shapes: Sequence[tuple[int, ...]], **attrs: object) -> int:
        return 2 * int(np.prod(shapes[0])) * int(shapes[cls.names(attrs).index("weight")][0])

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        lengths = np.array([4, 0, -1], "int32")
        state = {"has_state": True}
        return (
            {"args": [(2, 9, 40), (3, 40)], "attrs": {}},
            # Fewer tokens than the window, then more; a row that begins and one that takes no part.
            {"args": [(3, 1, 64), (3, 3, 64), lengths, (4, 64)], "attrs": state},
            {"args": [(3, 2, 64), (3, 3, 64), lengths, (4, 64), (64,)], "attrs": {**state, "has_bias": True}},
            {
                "args": [(3, 7, 37), (3, 2, 37), lengths, (3, 37), (37,)],
                "attrs": {**state, "has_bias": True, "activation": "silu"},
            },
        )
