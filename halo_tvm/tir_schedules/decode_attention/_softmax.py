"""The row step of the online softmax over one chunk: scores become weights, statistics and results move on.

As flash_attention's, with a row per query and head, and the bounds of what it sees from the data's lengths.
"""

from __future__ import annotations

from ..flash_attention._pack import MASKED
from ..flash_attention._text import LEAST, LOG2_E, Source, i64
from ._plan import Plan


def softmax(src: Source, plan: Plan) -> None:
    """Chunks that every row sees whole take a path without visibility tests."""
    problem, chunk = plan.problem, plan.decision.chunk
    edge = f"valid < {i64(chunk)}"
    if problem.causal and plan.s > 1:
        edge = f"({edge}) or ({problem.keys} - {i64(plan.s - 1)} < first + {i64(chunk)})"
    if problem.window:
        edge = f"({edge}) or (first <= {problem.keys} - T.int64(1) - {i64(problem.window)})"
    with src.under(f"if {edge}:"):
        _rows(src, plan, edge=True)
    with src.under("else:"):
        _rows(src, plan, edge=False)


def _rows(src: Source, plan: Plan, edge: bool) -> None:
    v, lanes = plan.vectors, plan.lanes
    count = f"(valid + {i64(lanes - 1)}) // {i64(lanes)}" if edge else i64(plan.decision.chunk // lanes)
    with src.loop("row", plan.rows), src.block("edge_row" if edge else "row"):
        src.let("r", "row")
        src(*(v.buffer(name) for name in ("value", "far", "swap", "peak", "fade", "total")))
        if edge:
            _limits(src, plan)
        if plan.problem.bias:
            _gather_bias(src, plan)
        peaks, totals = (plan.vector(name, "r") for name in ("peaks", "totals"))
        src(f"peak[0] = {peaks}")
        with src.loop("u", count):
            _raise_peak(src, plan, edge)
        src(*v.butterfly("T.max({a}, {b})", "peak[0]", "swap[0]"))
        src(f"fade[0] = T.max({peaks} - peak[0], {v.const(LEAST)})", *v.exp2("fade[0]", "swap[0]"))
        src(f"{peaks} = peak[0]", f"total[0] = {totals} * fade[0]")
        with src.loop("u", count):
            weights = plan.vector("scores", "r", f"u * {i64(lanes)}")
            src(f"value[0] = T.max({weights} - peak[0], {v.const(LEAST)})", *v.exp2("value[0]", "swap[0]"))
            src(f"{weights} = value[0]", "total[0] = total[0] + value[0]")
        src(f"{totals} = total[0]")
        for x in range(0, plan.problem.d, lanes):
            src(f"{plan.vector('mixed', 'r', x)} = {plan.vector('mixed', 'r', x)} * fade[0]")


def _limits(src: Source, plan: Plan) -> None:
    """The columns of the chunk that row r sees: lower < column < upper, as int32."""
    problem, chunk = plan.problem, i64(plan.decision.chunk)
    position = f"{plan.query_of('r')} + {problem.shift}"
    upper = f"T.min({problem.keys}, {position} + T.int64(1))" if problem.causal else problem.keys
    src.let("upper", f"T.max(T.int64(0), T.min(valid, {upper} - first))", "int32")
    if problem.window:
        lower = f"T.max(T.int64(-1), {position} - {i64(problem.window)} - first)"
        src.let("lower", f"T.min({chunk}, {lower})", "int32")


def _gather_bias(src: Source, plan: Plan) -> None:
    """line = the row's biases of this chunk: a vector load could pass the end of the buffer."""
    assert plan.problem.bias is not None
    places = ("n", plan.head_of("r"), plan.query_of("r"))
    at = ", ".join("T.int64(0)" if one else index for one, index in zip(plan.problem.bias, places))
    with src.loop("j", "valid"):
        src(f"line[0, j] = bias[{at}, first + j]")


def _raise_peak(src: Source, plan: Plan, edge: bool) -> None:
    """First pass over a row: finish the scores and find the largest."""
    problem, v, lanes = plan.problem, plan.vectors, plan.lanes
    column = f"u * {i64(lanes)}"
    scores = plan.vector("scores", "r", column)
    src(f"value[0] = {scores}")
    if problem.softcap:
        src(*v.tanh("value[0]", "far[0]", "swap[0]"))
        src(f"value[0] = value[0] * {v.const(problem.softcap * LOG2_E)}")
    if problem.bias:
        src(f"value[0] = value[0] + {plan.vector('line', 'T.int64(0)', column)} * {v.const(LOG2_E)}")
    if edge:
        columns = f'T.ramp(T.cast({column}, "int32"), 1, {lanes})'
        src(f"value[0] = T.Select({columns} < {v.all('upper')}, value[0], {v.const(MASKED)})")
        if problem.window:
            src(f"value[0] = T.Select({v.all('lower')} < {columns}, value[0], {v.const(MASKED)})")
    if edge or problem.softcap or problem.bias:
        src(f"{scores} = value[0]")
    src("peak[0] = T.max(peak[0], value[0])")
