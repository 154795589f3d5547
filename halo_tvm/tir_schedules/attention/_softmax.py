"""The row step of the online softmax: scores become weights, the row's statistics move on.

Scores are in powers of two: log2(e) is part of the scale. Per row of a block
    score -> softcap, bias, key mask, (edge blocks) visibility
    peak' = max(peak, scores);  fade = 2**(peak - peak');  weight = 2**(score - peak');
    total = total * fade + sum(weight)
`softmax_row` is that step for any plan whose rows lie in scratch; what a row sees, and its bias, are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ._pack import MASKED
from ._problem import Problem
from ._text import LEAST, LOG2_E, Source, Vectors, i64
from .flash_attention.plan import Plan

START = -1e30  # the peak before any key; scores at or below it are invisible


def beginning(problem: Problem, v: Vectors, head: str) -> tuple[str, str]:
    """The peak and the total of a row before any key, vectors; lanes of the total are added at the end."""
    if not problem.sinks:
        return v.const(START), v.const(0.0)
    return v.all(f"sinks[{head}] * T.float32({LOG2_E!r})"), v.const(1.0 / v.lanes)


class Rows(Protocol):
    """A plan with the scratch buffers scores, peaks and totals, a row of each per row."""

    problem: Problem
    lanes: int

    @property
    def vectors(self) -> Vectors: ...
    def vector(self, name: str, row: str, column: object = 0) -> str: ...


def softmax_row(
    src: Source, plan: Rows, count: int | str, bias: Callable[[str], str], edge: bool, *, pairs: bool = False
) -> None:
    """Row r over `count` vectors of scores: straight code for a number, else a loop. Leaves `fade[0]`.

    `bias` is the vector of biases from a column on. On an edge lower < column < upper is seen, as int32.
    Of `pairs`, `count` vectors of words are left in the scratch buffer weights, each of two vectors of scores.
    """

    def peaks_of(at: str) -> None:
        for column in _columns(plan, at, pairs):
            _raise_peak(src, plan, column, bias, edge)

    def weights_of(at: str) -> None:
        (_weigh_pair if pairs else _weigh)(src, plan, at)

    v = plan.vectors
    src(*(v.buffer(name) for name in ("value", "far", "swap", "peak", "fade", "total")))
    peaks, totals = (plan.vector(name, "r") for name in ("peaks", "totals"))
    src(f"peak[0] = {peaks}")
    _each_vector(src, count, peaks_of)
    src(*v.butterfly("T.max({a}, {b})", "peak[0]", "swap[0]"))
    src(f"fade[0] = {v.at_least(LEAST, f'{peaks} - peak[0]')}", *v.exp2("fade[0]", "swap[0]"))
    src(f"{peaks} = peak[0]", f"total[0] = {totals} * fade[0]")
    _each_vector(src, count, weights_of)
    src(f"{totals} = total[0]")


def _each_vector(src: Source, count: int | str, emit: Callable[[str], None]) -> None:
    if isinstance(count, str):
        with src.loop("u", count):
            emit("u")
        return
    for u in range(count):
        emit(i64(u))


def _columns(plan: Rows, at: str, pairs: bool) -> list[str]:
    """Where the vectors of scores begin that belong to position `at`."""
    if not pairs:
        return [f"{at} * {i64(plan.lanes)}"]
    return [f"{at} * {i64(2 * plan.lanes)}", f"({at} * {i64(2 * plan.lanes)} + {i64(plan.lanes)})"]


def _raise_peak(src: Source, plan: Rows, column: str, bias: Callable[[str], str], edge: bool) -> None:
    """First pass over a row: finish the scores and find the largest."""
    problem, v, lanes = plan.problem, plan.vectors, plan.lanes
    scores = plan.vector("scores", "r", column)
    src(f"value[0] = {scores}")
    if problem.softcap:
        src(*v.tanh("value[0]", "far[0]", "swap[0]"))
        src(f"value[0] = value[0] * {v.const(problem.softcap * LOG2_E)}")
    if problem.bias:
        src(f"value[0] = value[0] + {bias(column)} * {v.const(LOG2_E)}")
    if problem.key_mask:
        hidden = f"key_bias[n, block, {v.span(column)}] < {v.const(0.0)}"
        src(f"value[0] = T.Select({hidden}, {v.const(MASKED)}, value[0])")
    if edge:
        columns = f'T.ramp(T.cast({column}, "int32"), 1, {lanes})'
        src(f"value[0] = T.Select({columns} < {v.all('upper')}, value[0], {v.const(MASKED)})")
        if problem.window:
            src(f"value[0] = T.Select({v.all('lower')} < {columns}, value[0], {v.const(MASKED)})")
    if edge or problem.softcap or problem.bias or problem.key_mask:
        src(f"{scores} = value[0]")
    src("peak[0] = T.max(peak[0], value[0])")


def _weigh(src: Source, plan: Rows, at: str) -> None:
    """Second pass: scores become weights relative to the peak."""
    (column,) = _columns(plan, at, pairs=False)
    _weight(src, plan, column)
    src(f"{plan.vector('scores', 'r', column)} = value[0]")


def _weigh_pair(src: Source, plan: Rows, at: str) -> None:
    """The same for two vectors, whose weights become one vector of words."""
    low, high = _columns(plan, at, pairs=True)
    _weight(src, plan, low)
    src("far[0] = value[0]")
    _weight(src, plan, high)
    word = plan.vectors.pair("far[0]", "value[0]")
    src(f"{plan.vector('weights', 'r', f'{at} * {i64(plan.lanes)}')} = {word}")


def _weight(src: Source, plan: Rows, column: str) -> None:
    """value = 2**(score - peak), which the row's total takes in."""
    v = plan.vectors
    scores = plan.vector("scores", "r", column)
    src(f"value[0] = {v.at_least(LEAST, f'{scores} - peak[0]')}")
    src(*v.exp2("value[0]", "swap[0]"), "total[0] = total[0] + value[0]")


# ---- the rows of a block


def softmax_rows(src: Source, plan: Plan) -> None:
    """Blocks that every row sees whole take a path without visibility tests."""
    problem, decision = plan.problem, plan.decision
    edge = f"whole < first + {i64(decision.block_k)}"
    if problem.window:
        edge = f"({edge}) or (first <= q0 + rows - T.int64(1) + {problem.shift} - {i64(problem.window)})"
    with src.under(f"if {edge}:"):
        _rows(src, plan, edge=True)
    with src.under("else:"):
        _rows(src, plan, edge=False)


def _rows(src: Source, plan: Plan, edge: bool) -> None:
    """The width of edge blocks varies."""
    width = plan.lanes * (2 if plan.pairs else 1)

    def bias(column: str) -> str:
        if edge:
            return plan.vector("line", "T.int64(0)", column)
        return f"bias[{_bias_row(plan)}, {plan.vectors.span(f'first + {column}')}]"

    count = f"(valid + {i64(width - 1)}) // {i64(width)}" if edge else plan.decision.block_k // width
    with src.rows(), src.block("edge_row" if edge else "row"):
        if edge:
            _limits(src, plan)
        softmax_row(src, plan, count, bias, edge, pairs=plan.pairs)
        src(f"{plan.vector('fades', 'r')} = fade[0]")


def _limits(src: Source, plan: Plan) -> None:
    """The columns of the block that row r sees: lower < column < upper, as int32."""
    problem, decision = plan.problem, plan.decision
    position = f"q0 + r + {problem.shift}"
    upper = f"T.min({problem.keys}, {position} + T.int64(1))" if problem.causal else problem.keys
    if problem.bias:
        gather_bias(src, _bias_row(plan))
    src.let("upper", f"T.min({i64(decision.block_k)}, {upper} - first)", "int32")
    if problem.window:
        lower = f"T.max(T.int64(-1), {position} - {i64(problem.window)} - first)"
        src.let("lower", f"T.min({i64(decision.block_k)}, {lower})", "int32")


def gather_bias(src: Source, row: str) -> None:
    """line = the biases of `row` for these keys: a vector load could pass the end of the buffer."""
    with src.loop("j", "valid"):
        src(f"line[0, j] = bias[{row}, first + j]")


def _bias_row(plan: Plan) -> str:
    return plan.problem.bias_row("n", "head", "q0 + r")
