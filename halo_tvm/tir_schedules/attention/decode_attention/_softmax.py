"""The row step of the online softmax over one chunk: scores become weights, statistics and results move on.

flash_attention's step, for a row per query and head; the bounds of what it sees come from the data's lengths.
"""

from __future__ import annotations

from .._softmax import gather_bias, softmax_row
from .._text import Source, i64
from .plan import Plan


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
    lanes = plan.lanes
    count = f"(valid + {i64(lanes - 1)}) // {i64(lanes)}" if edge else i64(plan.decision.chunk // lanes)
    with src.loop("row", plan.rows), src.block("edge_row" if edge else "row"):
        src.let("r", "row")
        if edge:
            _limits(src, plan)
        if plan.problem.bias:
            gather_bias(src, plan.problem.bias_row("n", plan.head_of("r"), plan.query_of("r")))
        softmax_row(src, plan, count, lambda column: plan.vector("line", "T.int64(0)", column), edge)
        for x in src.columns(plan.problem.d, lanes):
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
