"""The first kernel: a block of threads per batch row, rows of a KV head and part of its keys."""

from __future__ import annotations

from ....targets import WARP
from .. import _online_softmax as _softmax
from .._grid import launched
from .._problem import locate_keys
from .._text import Source, i64
from . import _join
from ._plan import Plan


def attend(src: Source, plan: Plan) -> None:
    """Each lane group of each warp has its own online softmax; they meet at the end."""
    problem, decision = plan.problem, plan.decision
    shape = f"{problem.b}, {i64(decision.splits)}, {i64(plan.rows)}"
    src(f'part_out = T.alloc_buffer(({shape}, {i64(problem.d)}), "float32")')
    src(*(f'{name} = T.alloc_buffer(({shape}), "float32")' for name in ("part_peak", "part_total")))
    parts = {"n": problem.b, "heap": problem.h_kv * plan.piles, "split": decision.splits}
    with launched(src, "part", parts, warp=decision.warps, lane=WARP):
        held = plan.row_count * decision.warps
        src(f'warp_out = T.alloc_buffer(({held * problem.d},), "float32", scope="shared")')
        src(*(f'{name} = T.alloc_buffer(({held},), "float32", scope="shared")' for name in ("warp_peak", "warp_total")))
        src(f'query = T.alloc_buffer(({plan.row_count * plan.columns},), "float32", scope="local")')
        for name in ("key", "value"):
            src(f'{name} = T.alloc_buffer(({decision.keys * plan.columns},), "{problem.dtype}", scope="local")')
        _softmax.declare(src, plan)
        src.let("kv", f'T.cast(heap // {plan.piles}, "int64")')
        src.let("pile", f"heap % {plan.piles}", "int32")
        divide(src, plan)
        lowest = f"split * span + warp * {plan.keys_per_warp} + lane // {plan.key_lanes}"
        skipped = f"T.max(0, shift - {problem.window - 1} - split * span)" if problem.window else "T.int32(0)"
        src.let("skipped", f"{skipped} // {plan.step} * {plan.step}", "int32")
        src.let("end", "T.min(keys, (split + 1) * span)", "int32")
        src.let("steps", f"(end - split * span - skipped + {plan.step - 1}) // {plan.step}", "int32")
        _load_queries(src, plan)
        with src.under("for step in T.serial(T.max(steps, 0)):"):
            src.let("first", f"{lowest} + skipped + step * {plan.step}", "int32")
            _load(src, plan, "key", "K")
            _load(src, plan, "value", "V")
            _scores(src, plan)
            _softmax.finish_scores(src, plan)
            _softmax.softmax(src, plan)
            _values(src, plan)
        _join_lanes(src, plan)
        _leave(src, plan)


def divide(src: Source, plan: Plan) -> None:
    """The keys of batch row n, and the `span` of each part; a span is whole steps, so that parts never share one."""
    problem, decision = plan.problem, plan.decision
    locate_keys(src, problem)
    src.let("keys", problem.keys, "int32")
    src.let("shift", problem.shift, "int32")
    src.let("queries", problem.s, "int32")
    least = -(-decision.least_keys // plan.step) * plan.step
    whole = decision.splits * plan.step
    src.let("span", f"T.max({least}, (keys + {whole - 1}) // {whole} * {plan.step})", "int32")


def _load_queries(src: Source, plan: Plan) -> None:
    for r in range(plan.row_count):
        with src.under(f"for e in T.unroll({plan.columns}):"):
            query = f'T.cast({plan.query(r)}, "int64"), {plan.head(r)}, T.cast({plan.column("e")}, "int64")'
            src(f'query[{r * plan.columns} + e] = T.cast(Q[n, {query}], "float32")')


def _load(src: Source, plan: Plan, to: str, tensor: str) -> None:
    """A lane's columns of its keys of this step; behind the end, zeros: there may lie anything."""
    vector = plan.vector
    zero = f'T.broadcast(T.cast(T.float32(0), "{plan.problem.dtype}"), {vector})'
    with src.under(f"for c in T.unroll({plan.decision.keys}):"):
        with src.under(f"for j in T.unroll({plan.columns // vector}):"):
            column = f'T.ramp(T.cast({plan.column(f"(j * {vector})")}, "int64"), T.int64(1), {vector})'
            found = f'{tensor}[n, T.cast({plan.key("c")}, "int64"), kv, {column}]'
            at = f"T.ramp(c * {plan.columns} + j * {vector}, 1, {vector})"
            src(f"{to}[{at}] = T.if_then_else({plan.key('c')} < end, {found}, {zero})")


def _scores(src: Source, plan: Plan) -> None:
    with src.under(f"for c in T.unroll({plan.column_count}):"):
        for r in range(plan.row_count):
            at = f"score[{plan.score(r, 'c')}]"
            src(f"{at} = T.float32(0)")
            with src.under(f"for e in T.unroll({plan.columns}):"):
                src(f'{at} = {at} + query[{r * plan.columns} + e] * T.cast(key[c * {plan.columns} + e], "float32")')
            _softmax.across(src, at, "({} + {})", 1, plan.key_lanes)


def _values(src: Source, plan: Plan) -> None:
    with src.under(f"for c in T.unroll({plan.column_count}):"), src.under(f"for e in T.unroll({plan.columns}):"):
        for r in range(plan.row_count):
            out = f"out[{plan.out(r, 'e')}]"
            value = f'T.cast(value[c * {plan.columns} + e], "float32")'
            src(f"{out} = {out} + score[{plan.score(r, 'c')}] * {value}")


def _join_lanes(src: Source, plan: Plan) -> None:
    """The results of a warp's groups of lanes, in each of them, and those of a warp in shared memory."""
    lanes = plan.key_lanes
    for r in range(plan.row_count):
        src(f"top[{r}] = peak[{r}]")
        _softmax.across(src, f"top[{r}]", "T.max({}, {})", lanes, WARP)
        src(_softmax.exp2(f"fade[{r}]", f"peak[{r}] - top[{r}]"), f"total[{r}] = total[{r}] * fade[{r}]")
        _softmax.across(src, f"total[{r}]", "({} + {})", lanes, WARP)
        _softmax.fade_results(src, plan, r)
        if lanes < WARP:
            with src.under(f"for e in T.unroll({plan.columns}):"):
                _softmax.across(src, f"out[{plan.out(r, 'e')}]", "({} + {})", lanes, WARP)
    with src.under(f"if lane < {lanes}:"):
        for r in range(plan.row_count):
            held = f"(warp * {plan.row_count} + {r})"
            with src.under(f"for e in T.unroll({plan.columns}):"):
                src(f"warp_out[{held} * {plan.problem.d} + {plan.column('e')}] = out[{plan.out(r, 'e')}]")
    with src.under("if lane == 0:"):
        for r in range(plan.row_count):
            held = f"warp * {plan.row_count} + {r}"
            src(f"warp_peak[{held}] = top[{r}]", f"warp_total[{held}] = total[{r}]")


def _leave(src: Source, plan: Plan) -> None:
    """What the merge needs of this part: the warps' results, by the largest of their peaks."""
    d, rows, warps = plan.problem.d, plan.row_count, plan.decision.warps
    _join.declare(src)
    src('T.evaluate(T.tvm_storage_sync("shared"))')
    with src.under(f"for i in T.unroll({-(-rows * d // plan.threads)}):"):
        src.let("item", f"i * {plan.threads} + warp * {WARP} + lane", "int32")
        src.let("r", f"item // {d}", "int32")
        src.let("x", f"item % {d}", "int32")
        with src.under(f"if T.And(item < {rows * d}, split * span < T.max(keys, 1)):"):
            held, each = f"w * {rows} + r", f"for w in T.unroll({warps}):"
            _join.join(src, each, f"warp_peak[{held}]", f"warp_total[{held}]", f"warp_out[({held}) * {d} + x]")
            row = f'T.cast(split, "int64"), kv * {i64(plan.group)} + T.cast(pile * {rows} + r, "int64")'
            src(f'part_out[n, {row}, T.cast(x, "int64")] = mixed[0]')
            with src.under("if x == 0:"):
                src(f"part_peak[n, {row}] = best[0]", f"part_total[n, {row}] = sum[0]")
