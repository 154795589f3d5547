"""Attention multiplies narrower operands where the precision is no more exact and the target is faster at it.

Before -> after
    halo.attention(q, k, v)   ->   halo.attention(q, k, v, products="bfloat16")   on a CPU
                              ->   halo.attention(q, k, v, products="tf32")       on a GPU
Serves
    --precision int8 and bf16 on CPUs that multiply pairs of bfloat16, fp16 too on GPUs whose tensor cores take tf32:
    q, k and v come from linears that rounded as much or more. tf32 has float16's digits and float32's range, so that
    nothing overflows. Scores, softmax and sums stay in float32.
Leaves alone
    every call on other targets, calls in branches and loop bodies, and those that say their products already
The rule decides: on CPUs heads that are no multiple of 32, and everywhere steps over a cache, stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops import OPERATORS
from ..relay_ops.operator import attrs_of, operator_of
from ._rewrite import rewrite_calls
from .graph_pass import Context, Pass, Report


@dataclass(frozen=True)
class NarrowAttention(Pass):
    """Products of attention in bfloat16."""

    name = "narrow_attention"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        products = _products(context)
        if not products:
            what = f"{context.target.name} has no faster products as exact as --precision {context.precision}"
            return mod, {"permitted": 0, "kept": what}

        def permitted(call: relax.Call, _value: Callable[[relax.Expr], relax.Expr]) -> tuple[relax.Expr, str] | None:
            operator = operator_of(call)
            if operator is None or operator.name != "attention" or "products" in attrs_of(call):
                return None
            return OPERATORS["attention"].call(*call.args, **attrs_of(call), products=products), "attention"

        mod, report = rewrite_calls(mod, permitted)
        return mod, {"permitted": sum(report["rewritten"].values())}


def _products(context: Context) -> str:
    """What the operands may be rounded to; "" leaves them."""
    isa = context.target.isa
    if isa.gpu is not None:
        return "tf32" if "tf32" in isa.gpu.tensor_core_dtypes else ""
    return "bfloat16" if "bfloat16" in isa.narrow_dtypes and context.precision != "fp16" else ""
