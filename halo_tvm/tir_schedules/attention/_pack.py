"""The first stage: keys transposed into panels, values gathered, key masks as numbers to add."""

from __future__ import annotations

from ._problem import locate_keys
from ._text import Source, i64
from .flash_attention.plan import Plan

MASKED = -3e38  # added to or put in place of the score of an invisible key


def allocate(src: Source, plan: Plan) -> None:
    """Scratch for all heads; the sizes are of K and V themselves."""
    problem, decision = plan.problem, plan.decision
    heads = f"{problem.b}, {i64(problem.h_kv)}, {plan.key_blocks}"
    panels = f"{i64(decision.block_k // plan.panel)}, {i64(plan.width)}, {i64(plan.panel)}"
    src(f'keys = T.alloc_buffer(({heads}, {panels}), "float32")')
    if plan.packs_values:
        src(f'values = T.alloc_buffer(({heads}, {i64(plan.depth)}, {i64(problem.d)}), "float32")')
    if problem.key_mask:
        src(f'key_bias = T.alloc_buffer(({problem.b}, {plan.key_blocks}, {i64(decision.block_k)}), "float32")')


def pack(src: Source, plan: Plan) -> None:
    """One task per batch row, KV head and block of keys."""
    problem, decision = plan.problem, plan.decision
    tasks = f"{problem.b} * {i64(problem.h_kv)} * {plan.key_blocks}"
    with src.loop("task", tasks, "parallel"), src.block("pack"):
        src.let("block", f"task % {plan.key_blocks}")
        src.let("kv", f"task // {plan.key_blocks} % {i64(problem.h_kv)}")
        src.let("n", f"task // ({plan.key_blocks} * {i64(problem.h_kv)})")
        src.let("first", f"block * {i64(decision.block_k)}")
        locate_keys(src, problem)
        src.let("valid", f"T.min({i64(decision.block_k)}, {problem.keys} - first)")
        _transpose_keys(src, plan)
        if plan.pairs:
            _pair_values(src, plan)
        elif plan.packs_values:
            with src.loop("j", "valid"):
                for x in src.columns(problem.d, plan.lanes):
                    src(f"values[n, kv, block, j, {plan.vectors.span(x)}] = {value_at(plan, 'first + j', x)}")
        if problem.key_mask:
            _number_mask(src, plan)


def _pair_values(src: Source, plan: Plan) -> None:
    """values[n, kv, block, word, d] = keys k and k + lanes of each 2 * lanes keys.

    Behind the last key it is repeated: its weights there are those of invisible keys.
    """
    problem, v, lanes = plan.problem, plan.vectors, plan.lanes
    with src.loop("group", f"(valid + {i64(2 * lanes - 1)}) // {i64(2 * lanes)}"), src.loop("j", lanes):
        for name, offset in (("low", 0), ("high", lanes)):
            key = f"first + group * {i64(2 * lanes)} + {i64(offset)} + j"
            src.let(name, f"T.min({key}, {problem.keys} - T.int64(1))")
        for x in src.columns(problem.d, lanes):
            word = v.pair(value_at(plan, "low", x), value_at(plan, "high", x))
            src(f"values[n, kv, block, group * {i64(lanes)} + j, {v.span(x)}] = {word}")


def _transpose_keys(src: Source, plan: Plan) -> None:
    """keys[n, kv, block, panel, d, column] = K[key, d] * scale, a square of lanes x lanes at a time.

    The last square repeats the last key; its columns are masked later. Of pairs, d counts words.
    """
    problem, decision, v, lanes = plan.problem, plan.decision, plan.vectors, plan.lanes
    rows = [f"row{i}" for i in range(lanes)]
    with (
        src.loop("c", f"(valid + {i64(lanes - 1)}) // {i64(lanes)}"),
        src.loop("x", plan.width // lanes),
        src.block("square"),
    ):
        src(*(v.buffer(row) for row in rows), v.buffer("swap"))
        for i, row in enumerate(rows):
            key = f"T.min(first + c * {i64(lanes)} + {i64(i)}, {problem.t} - T.int64(1))"
            if plan.pairs:
                halves = (f"x * {i64(2 * lanes)}", f"x * {i64(2 * lanes)} + {i64(lanes)}")
                low, high = (f"{key_at(plan, key, x)} * {v.const(problem.score_scale)}" for x in halves)
                src(f"{row}[0] = {v.pair(low, high)}")
            else:
                src(f"{row}[0] = {key_at(plan, key, f'x * {i64(lanes)}')} * {v.const(problem.score_scale)}")
        src(*v.transpose([f"{row}[0]" for row in rows], "swap[0]"))
        panel = f"c // {i64(decision.score_vectors)}"
        column = f"c % {i64(decision.score_vectors)} * {i64(lanes)}"
        for i, row in enumerate(rows):
            src(f"keys[n, kv, block, {panel}, x * {i64(lanes)} + {i64(i)}, {v.span(column)}] = {row}[0]")


def _number_mask(src: Source, plan: Plan) -> None:
    """key_bias[n, block, column] = 0 where key_mask is set, else MASKED; once per batch row."""
    seen = "key_mask[n, first + j]"
    if plan.problem.key_mask != "bool":
        seen = f"{seen} != T.{plan.problem.key_mask}(0)"
    with src.under("if kv == T.int64(0):"), src.loop("j", "valid"):
        src(f"key_bias[n, block, j] = T.Select({seen}, T.float32(0), T.float32({MASKED}))")


def query_at(plan: Plan, row: str, x: object) -> str:
    """A vector of query `row` of head `head` of batch row `n`."""
    problem, span = plan.problem, plan.vectors.span
    if problem.packed:
        return f"QKV[n, {row}, {span(f'head * {i64(problem.d)} + {i64(x)}')}]"
    return f"Q[n, {row}, head, {span(x)}]"


def key_at(plan: Plan, key: str, x: object, *, scaled: bool = True) -> str:
    """A vector of a key; not `scaled` is one of eight bits without its `row_scale`."""
    problem, span = plan.problem, plan.vectors.span
    if problem.packed:
        return f"QKV[n, {key}, {span(f'({i64(problem.h)} + kv) * {i64(problem.d)} + {i64(x)}')}]"
    return _widened(plan, "K", key, span(x), scaled)


def value_at(plan: Plan, key: str, x: object, *, scaled: bool = True) -> str:
    """A vector of a value, as `key_at`."""
    problem, span = plan.problem, plan.vectors.span
    if problem.packed:
        return f"QKV[n, {key}, {span(f'({i64(problem.h + problem.h_kv)} + kv) * {i64(problem.d)} + {i64(x)}')}]"
    return _widened(plan, "V", key, span(x), scaled)


def _widened(plan: Plan, tensor: str, key: str, span: str, scaled: bool) -> str:
    """A vector of keys or values as float32."""
    vector = f"{tensor}[n, {key}, kv, {span}]"
    if plan.problem.kept == "float32":
        return vector
    wide = f'T.Cast("{plan.vectors.dtype}", {vector})'
    scale = row_scale(plan, tensor, key) if scaled else None
    return wide if scale is None else f"{wide} * {scale}"


def row_scale(plan: Plan, tensor: str, key: str) -> str | None:
    """What the integers of a key ("K") or value ("V") are multiplied with, in all lanes; None where none are kept."""
    if plan.problem.kept != "int8":
        return None
    stored = f"{tensor}[n, {key}, kv, T.ramp({i64(plan.problem.d)}, T.int64(1), 4)]"  # relay_ops/parts/kept_rows.py
    return plan.vectors.all(f'T.reinterpret("float32", {stored})')
