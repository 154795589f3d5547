"""The row step of the online softmax on a GPU, on the scores that each thread holds.

Per row of a step, in powers of two:
    score -> softcap, bias; key mask and (edge steps) visibility
    peak' = max(peak, scores);  fade = 2**(peak - peak');  weight = 2**(score - peak');
    total = total * fade + sum(weight);  out = out * fade
A thread's total covers its own columns; the lanes that share a row add theirs at the end.
"""

from __future__ import annotations

from typing import Protocol

from ...targets import WARP
from ..code.threads import ALL_LANES
from ._pack import MASKED
from ._problem import Problem
from ._softmax import START
from ._text import LOG2_E, Source

_LEAST_SCALE = 1e-6  # times the number that stands for an invisible score, it is still below every visible one


class Held(Protocol):
    """A plan that says which scores and results a thread holds: in text, `c` and `u` are variables of loops."""

    problem: Problem

    @property
    def row_count(self) -> int: ...
    @property
    def column_count(self) -> int:
        """Scores of a row."""

    @property
    def row_lanes(self) -> int:
        """Neighbouring lanes that share a row."""

    @property
    def out_count(self) -> int:
        """Vectors of results of a row."""

    @property
    def out_vector(self) -> int: ...
    @property
    def edge(self) -> str:
        """The condition under which a step may hold keys that a row does not see."""

    def score(self, r: int, c: str) -> str:
        """Row `r`, column `c` among a thread's scores."""

    def out(self, r: int, u: str) -> str:
        """Where vector `u` of row `r` begins among a thread's results."""

    def query(self, r: int) -> str:
        """The query of row `r`, as int32."""

    def head(self, r: int) -> str:
        """Its head, as int64."""

    def key(self, c: str) -> str:
        """The key of column `c`, as int32."""


def factor(problem: Problem) -> float:
    """What a score is multiplied by on its way into the exponential, in which powers are of two.

    1: it was multiplied before, because something is added to it, or because a negative factor would turn
    the largest into the smallest.
    """
    plain = not problem.softcap and not problem.bias and problem.scale > _LEAST_SCALE
    return problem.scale * LOG2_E if plain else 1.0


def declare(src: Source, plan: Held) -> None:
    """Scores, results and statistics of a thread's rows."""
    sizes = {
        "score": plan.row_count * plan.column_count,
        "out": plan.row_count * plan.out_count * plan.out_vector,
        **dict.fromkeys(("peak", "top", "fade", "total"), plan.row_count),
    }
    src(*(f'{name} = T.alloc_buffer(({size},), "float32", scope="local")' for name, size in sizes.items()))
    with src.under(f"for i in T.unroll({sizes['out']}):"):
        src("out[i] = T.float32(0)")
    with src.under(f"for i in T.unroll({plan.row_count}):"):
        src(f"peak[i] = T.float32({START})", "total[i] = T.float32(0)")


def finish_scores(src: Source, plan: Held) -> None:
    """Everything between the product and the exponential."""
    problem = plan.problem
    for r in range(plan.row_count):
        at = f"score[{plan.score(r, 'c')}]"
        if factor(problem) == 1.0:
            with _columns(src, plan):
                value = f"{at} * T.float32({problem.score_scale!r})"
                if problem.softcap:
                    value = f"T.tanh({value}) * T.float32({problem.softcap * LOG2_E!r})"
                src(f"{at} = {value}")
                # Not in one statement with tanh, which becomes a `Let`: TVM's elimination of common subexpressions
                # puts the variable of an index that occurs in one, and in later statements, in front of the latter.
                if problem.bias:
                    src(f"{at} = {at} + {_bias(plan, r)} * T.float32({LOG2_E!r})")
        if problem.key_mask:
            with _columns(src, plan):
                flag = f'key_mask[n, T.cast({plan.key("c")}, "int64")]'
                if problem.key_mask != "bool":
                    flag = f"{flag} != T.{problem.key_mask}(0)"
                seen = f"T.if_then_else({plan.key('c')} < keys, {flag}, T.bool(False))"
                src(f"{at} = T.if_then_else({seen}, {at}, T.float32({MASKED}))")
    with src.under(f"if {plan.edge}:"):
        for r in range(plan.row_count):
            at = f"score[{plan.score(r, 'c')}]"
            with _columns(src, plan):
                src(f"{at} = T.Select({_visible(plan, r)}, {at}, T.float32({MASKED}))")


def _visible(plan: Held, r: int) -> str:
    """Whether row `r` sees the key of column c."""
    problem, key, position = plan.problem, plan.key("c"), f"{plan.query(r)} + shift"
    condition = f"{key} < keys"
    if problem.causal:
        condition = f"T.And({condition}, {key} <= {position})"
    if problem.window:
        condition = f"T.And({condition}, {position} < {key} + {problem.window})"
    return condition


def _bias(plan: Held, r: int) -> str:
    at = plan.problem.bias_row("n", plan.head(r), f'T.cast({plan.query(r)}, "int64")')
    value = f'bias[{at}, T.cast({plan.key("c")}, "int64")]'
    return f"T.if_then_else(T.And({plan.query(r)} < queries, {plan.key('c')} < keys), {value}, T.float32(0))"


def softmax(src: Source, plan: Held) -> None:
    """Scores become weights."""
    by = factor(plan.problem)
    times = "" if by == 1.0 else f" * T.float32({by!r})"
    for r in range(plan.row_count):
        at = f"score[{plan.score(r, 'c')}]"
        src(f"top[{r}] = score[{plan.score(r, '0')}]")
        with _columns(src, plan):
            src(f"top[{r}] = T.max(top[{r}], {at})")
        across(src, f"top[{r}]", "T.max({}, {})", 1, plan.row_lanes)
        src(f"top[{r}] = T.max(peak[{r}], top[{r}]{times})")
        src(exp2(f"fade[{r}]", f"peak[{r}] - top[{r}]"))
        src(f"peak[{r}] = top[{r}]", f"total[{r}] = total[{r}] * fade[{r}]")
        with _columns(src, plan):
            src(exp2(at, f"{at}{times} - peak[{r}]"), f"total[{r}] = total[{r}] + {at}")
        fade_results(src, plan, r)


def fade_results(src: Source, plan: Held, r: int) -> None:
    """The results of row `r` times its fade."""
    with src.under(f"for u in T.unroll({plan.out_count}):"):
        for e in range(plan.out_vector):
            out = f"out[{plan.out(r, 'u')} + {e}]"
            src(f"{out} = {out} * fade[{r}]")


def across(src: Source, value: str, combine: str, first: int, end: int) -> None:
    """`value` combined over the lanes whose numbers differ in bits `first` to before `end`, in each of them."""
    step = first
    while step < end:
        other = f"T.tvm_warp_shuffle_xor(T.uint32({ALL_LANES}), {value}, {step}, {WARP}, {WARP})"
        src(f"{value} = {combine.format(value, other)}")
        step *= 2


def exp2(to: str, value: str) -> str:
    """to = 2**value by the instruction: a relative error of 2**-22, 0 far below."""
    return f'T.evaluate(T.ptx["ex2.approx.ftz.f32"]({to}, {value}))'


def _columns(src: Source, plan: Held):
    return src.under(f"for c in T.unroll({plan.column_count}):")
