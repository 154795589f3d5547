"""The second stage: one task per batch row, head and block of queries walks the blocks of keys it can see."""

from __future__ import annotations

from collections.abc import Callable

from ._pack import key_bias_at, query_at, value_at
from ._plan import Plan
from ._softmax import START, softmax_rows
from ._text import Source, i64


def attend(src: Source, plan: Plan) -> None:
    problem, decision = plan.problem, plan.decision
    tasks = f"{problem.b} * {i64(problem.h)} * {plan.query_blocks}"
    with src.loop("task", tasks, "parallel"), src.block("attend"):
        _locate(src, plan)
        _start(src, plan)
        with src.loop("step", "T.max(T.int64(0), last - begin)"):
            src.let("block", "begin + step")
            src.let("first", f"block * {i64(decision.block_k)}")
            src.let("valid", f"T.min({i64(decision.block_k)}, end - first)")
            src.let("base", f"(n * {i64(problem.h_kv)} + kv) * {plan.key_blocks} + block")
            _scores(src, plan)
            softmax_rows(src, plan)
            _values(src, plan)
        _finish(src, plan)


def _locate(src: Source, plan: Plan) -> None:
    """Which queries a task serves, and which keys they see."""
    problem, decision = plan.problem, plan.decision
    src.let("turn", f"task % {plan.query_blocks}")
    src.let("head", f"task // {plan.query_blocks} % {i64(problem.h)}")
    src.let("n", f"task // ({plan.query_blocks} * {i64(problem.h)})")
    src.let("kv", f"head // {i64(problem.h // problem.h_kv)}")
    if problem.causal:
        # Threads take runs of tasks: alternating cheap first and dear last blocks balances the runs.
        place = f"T.Select(turn % T.int64(2) == T.int64(0), turn // T.int64(2), {plan.query_blocks} - T.int64(1) - turn // T.int64(2))"
    else:
        place = "turn"
    src.let("q0", f"({place}) * {i64(decision.block_q)}")
    src.let("rows", f"T.min({i64(decision.block_q)}, {problem.s} - q0)")
    # `end` is behind the last key any row sees, `whole` behind the last one that every row sees.
    if problem.causal:
        src.let("end", f"T.min({problem.t}, q0 + rows + {problem.shift})")
        src.let("whole", f"T.min({problem.t}, q0 + T.int64(1) + {problem.shift})")
    else:
        src.let("end", problem.t)
        src.let("whole", problem.t)
    src.let("last", f"(end + {i64(decision.block_k - 1)}) // {i64(decision.block_k)}")
    if problem.window:
        lowest = f"q0 + {problem.shift} - {i64(problem.window - 1)}"
        src.let("begin", f"T.max(T.int64(0), {lowest}) // {i64(decision.block_k)}")
    else:
        src.let("begin", "T.int64(0)")


def _start(src: Source, plan: Plan) -> None:
    """Scratch of one task: its queries close together, a block of scores, results and row statistics."""
    problem, decision, v = plan.problem, plan.decision, plan.vectors
    src(f'scratch = T.alloc_buffer(({plan.slots[""]},), "float32")')
    with src.loop("r", "rows"):
        for x in range(0, problem.d, plan.lanes):
            at = f"r * {i64(problem.d)} + {i64(x)}"
            src(f"{plan.scratch_vector('queries', at)} = {query_at(plan, 'q0 + r', x)}")
            src(f"{plan.scratch_vector('mixed', at)} = {v.const(0.0)}")
        at = f"r * {i64(plan.lanes)}"
        src(f"{plan.scratch_vector('peaks', at)} = {v.const(START)}", f"{plan.scratch_vector('totals', at)} = {v.const(0.0)}")


def _scores(src: Source, plan: Plan) -> None:
    """scores[r, key] = queries[r] . keys[key] for every panel of keys that the tile's rows see."""
    decision = plan.decision
    panels = f"(valid + {i64(plan.panel - 1)}) // {i64(plan.panel)}"

    def tile(row: str, count: int) -> None:
        if plan.problem.causal:
            seen = f"q0 + {row} + {i64(count)} + {plan.problem.shift} - first"
            with src.under(f"if panel * {i64(plan.panel)} < {seen}:"):
                _score_tile(src, plan, row, count)
        else:
            _score_tile(src, plan, row, count)

    with src.loop("panel", panels):
        _row_tiles(src, decision.score_rows, tile)


def _score_tile(src: Source, plan: Plan, row: str, count: int) -> None:
    problem, decision, v = plan.problem, plan.decision, plan.vectors
    tile = [(m, u) for m in range(count) for u in range(decision.score_vectors)]
    with src.block(f"score_tile_{count}"):
        src(*(v.buffer(f"dot{m}", decision.score_vectors) for m in range(count)))
        src(*(f"dot{m}[{u}] = {v.const(0.0)}" for m, u in tile))
        with src.loop("x", problem.d):
            start = f"base * {i64(decision.block_k * problem.d)} + (panel * {i64(problem.d)} + x) * {i64(plan.panel)}"
            for m, u in tile:
                query = v.all(plan.scratch("queries", f"({row} + {i64(m)}) * {i64(problem.d)} + x"))
                src(f"dot{m}[{u}] = dot{m}[{u}] + {query} * keys[{v.span(f'{start} + {i64(u * plan.lanes)}')}]")
        for m, u in tile:
            at = f"({row} + {i64(m)}) * {i64(decision.block_k)} + panel * {i64(plan.panel)} + {i64(u * plan.lanes)}"
            src(f"{plan.scratch_vector('scores', at)} = dot{m}[{u}]")


def _values(src: Source, plan: Plan) -> None:
    """mixed[r] = mixed[r] * fades[r] + scores[r] @ V over the keys of the block that the tile's rows see."""
    for first, count in plan.value_groups:
        _row_tiles(src, plan.decision.value_rows, lambda row, rows: _value_tile(src, plan, row, rows, first, count))


def _value_tile(src: Source, plan: Plan, row: str, rows: int, group: int, vectors: int) -> None:
    problem, decision, v = plan.problem, plan.decision, plan.vectors
    tile = [(m, u) for m in range(rows) for u in range(vectors)]

    def at(m: int, u: int) -> str:
        return plan.scratch_vector("mixed", f"({row} + {i64(m)}) * {i64(problem.d)} + {i64((group + u) * plan.lanes)}")

    with src.block(f"value_tile_{rows}"):
        src(*(v.buffer(f"sum{m}", vectors) for m in range(rows)))
        for m, u in tile:
            fade = plan.scratch_vector("fades", f"({row} + {i64(m)}) * {i64(plan.lanes)}")
            src(f"sum{m}[{u}] = {at(m, u)} * {fade}")
        seen = "valid"
        if problem.causal:
            seen = f"T.max(T.int64(0), T.min(valid, q0 + {row} + {i64(rows)} + {problem.shift} - first))"
        with src.loop("j", seen):
            for m, u in tile:
                weight = v.all(plan.scratch("scores", f"({row} + {i64(m)}) * {i64(decision.block_k)} + j"))
                src(f"sum{m}[{u}] = sum{m}[{u}] + {weight} * {_value(plan, (group + u) * plan.lanes)}")
        src(*(f"{at(m, u)} = sum{m}[{u}]" for m, u in tile))


def _value(plan: Plan, x: int) -> str:
    if not plan.decision.pack_values:
        return value_at(plan, "first + j", x)
    start = f"(base * {i64(plan.decision.block_k)} + j) * {i64(plan.problem.d)} + {i64(x)}"
    return f"values[{plan.vectors.span(start)}]"


def _row_tiles(src: Source, height: int, emit: Callable[[str, int], None]) -> None:
    """`emit(first row, rows)` over `rows` rows: tiles of `height`, then pairs, then one row; none is padded."""
    with src.loop("tile", f"rows // {i64(height)}"):
        emit(f"tile * {i64(height)}", height)
    if height > 2:
        with src.loop("tile", f"rows % {i64(height)} // T.int64(2)"):
            emit(f"(rows // {i64(height)} * {i64(height)} + tile * T.int64(2))", 2)
    if height > 1:
        with src.under(f"if rows % {i64(height)} % T.int64(2) == T.int64(1):"):
            emit("(rows - T.int64(1))", 1)


def _finish(src: Source, plan: Plan) -> None:
    """O = mixed / totals; a row that saw nothing has a total near 0 and becomes 0."""
    problem, v = plan.problem, plan.vectors
    with src.loop("r", "rows"), src.block("finish"):
        src(v.buffer("total"), v.buffer("swap"))
        src(f"total[0] = {plan.scratch_vector('totals', f'r * {i64(plan.lanes)}')}")
        src(*v.butterfly("{a} + {b}", "total[0]", "swap[0]"))
        src(f"total[0] = T.Select({v.const(0.5)} < total[0], {v.const(1.0)} / total[0], {v.const(0.0)})")
        for x in range(0, problem.d, plan.lanes):
            mixed = plan.scratch_vector("mixed", f"r * {i64(problem.d)} + {i64(x)}")
            src(f"O[n, q0 + r, head, {v.span(x)}] = {mixed} * total[0]")
