"""How many kernels a run launches: per layer, outside the layers, and copies among them.

Layers are the longest run of one sequence of kernels repeated, as equal layers share their functions. A copy is a
kernel that only moves data (a transpose, a concatenation, a slice, a broadcast): what a better graph would not need.
A lookup by index is none, nor is a conversion, nor a reshape, which launches nothing. What is computed part
by part counts once.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import ir, tirx

from ..phase_reports import KernelCount
from ..tir_schedules.blocks import blocks, loads
from .graph_pass import op_name, with_parts

_LAUNCHES = ("relax.call_tir", "relax.call_tir_inplace", "relax.call_dps_packed", "relax.call_pure_packed")


def count_kernels(mod: tvm.IRModule) -> KernelCount:
    """The kernels of `mod`, whose main calls functions that no rule has scheduled yet."""
    names: list[str] = []
    copies: list[str] = []
    for call in with_parts(mod, mod["main"]):
        if op_name(call) not in _LAUNCHES:
            continue
        callee = call.args[0]
        name = callee.name_hint if isinstance(callee, ir.GlobalVar) else str(callee)
        names.append(name)
        if isinstance(callee, ir.GlobalVar) and moves_only(mod[callee]):
            copies.append(name)
    length, layers = repeated(names)
    return KernelCount(len(names), layers, length, len(names) - length * layers, tuple(copies))


def repeated(names: Sequence[str]) -> tuple[int, int]:
    """(length, times) of the consecutive repetition that covers most of `names`; (0, 0) when nothing repeats.

    Of equal covers the shortest sequence is taken: a layer, not two.
    """
    best = (0, 0)
    for length in range(1, len(names) // 2 + 1):
        same = 0
        for i in range(len(names) - length):
            same = same + 1 if names[i] == names[i + length] else 0
            times = same // length + 1
            if times > 1 and length * times > best[0] * best[1]:
                best = (length, times)
    return best


def moves_only(func: ir.BaseFunc) -> bool:
    """Whether every value `func` stores is one it read, at places that do not depend on what it read."""
    found = blocks(func) if isinstance(func, tirx.PrimFunc) else []
    if not found:
        return False
    read = False
    for block in found:
        if "R" in block.kinds or block.store is None:
            return False
        values = _values(block.store.value)
        if any(not isinstance(value, ir.TensorLoad | tirx.IntImm | tirx.FloatImm) for value in values):
            return False
        for load in (v for v in values if isinstance(v, ir.TensorLoad)):
            read = True
            if any(loads(index) for index in load.indices):
                return False
    return read


def _values(expr: ir.Expr) -> list[ir.Expr]:
    """What `expr` may be: the branches of choices that depend on places only."""
    if isinstance(expr, tirx.Select):
        condition, *branches = expr.condition, expr.true_value, expr.false_value
    elif isinstance(expr, ir.Call) and getattr(expr.op, "name", "").endswith("if_then_else"):
        condition, *branches = expr.args
    else:
        return [expr]
    return [expr] if loads(condition) else [value for branch in branches for value in _values(branch)]
