"""Attention multiplies bfloat16 where the precision is no more exact and the target is faster at it.

Before -> after
    halo.attention(q, k, v)   ->   halo.attention(q, k, v, products="bfloat16")
Serves
    --precision int8 and bf16 on targets that multiply pairs of bfloat16: q, k and v come from linears that rounded
    more than that. Scores, softmax and sums stay in float32.
Leaves alone
    every call on other targets, calls in branches and loop bodies, and those that say their products already
The rule decides: heads that are no multiple of 32, and steps over a cache, stay in float32 all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops import OPERATORS
from ..relay_ops._operator import attrs_of, operator_of
from ._pass import Context, Pass, Report
from ._rewrite import rewrite_calls


@dataclass(frozen=True)
class NarrowAttention(Pass):
    """Products of attention in bfloat16."""

    name = "narrow_attention"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        if not context.target.isa.bf16_dot:
            return mod, {"permitted": 0, "kept": f"{context.target.name} has no faster products of bfloat16"}
        mod, report = rewrite_calls(mod, _permitted)
        return mod, {"permitted": sum(report["rewritten"].values())}


def _permitted(call: relax.Call, _value: Callable[[relax.Expr], relax.Expr]) -> tuple[relax.Expr, str] | None:
    operator = operator_of(call)
    if operator is None or operator.name != "attention" or "products" in attrs_of(call):
        return None
    return OPERATORS["attention"].call(*call.args, **attrs_of(call), products="bfloat16"), "attention"
