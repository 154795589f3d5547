"""The second stage: one task per batch row, head and block of queries walks the blocks of keys it can see."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .._pack import query_at, value_at
from .._problem import locate_keys
from .._softmax import beginning, softmax_rows
from .._text import Source, beyond, i64
from ._tiles import configure, release, score_tiles, value_tiles
from .plan import Plan


def attend(src: Source, plan: Plan) -> None:
    problem, decision = plan.problem, plan.decision
    tasks = f"{problem.b} * {i64(problem.h)} * {plan.query_blocks}"
    with src.loop("task", tasks, "parallel"), src.block("attend"):
        _locate(src, plan)
        _start(src, plan)
        if plan.tiles:
            configure(src)
        with src.loop("step", "T.max(T.int64(0), last - begin)"):
            src.let("block", "begin + step")
            src.let("first", f"block * {i64(decision.block_k)}")
            src.let("valid", f"T.min({i64(decision.block_k)}, end - first)")
            _scores(src, plan)
            softmax_rows(src, plan)
            if plan.tiles:
                value_tiles(src, plan)
            else:
                _values(src, plan)
        if plan.tiles:
            release(src, plan)
        _finish(src, plan)


def _locate(src: Source, plan: Plan) -> None:
    """Which queries a task serves, and which keys they see."""
    problem, decision = plan.problem, plan.decision
    src.let("turn", f"task % {plan.query_blocks}")
    src.let("head", f"task // {plan.query_blocks} % {i64(problem.h)}")
    src.let("n", f"task // ({plan.query_blocks} * {i64(problem.h)})")
    src.let("kv", f"head // {i64(problem.ratio)}")
    locate_keys(src, problem)
    if problem.causal:
        # Threads take runs of tasks: alternating cheap first and dear last blocks balances the runs.
        place = (
            "T.Select(turn % T.int64(2) == T.int64(0), turn // T.int64(2), "
            f"{plan.query_blocks} - T.int64(1) - turn // T.int64(2))"
        )
    else:
        place = "turn"
    src.let("q0", f"({place}) * {i64(decision.block_q)}")
    src.let("rows", f"T.min({i64(decision.block_q)}, {problem.s} - q0)")
    # `end` is behind the last key any row sees, `whole` behind the last one that every row sees.
    if problem.causal:
        src.let("end", f"T.min({problem.keys}, q0 + rows + {problem.shift})")
        src.let("whole", f"T.min({problem.keys}, q0 + T.int64(1) + {problem.shift})")
    else:
        src.let("end", problem.keys)
        src.let("whole", problem.keys)
    src.let("last", f"(end + {i64(decision.block_k - 1)}) // {i64(decision.block_k)}")
    if problem.window:
        lowest = f"q0 + {problem.shift} - {i64(problem.window - 1)}"
        src.let("begin", f"T.max(T.int64(0), {lowest}) // {i64(decision.block_k)}")
    else:
        src.let("begin", "T.int64(0)")


def _start(src: Source, plan: Plan) -> None:
    """Scratch of one task: its queries close together, a block of scores, results and row statistics."""
    problem, v = plan.problem, plan.vectors
    for name, shape in plan.scratch.items():
        src(f'{name} = T.alloc_buffer({shape}, "float32")')
    # StorageRewrite gives the space of a dead buffer to the next one, and fails when one holds vectors and the
    # other scalars: the vectors of the last step are therefore alive before the scratch is.
    src(v.buffer("total"), v.buffer("swap"), f"total[0] = {v.const(0.0)}", f"swap[0] = {v.const(0.0)}")
    with src.rows():
        for x in src.columns(plan.width, plan.lanes):
            query = query_at(plan, "q0 + r", x)
            if plan.pairs:
                low = 2 * x if isinstance(x, int) else f"{x} * T.int64(2)"
                query = v.pair(query_at(plan, "q0 + r", low), query_at(plan, "q0 + r", beyond(low, plan.lanes)))
            src(f"{plan.vector('queries', 'r', x)} = {query}")
        for x in src.columns(problem.d, plan.lanes):
            src(f"{plan.vector('mixed', 'r', x)} = {v.const(0.0)}")
        peak, total = beginning(problem, v, "head")
        src(f"{plan.vector('peaks', 'r')} = {peak}", f"{plan.vector('totals', 'r')} = {total}")


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
        if plan.tiles:
            score_tiles(src, plan)
            return
        _row_tiles(src, decision.score_rows, tile)


def _score_tile(src: Source, plan: Plan, row: str, count: int) -> None:
    decision, v = plan.decision, plan.vectors
    tile = [(m, u) for m in range(count) for u in range(decision.score_vectors)]
    with src.block(f"score_tile_{count}"):
        src(*(v.buffer(f"dot{m}", decision.score_vectors) for m in range(count)), v.buffer("query"))
        src(*(v.buffer(f"key{u}") for u in range(decision.score_vectors)))
        src(*(f"dot{m}[{u}] = {v.const(0.0)}" for m, u in tile))
        with src.loop("x", plan.width):
            for u in range(decision.score_vectors):
                src(f"key{u}[0] = keys[n, kv, block, panel, x, {v.span(u * plan.lanes)}]")
            for m in range(count):
                src(f"query[0] = {v.all(f'queries[{row} + {i64(m)}, x]')}")
                for u in range(decision.score_vectors):
                    src(f"dot{m}[{u}] = {v.dot(f'dot{m}[{u}]', 'query[0]', f'key{u}[0]', plan.pairs)}")
        for m, u in tile:
            column = f"panel * {i64(plan.panel)} + {i64(u * plan.lanes)}"
            src(f"{plan.vector('scores', f'{row} + {i64(m)}', column)} = dot{m}[{u}]")


def _values(src: Source, plan: Plan) -> None:
    """mixed[r] = mixed[r] * fades[r] + scores[r] @ V over the keys of the block that the tile's rows see."""
    decision, d = plan.decision, plan.problem.d
    step = decision.value_vectors * plan.lanes
    for x in src.columns(d, step):
        vectors = min(step, d - x) // plan.lanes if isinstance(x, int) else decision.value_vectors
        with src.block(f"columns_{x}" if isinstance(x, int) else "columns"):
            tile = functools.partial(_value_tile, src, plan, first=x, vectors=vectors)
            _row_tiles(src, decision.value_rows, tile)


def _value_tile(src: Source, plan: Plan, row: str, rows: int, first: object, vectors: int) -> None:
    problem, v = plan.problem, plan.vectors
    tile = [(m, u) for m in range(rows) for u in range(vectors)]

    def at(m: int, u: int) -> str:
        return plan.vector("mixed", f"{row} + {i64(m)}", beyond(first, u * plan.lanes))

    with src.block(f"value_tile_{rows}"):
        src(*(v.buffer(f"sum{m}", vectors) for m in range(rows)), v.buffer("weight"))
        src(*(v.buffer(f"value{u}") for u in range(vectors)))
        for m, u in tile:
            src(f"sum{m}[{u}] = {at(m, u)} * {plan.vector('fades', f'{row} + {i64(m)}')}")
        seen = "valid"
        if problem.causal:
            seen = f"T.max(T.int64(0), T.min(valid, q0 + {row} + {i64(rows)} + {problem.shift} - first))"
        if plan.pairs:  # words: those of the whole groups, then one for each key of the next one's first half
            src.let("seen", seen)
            pair, half = i64(2 * plan.lanes), i64(plan.lanes)
            seen = f"seen // {pair} * {half} + T.min(seen % {pair}, {half})"
        weights = "weights" if plan.pairs else "scores"
        with src.loop("j", seen):
            src(*(f"value{u}[0] = {_value(plan, beyond(first, u * plan.lanes))}" for u in range(vectors)))
            for m in range(rows):
                src(f"weight[0] = {v.all(f'{weights}[{row} + {i64(m)}, j]')}")
                for u in range(vectors):
                    src(f"sum{m}[{u}] = {v.dot(f'sum{m}[{u}]', 'weight[0]', f'value{u}[0]', plan.pairs)}")
        src(*(f"{at(m, u)} = sum{m}[{u}]" for m, u in tile))


def _value(plan: Plan, x: object) -> str:
    if not plan.packs_values:
        return value_at(plan, "first + j", x)
    return f"values[n, kv, block, j, {plan.vectors.span(x)}]"


def _row_tiles(src: Source, height: int, emit: Callable[[str, int], None]) -> None:
    """`emit(first row, rows)` over `rows` rows: tiles of `height`, then pairs, then one row; none is padded."""
    src.let("tiles", f"rows // {i64(height)}")
    with src.loop("tile", "tiles"):
        src.let("top", f"tile * {i64(height)}")
        emit("top", height)
    if height > 2:
        src.let("pairs", f"rows % {i64(height)} // T.int64(2)")
        with src.loop("tile", "pairs"):
            src.let("top", f"rows // {i64(height)} * {i64(height)} + tile * T.int64(2)")
            emit("top", 2)
    if height > 1:
        with src.under(f"if rows % {i64(height)} % T.int64(2) == T.int64(1):"):
            src.let("top", "rows - T.int64(1)")
            emit("top", 1)


def _finish(src: Source, plan: Plan) -> None:
    """O = mixed / totals; a row that saw nothing has a total near 0 and becomes 0."""
    problem, v = plan.problem, plan.vectors
    with src.rows(), src.block("finish"):
        src(f"total[0] = {plan.vector('totals', 'r')}")
        src(*v.butterfly("{a} + {b}", "total[0]", "swap[0]"))
        src(f"total[0] = T.Select({v.const(0.5)} < total[0], {v.const(1.0)} / total[0], {v.const(0.0)})")
        for x in src.columns(problem.d, plan.lanes):
            src(f"O[n, q0 + r, head, {v.span(x)}] = {plan.vector('mixed', 'r', x)} * total[0]")
