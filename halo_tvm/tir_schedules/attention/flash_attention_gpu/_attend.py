"""The kernel: a block of threads per batch row, head and block of queries walks the blocks of keys it can see."""

from __future__ import annotations

from ....targets import WARP
from .. import _online_softmax as _softmax
from .._grid import launched
from .._problem import locate_keys
from .._text import Source, i64
from . import _products
from ._plan import Plan
from ._tiles import copy, land, wait


def attend(src: Source, plan: Plan) -> None:
    """Values come while scores are computed, the next keys while values are mixed."""
    problem, decision = plan.problem, plan.decision
    parts = {"n": problem.b, "head": i64(problem.h), "turn": plan.query_blocks}
    with launched(src, "attend", parts, warp=decision.warps, lane=WARP):
        src(f'{plan.memory} = T.alloc_buffer(({plan.tiles["end"]},), "{problem.dtype}", scope="shared.dyn")')
        _products.declare(src, plan)
        _softmax.declare(src, plan)
        _locate(src, plan)
        copy(src, plan, "q", "q0", "queries")
        copy(src, plan, "k", f"begin * {decision.block_k}", "keys")
        if plan.keeps_queries:
            wait(src)
            _products.keep_queries(src, plan)
        with src.under("for step in T.serial(T.max(last - begin, 0)):"):
            src.let("first", f"(begin + step) * {decision.block_k}", "int32")
            wait(src)
            copy(src, plan, "v", "first", "keys")
            _products.scores(src, plan)
            wait(src)
            copy(src, plan, "k", f"first + {decision.block_k}", "end")
            _softmax.finish_scores(src, plan)
            _softmax.softmax(src, plan)
            _products.store_weights(src, plan)
            _products.values(src, plan)
        land(src)  # the last keys, of which none are read: no thread ends with a copy under way
        _finish(src, plan)


def _locate(src: Source, plan: Plan) -> None:
    """Which queries a block serves, and which keys they see: from block `begin` to before block `last`."""
    problem, decision = plan.problem, plan.decision
    src.let("kv", f"head // {i64(problem.ratio)}")
    locate_keys(src, problem)
    src.let("keys", problem.keys, "int32")
    src.let("shift", problem.shift, "int32")
    src.let("queries", problem.s, "int32")
    # The blocks that see most keys begin first, so that none of them is alone at the end.
    turn = f"({plan.query_blocks} - T.int64(1) - turn)" if problem.causal else "turn"
    src.let("q0", f"{turn} * {i64(decision.block_q)}", "int32")
    # `end` is behind the last key any row sees, `whole` behind the last one that every row sees.
    if problem.causal:
        src.let("end", f"T.min(keys, T.min(q0 + {decision.block_q}, queries) + shift)", "int32")
        src.let("whole", "T.min(keys, q0 + 1 + shift)", "int32")
    else:
        src.let("end", "keys", "int32")
        src.let("whole", "keys", "int32")
    src.let("last", f"(end + {decision.block_k - 1}) // {decision.block_k}", "int32")
    begin = f"T.max(0, q0 + shift - {problem.window - 1}) // {decision.block_k}" if problem.window else "T.int32(0)"
    src.let("begin", begin, "int32")


def _finish(src: Source, plan: Plan) -> None:
    """O = out / total; a row that saw nothing has a total of 0 and becomes 0, one with a NaN stays NaN."""
    problem, vector = plan.problem, plan.out_vector
    for r in range(plan.row_count):
        _softmax.across(src, f"total[{r}]", "({} + {})", 1, plan.row_lanes)
        src(f"top[{r}] = T.if_then_else(total[{r}] == T.float32(0), T.float32(0), T.float32(1) / total[{r}])")
        with src.under(f"if {plan.query(r)} < queries:"), src.under(f"for u in T.unroll({plan.out_count}):"):
            value = f"out[T.ramp({plan.out(r, 'u')}, 1, {vector})] * T.broadcast(top[{r}], {vector})"
            if problem.dtype != "float32":
                value = f'T.cast({value}, "{problem.dtype}x{vector}")'
            column = f'T.ramp(T.cast({plan.out_column("u")}, "int64"), T.int64(1), {vector})'
            src(f'O[n, T.cast({plan.query(r)}, "int64"), head, {column}] = {value}')
