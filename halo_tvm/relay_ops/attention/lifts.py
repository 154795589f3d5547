"""Spellings of `halo.attention`: what exporters leave of it, as patterns over [b, h, s, d] operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.relax.dpl import DFPattern, is_const, is_op, wildcard

from ...errors import Rejected
from .._operator import Lift, Match, require_float, required_number, same_dimension

HEADS_FIRST = (0, 2, 1, 3)  # [b, s, h, d] <-> [b, h, s, d]
KEYS_LAST = (0, 1, 3, 2)  # [b, h, t, d] -> [b, h, d, t]
BOTH = (0, 2, 3, 1)  # [b, t, h, d] -> [b, h, d, t]

permute, multiply, divide, add, matmul = (
    is_op(f"relax.{name}") for name in ("permute_dims", "multiply", "divide", "add", "matmul")
)


@dataclass(frozen=True)
class Scaled:
    """An expression, or the expression times or over a constant."""

    plain: DFPattern
    factors: tuple[DFPattern, DFPattern, DFPattern]  # x * c, c * x, x / c
    pattern: DFPattern

    @staticmethod
    def of(plain: DFPattern) -> Scaled:
        constants = (is_const(), is_const(), is_const())
        factors = (multiply(plain, constants[0]), multiply(constants[1], plain), divide(plain, constants[2]))
        return Scaled(plain, constants, factors[0] | factors[1] | factors[2] | plain)

    def factor(self, bound: Match) -> float:
        """The constant that scales the expression; 1 without one."""
        for position, constant in enumerate(self.factors):
            if constant in bound:
                value = required_number(bound[constant], "the scale")
                if not math.isfinite(value) or value == 0.0:
                    raise Rejected(f"the scale must be finite and not zero, got {value}")
                return 1.0 / value if position == 2 else value
        return 1.0


class HeadsFirst:
    """A [b, h, s, d] operand, and the [b, s, h, d] expression behind it when one permutation leads there."""

    def __init__(self) -> None:
        self.inner = wildcard()
        self.permuted = permute(self.inner)
        self.other = wildcard()
        self.pattern = self.permuted | self.other

    def whole(self, bound: Match) -> relax.Expr:
        """The operand itself, [b, h, s, d]."""
        return bound[self.permuted] if self.permuted in bound else bound[self.other]

    def positions_first(self, bound: Match) -> relax.Expr:
        if self.permuted in bound and axes_of(bound[self.permuted]) == HEADS_FIRST:
            return bound[self.inner]
        return relax.op.permute_dims(self.whole(bound), list(HEADS_FIRST))


def attention_lifts(call: Callable[..., relax.Expr]) -> Sequence[Lift]:
    """The two roots of the pattern: with and without the permutation of the result; `call` makes the operator."""
    return (_lift(call, permuted_result=True), _lift(call, permuted_result=False))


def _lift(call: Callable[..., relax.Expr], permuted_result: bool) -> Lift:
    q, v = HeadsFirst(), HeadsFirst()
    key_inner = wildcard()
    key_heads_first = permute(key_inner)
    key_other = wildcard()
    key_last = permute(key_heads_first | key_other)
    q_scaled = Scaled.of(q.pattern)
    k_scaled = Scaled.of(key_last)
    dots = matmul(q_scaled.pattern, k_scaled.pattern)
    s_scaled = Scaled.of(dots)
    bias_right, bias_left = wildcard(), wildcard()
    scores = add(s_scaled.pattern, bias_right) | add(bias_left, s_scaled.pattern) | s_scaled.pattern
    softmax = is_op("relax.nn.softmax")(scores)
    mixed = matmul(softmax, v.pattern)
    pattern = permute(mixed) if permuted_result else mixed

    def keys(bound: Match) -> relax.Expr:
        """The keys as [b, t, h_kv, d]."""
        axes = axes_of(bound[key_last])
        inner = bound[key_heads_first] if key_heads_first in bound else bound[key_other]
        if axes == BOTH:
            return inner
        if axes != KEYS_LAST:
            raise Rejected(f"the keys must be transposed by {KEYS_LAST} or {BOTH}, got {axes}")
        if key_heads_first in bound and axes_of(bound[key_heads_first]) == HEADS_FIRST:
            return bound[key_inner]
        return relax.op.permute_dims(inner, list(HEADS_FIRST))

    def build(bound: Match) -> relax.Expr:
        check_softmax(bound[softmax])
        shape = dims_of(bound[dots], "the scores")
        require_float(
            q.whole(bound), bound[key_last], v.whole(bound), bound[softmax], out_dtype=bound[mixed].ty.dtype
        )
        width, kv_heads = check_operands(
            dims_of(q.whole(bound), "q"), dims_of(bound[key_last], "k"), dims_of(v.whole(bound), "v"), shape
        )
        bound.require_private("a product of the attention", dots, softmax, *([mixed] if permuted_result else []))
        if permuted_result and axes_of(bound[pattern]) != HEADS_FIRST:
            raise Rejected(f"the result must be permuted by {HEADS_FIRST}, got {axes_of(bound[pattern])}")
        operands = [q.positions_first(bound), keys(bound), v.positions_first(bound)]
        bias = bound[bias_right] if bias_right in bound else bound.get(bias_left)
        if bias is not None:
            operands.append(broadcast_bias(bias, shape))
        out = call(
            *operands,
            num_heads=int(shape[1]),
            num_kv_heads=kv_heads,
            head_dim=width,
            scale=math.prod(scaled.factor(bound) for scaled in (q_scaled, k_scaled, s_scaled)),
            has_bias=True if bias is not None else None,
        )
        return out if permuted_result else relax.op.permute_dims(out, list(HEADS_FIRST))

    name = "attention.softmax_permuted" if permuted_result else "attention.softmax"
    return Lift(name, pattern, build, benefit=21 if permuted_result else 20)


def axes_of(call: relax.Call) -> tuple[int, ...]:
    """The axes of a permute_dims; no axes mean the reverse order."""
    rank = call.ty.ndim
    if call.attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(int(axis) % rank for axis in call.attrs.axes)


def check_operands(
    q: Sequence[tirx.PrimExpr], k: Sequence[tirx.PrimExpr], v: Sequence[tirx.PrimExpr], scores: Sequence[tirx.PrimExpr]
) -> tuple[int, int]:
    """Head size and key-value heads of q [b, h, s, d], k [b, h_kv, d, t], v [b, h_kv, t, d].

    Products broadcast an axis of 1; of those the operator knows one: key and value heads that all queries share.
    """
    if not all(isinstance(dim, tirx.IntImm) for dim in (q[1], k[1], v[1], q[3], v[3])):
        raise Rejected(f"numbers of heads and head sizes must be known, got q {list(q)}, k {list(k)}, v {list(v)}")
    if not same_dimension(q[0], scores[0]) or not all(same_dimension(x[0], q[0]) for x in (k, v)):
        raise Rejected(f"q, k and v must have one batch size, got {q[0]}, {k[0]} and {v[0]}")
    h, h_k, h_v, d, d_v = (int(dim) for dim in (q[1], k[1], v[1], q[3], v[3]))
    if int(scores[1]) != h or h_k != h_v or h_k not in (1, h):
        raise Rejected(f"k and v must have the {h} heads of q or one, got {h_k} and {h_v}")
    if d != d_v:
        raise Rejected(f"q and v must have one head size, got {d} and {d_v}")
    return d, h_k


def check_softmax(call: relax.Call) -> None:
    axis, rank = int(call.attrs.axis), call.ty.ndim
    if axis not in (-1, rank - 1):
        raise Rejected(f"the softmax must run over the last axis, got axis {axis} of {rank}")


def dims_of(expr: relax.Expr, what: str) -> list[tirx.PrimExpr]:
    ty = expr.ty
    if ty.ndim != 4 or not isinstance(ty.shape, relax.ShapeExpr):
        raise Rejected(f"{what} must be of rank 4 and known shape, got {ty}")
    return list(ty.shape.values)


def broadcast_bias(bias: relax.Expr, scores: Sequence[tirx.PrimExpr]) -> relax.Expr:
    """`bias` as [1|b, 1|h, 1|s, t]; leading axes are added."""
    ty = bias.ty
    if not isinstance(ty.shape, relax.ShapeExpr) or ty.ndim > 4 or str(ty.dtype) != "float32":
        raise Rejected(f"the bias must be float32 of at most rank 4 and known shape, got {ty}")
    dims = [*([tirx.IntImm("int64", 1)] * (4 - ty.ndim)), *ty.shape.values]
    prove = tvm.sym.Analyzer().can_prove_equal
    one = tirx.IntImm("int64", 1)
    if not prove(dims[3], scores[3]) or not all(prove(a, one) or prove(a, b) for a, b in zip(dims[:3], scores[:3])):
        raise Rejected(
            f"the bias {list(ty.shape.values)} must broadcast to the scores {list(scores)} with a whole last axis"
        )
    return bias if ty.ndim == 4 else relax.op.reshape(bias, dims)
