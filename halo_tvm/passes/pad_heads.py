"""Heads of attention get zeros behind them, up to a size that a rule serves.

Before -> after
    halo.attention(q, k, v, head_dim=72)   ->   halo.attention(q', k', v', head_dim=80)[..., :72]
    x' is x with zeros behind every head; of packed operands, behind every head of the one tensor
Why
    rules of attention compute in vectors along a head: 26, 36, 40, 72 and 120 are sizes of models that people use, and
    a loop nest that was found for them takes up to twice as long at 1,024 positions, and as long at 16
Leaves alone
    heads of a size that is served, and those of more than 256, which rules for CPUs alone serve; steps over a cache,
    all of which would be copied each time; targets whose vectors no rule of attention serves
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..errors import Declined
from ..relay_ops import OPERATORS
from ..relay_ops.operator import attrs_of, operator_of
from ..tir_schedules.attention import HEAD_MULTIPLE, WIDEST_EVERYWHERE
from ..tir_schedules.attention.flash_attention import target_lanes
from ._rewrite import rewrite_calls
from .graph_pass import Context, Pass, Report


@dataclass(frozen=True)
class PadHeads(Pass):
    """Heads of a size that rules of attention serve."""

    name = "pad_heads"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        try:
            if not context.target.spec.gpu:
                target_lanes(context.target)
        except Declined as reason:
            return mod, {"padded": 0, "kept": f"flash_attention {reason}"}
        mod, report = rewrite_calls(mod, _padded)
        counts = report["rewritten"]
        assert isinstance(counts, dict)
        return mod, {"padded": sum(counts.values())}


def _padded(call: relax.Call, _value: Callable[[relax.Expr], relax.Expr]) -> tuple[relax.Expr, str] | None:
    operator = operator_of(call)
    if operator is None or operator.name != "attention":
        return None
    attrs = attrs_of(call)
    size = attrs["head_dim"]
    assert isinstance(size, int)
    wide = -(-size // HEAD_MULTIPLE) * HEAD_MULTIPLE
    if wide == size or wide > WIDEST_EVERYWHERE or attrs.get("has_lengths"):
        return None
    count = 1 if attrs.get("packed") else 3
    if len({str(arg.ty.dtype) for arg in call.args[:count]}) > 1:  # kept narrow, rows of int8 with their scales
        return None
    operands = [_wider(arg, size, wide) if i < count else arg for i, arg in enumerate(call.args)]
    result = OPERATORS["attention"].call(*operands, **{**attrs, "head_dim": wide})
    return relax.op.strided_slice(result, [3], [0], [size]), "attention"


def _wider(x: relax.Expr, size: int, wide: int) -> relax.Expr:
    """`x` [b, s, heads, size], or packed [b, s, heads * size], with zeros behind every head."""
    batch, rows, *heads = x.ty.shape.values
    packed = len(heads) == 1
    count = heads[0] // size if packed else heads[0]
    if packed:
        x = relax.op.reshape(x, (batch, rows, count, size))
    x = relax.op.nn.pad(x, [0, 0, 0, 0, 0, 0, 0, wide - size])
    return relax.op.reshape(x, (batch, rows, count * wide)) if packed else x
