"""The second stage: the parts of every row, weighted by their largest scores, become its result."""

from __future__ import annotations

from .._problem import locate_keys
from .._softmax import beginning
from .._text import LEAST, UNROLLED, Source, beyond, i64
from .plan import Plan

_AT_ONCE = 8  # vectors of a long head that are merged together
_FEW = 1024  # vectors that one thread merges faster than it wakes another


def merge(src: Source, plan: Plan) -> None:
    work = f"{plan.problem.b} * {i64(plan.rows)}"
    few = f"{work} * splits * {i64(plan.columns)} <= {i64(_FEW)}"
    with src.under(f"if {few}:"):
        _rows(src, plan, work, "serial")
    with src.under("else:"):
        _rows(src, plan, work, "parallel")


def _rows(src: Source, plan: Plan, work: str, kind: str) -> None:
    problem, v = plan.problem, plan.vectors
    with src.loop("row", work, kind), src.block("merge"):
        src.let("r", f"row % {i64(plan.rows)}")
        src.let("n", f"row // {i64(plan.rows)}")
        src.let("head", plan.head_of("r"))
        src.let("i", plan.query_of("r"))
        locate_keys(src, problem)
        src.let("parts", f"({problem.keys} + span - T.int64(1)) // span")  # those with a key in them
        long = problem.d > UNROLLED
        columns = range(0 if long else plan.columns)
        if long:
            src(f'fades = T.alloc_buffer(({i64(plan.decision.splits)}, {plan.lanes}), "float32")')
        src(*(v.buffer(name) for name in ("peak", "total", "fade", "swap")), *(v.buffer(f"sum{u}") for u in columns))
        start, total = beginning(problem, v, "head")
        src(f"peak[0] = {start}", f"total[0] = {total}")
        src(*(f"sum{u}[0] = {v.const(0.0)}" for u in columns))
        with src.loop("part", "parts"):
            src(f"peak[0] = T.max(peak[0], {plan.part('part_peaks', 'n', 'part', 'r')})")
        if problem.sinks:
            src(f"fade[0] = {v.at_least(LEAST, f'{start} - peak[0]')}", *v.exp2("fade[0]", "swap[0]"))
            src("total[0] = total[0] * fade[0]")
        with src.loop("part", "parts"):
            part = plan.part("part_peaks", "n", "part", "r")
            src(f"fade[0] = {v.at_least(LEAST, f'{part} - peak[0]')}")
            src(*v.exp2("fade[0]", "swap[0]"))
            src(f"total[0] = total[0] + {plan.part('part_totals', 'n', 'part', 'r')} * fade[0]")
            if long:
                src(f"{plan.vector('fades', 'part')} = fade[0]")
            for u in columns:
                part = plan.part("part_mixed", "n", "part", "r", u * plan.lanes)
                src(f"sum{u}[0] = sum{u}[0] + {part} * fade[0]")
        src(*v.butterfly("{a} + {b}", "total[0]", "swap[0]"))
        src(f"total[0] = T.Select({v.const(0.5)} < total[0], {v.const(1.0)} / total[0], {v.const(0.0)})")
        src(*(f"O[n, i, head, {v.span(u * plan.lanes)}] = sum{u}[0] * total[0]" for u in columns))
        for first in src.columns(problem.d, _AT_ONCE * plan.lanes) if long else ():
            _some_columns(src, plan, first)


def _some_columns(src: Source, plan: Plan, first: object) -> None:
    """The results of a row from column `first` on, of parts whose weights are `fades`."""
    v, lanes = plan.vectors, plan.lanes
    count = min(_AT_ONCE, plan.columns - first // lanes) if isinstance(first, int) else _AT_ONCE
    with src.block("columns"):
        places = [beyond(first, u * lanes) for u in range(count)]
        src(*(v.buffer(f"sum{u}") for u in range(count)), *(f"sum{u}[0] = {v.const(0.0)}" for u in range(count)))
        with src.loop("part", "parts"):
            for u, place in enumerate(places):
                part = plan.part("part_mixed", "n", "part", "r", place)
                src(f"sum{u}[0] = sum{u}[0] + {part} * {plan.vector('fades', 'part')}")
        src(*(f"O[n, i, head, {v.span(place)}] = sum{u}[0] * total[0]" for u, place in enumerate(places)))
