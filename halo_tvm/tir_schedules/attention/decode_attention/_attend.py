"""The first stage: one task per batch row and part of its keys computes all heads, a chunk of keys at a time.

Keys and values lie as [t, h_kv, d]: a task that took one head would jump over all others at every key. All heads
take `lanes` keys after one another instead, so that memory is read in its order, tile by tile.

Where several rows share a KV head there is more arithmetic than the processor looks ahead over: while scores are
computed the values of the same keys are fetched, and while values are added the keys of the next chunk.
"""

from __future__ import annotations

from .._pack import key_at, query_at, row_scale, value_at
from .._problem import locate_keys
from .._softmax import START
from .._text import Source, beyond, i64
from ._softmax import softmax
from .plan import Plan

PARTS = ("part_mixed", "part_peaks", "part_totals")
_TALL = 4  # rows of a register tile of the values


def attend(src: Source, plan: Plan) -> None:
    problem, decision = plan.problem, plan.decision
    _divide(src, plan)
    for name in PARTS:
        width = problem.d if name == "part_mixed" else plan.lanes
        src(
            f'{name} = T.alloc_buffer(({problem.b}, {i64(decision.splits)}, {i64(plan.rows)}, {i64(width)}), "float32")'
        )
    with src.loop("task", f"{problem.b} * splits", "parallel"), src.block("attend"):
        src.let("split", "task % splits")
        src.let("n", "task // splits")
        locate_keys(src, problem)
        lowest = "split * span"
        if problem.window:
            lowest = f"T.max({lowest}, {problem.shift} - {i64(problem.window - 1)})"
        src.let("begin", lowest)
        src.let("end", f"T.min({problem.keys}, (split + T.int64(1)) * span)")
        _start(src, plan)
        with src.loop("step", f"T.max(T.int64(0), end - begin + {i64(decision.chunk - 1)}) // {i64(decision.chunk)}"):
            src.let("first", f"begin + step * {i64(decision.chunk)}")
            src.let("valid", f"T.min({i64(decision.chunk)}, end - first)")
            _scores(src, plan)
            softmax(src, plan)
            _values(src, plan)
        _leave(src, plan)


def _divide(src: Source, plan: Plan) -> None:
    """`splits` tasks per batch row of `span` keys each, by the longest row."""
    problem, decision, lanes = plan.problem, plan.decision, plan.lanes
    if problem.lengths:
        src('most_cell = T.alloc_buffer((1,), "int32")', "most_cell[0] = 1")
        with src.loop("row", problem.b):
            src("most_cell[0] = T.max(most_cell[0], lengths[row])")
        src.let("longest", f'T.max(T.int64(1), T.min({problem.t}, T.cast(most_cell[0], "int64")))')
    else:
        src.let("longest", f"T.max(T.int64(1), {problem.t})")  # without keys, too, a span divides
    # An even number of tasks: two threads then have the same number.
    pairs = f"(longest + {i64(2 * decision.least_keys - 1)}) // {i64(2 * decision.least_keys)}"
    src.let("splits", f"T.max(T.int64(1), T.min({i64(decision.splits)}, {pairs} * T.int64(2)))")
    src.let("span", f"(longest + splits * {i64(lanes)} - T.int64(1)) // (splits * {i64(lanes)}) * {i64(lanes)}")


def _start(src: Source, plan: Plan) -> None:
    """Scratch of one task: the scaled queries, scores of a chunk, results and statistics of every row."""
    problem, v, d = plan.problem, plan.vectors, plan.problem.d
    sizes = {"queries": d, "scores": plan.decision.chunk, "mixed": d, "peaks": plan.lanes, "totals": plan.lanes}
    src(*(f'{name} = T.alloc_buffer(({plan.rows}, {width}), "float32")' for name, width in sizes.items()))
    if problem.bias:
        src(f'line = T.alloc_buffer((1, {plan.decision.chunk}), "float32")')
    with src.loop("row", plan.rows):
        src.let("r", "row")
        src.let("head", plan.head_of("r"))
        src.let("i", plan.query_of("r"))
        for x in src.columns(d, plan.lanes):
            src(f"{plan.vector('queries', 'r', x)} = {query_at(plan, 'i', x)} * {v.const(problem.score_scale)}")
            src(f"{plan.vector('mixed', 'r', x)} = {v.const(0.0)}")
        src(f"{plan.vector('peaks', 'r')} = {v.const(START)}", f"{plan.vector('totals', 'r')} = {v.const(0.0)}")


def _scores(src: Source, plan: Plan) -> None:
    """scores[row, key] = queries[row] . K[key]: tiles of `lanes` keys, in each all KV heads."""
    lanes = plan.lanes

    def heads(edge: bool) -> None:
        with src.loop("kv_head", plan.problem.h_kv):
            src.let("kv", "kv_head")
            with src.loop("member", plan.group):
                src.let("r", f"kv * {i64(plan.group)} + member")
                if plan.group > 1 and not edge:
                    _fetch_values(src, plan)
                _score_tile(src, plan, edge)

    with src.loop("tile", f"valid // {i64(lanes)}"):
        src.let("column", f"tile * {i64(lanes)}")
        heads(edge=False)
    with src.under(f"if T.int64(0) < valid % {i64(lanes)}:"):
        src.let("column", f"valid // {i64(lanes)} * {i64(lanes)}")
        heads(edge=True)


def _score_tile(src: Source, plan: Plan, edge: bool) -> None:
    """One row and `lanes` keys: a vector of products per key, then all of them summed across at once."""
    problem, v, lanes = plan.problem, plan.vectors, plan.lanes
    with src.block("edge_score_tile" if edge else "score_tile"):
        src(*(v.buffer(f"dot{j}") for j in range(lanes)), v.buffer("query"))
        src(*(f"dot{j}[0] = {v.const(0.0)}" for j in range(lanes)))
        keys = [f"first + column + {i64(j)}" for j in range(lanes)]
        if edge:  # keys that are not there repeat the last one; softmax hides them
            keys = [f"T.min({key}, {problem.t} - T.int64(1))" for key in keys]
        with src.loop("u", plan.columns):
            at = f"u * {i64(lanes)}"
            src(f"query[0] = {plan.vector('queries', 'r', at)}")
            for j, key in enumerate(keys):
                src(f"dot{j}[0] = dot{j}[0] + query[0] * {key_at(plan, key, at, scaled=False)}")
        scales = [row_scale(plan, "K", key) for key in keys]
        src(*(f"dot{j}[0] = dot{j}[0] * {scale}" for j, scale in enumerate(scales) if scale is not None))
        src(*v.sums_across([f"dot{j}[0]" for j in range(lanes)]))
        src(f"{plan.vector('scores', 'r', 'column')} = dot0[0]")


def _fetch_values(src: Source, plan: Plan) -> None:
    """Of the values of a tile of keys and one KV head, each row of the group asks for its share."""
    lines = -(-plan.problem.d // plan.line)
    share = -(-plan.lanes * lines // plan.group)
    with src.loop("ahead", share):
        src.let("line", f"member * {i64(share)} + ahead")
        src(_fetch(f"V[n, first + column + line // {i64(lines)}, kv, line % {i64(lines)} * {i64(plan.line)}]"))


def _fetch(place: str) -> str:
    """A cache line on its way to the second level; it may lie beyond the tensor: a prefetch never faults."""
    return f"T.evaluate(T.call_llvm_intrin('void', 'llvm.prefetch', T.address_of({place}), 0, 2, 1))"


def _values(src: Source, plan: Plan) -> None:
    """mixed[row] = mixed[row] + scores[row] @ V, tile by tile like the keys."""
    with src.loop("tile", f"(valid + {i64(plan.lanes - 1)}) // {i64(plan.lanes)}"):
        src.let("column", f"tile * {i64(plan.lanes)}")
        src.let("seen", f"T.min({i64(plan.lanes)}, valid - column)")
        with src.loop("kv_head", plan.problem.h_kv):
            src.let("kv", "kv_head")
            tall = min(_TALL, plan.group)
            wide = 16 // tall if plan.lanes == 16 else 12 // tall
            full, rest = divmod(plan.group, tall)
            for first in src.columns(plan.problem.d, wide * plan.lanes):
                count = min(wide, plan.columns - first // plan.lanes) if isinstance(first, int) else wide
                with src.loop("stack", full):
                    src.let("r", f"kv * {i64(plan.group)} + stack * {i64(tall)}")
                    _value_tile(src, plan, tall, first, count)
                if rest:
                    with src.block("rest"):
                        src.let("r", f"kv * {i64(plan.group)} + {i64(full * tall)}")
                        _value_tile(src, plan, rest, first, count)


def _value_tile(src: Source, plan: Plan, rows: int, first: object, count: int) -> None:
    v, lanes = plan.vectors, plan.lanes
    tile = [(m, u) for m in range(rows) for u in range(count)]

    def at(m: int, u: int) -> str:
        return plan.vector("mixed", f"r + {i64(m)}", beyond(first, u * lanes))

    def read(u: int) -> str:
        return value_at(plan, "first + column + j", beyond(first, u * lanes), scaled=False)

    scale = row_scale(plan, "V", "first + column + j")
    with src.block(f"value_tile_{rows}"):
        src(*(v.buffer(f"sum{m}", count) for m in range(rows)), v.buffer("weight"))
        src(*(v.buffer(f"value{u}") for u in range(count)))
        src(*(f"sum{m}[{u}] = {at(m, u)}" for m, u in tile))
        with src.loop("j", "seen"):
            src(*(f"value{u}[0] = {read(u)}" for u in range(count)))
            if plan.group > 1:
                key = f"first + column + j + {i64(plan.decision.chunk)}"
                for x in range(0, count * lanes, plan.line):
                    src(_fetch(f"K[n, {key}, kv, {i64(beyond(first, x))}]"))
            for m in range(rows):
                weight = v.all(f"scores[r + {i64(m)}, column + j]")
                src(f"weight[0] = {weight}" + (f" * {scale}" if scale is not None else ""))
                src(*(f"sum{m}[{u}] = sum{m}[{u}] + weight[0] * value{u}[0]" for u in range(count)))
        src(*(f"{at(m, u)} = sum{m}[{u}]" for m, u in tile))


def _leave(src: Source, plan: Plan) -> None:
    """What the merge needs of this part."""
    with src.loop("row", plan.rows):
        src.let("r", "row")
        for x in src.columns(plan.problem.d, plan.lanes):
            src(f"{plan.part('part_mixed', 'n', 'split', 'r', x)} = {plan.vector('mixed', 'r', x)}")
        for name in ("peaks", "totals"):
            src(f"{plan.part('part_' + name, 'n', 'split', 'r')} = {plan.vector(name, 'r')}")
