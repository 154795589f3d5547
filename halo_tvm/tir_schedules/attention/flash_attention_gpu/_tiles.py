"""Tiles of queries, keys and values on their way from global to shared memory."""

from __future__ import annotations

from ....targets import WARP
from ...code.threads import VECTOR_BYTES
from .._problem import Problem
from .._text import Source, i64
from ._plan import Plan


def copy(src: Source, plan: Plan, operand: str, first: str, limit: str) -> None:
    """Start copying the rows from `first` on of `operand` ("q", "k", "v"); rows at or behind `limit` become zeros.

    They land when `wait` returns. What lies behind the limit may be anything, and zero times infinity is not zero.
    """
    problem, decision = plan.problem, plan.decision
    rows = decision.block_q if operand == "q" else decision.block_k
    per_row = problem.d // plan.chunk
    total = rows * per_row
    tensor, start, pitch = _place(problem, operand)
    with src.under(f"for i in T.unroll({-(-total // plan.threads)}):"):
        src.let("chunk", f"i * {plan.threads} + warp * {WARP} + lane", "int32")
        src.let("at", f"chunk // {per_row}", "int32")
        src.let("x", f"chunk % {per_row} * {plan.chunk}", "int32")
        source = f'{start} + T.cast({first} + at, "int64") * {pitch} + T.cast(x, "int64")'
        # Neither read nor written, as TVM is told: it takes all tiles for one, and would put barriers between copies
        # into one of them and loads from another. Those that are needed are written here.
        to = f"{plan.memory}.access_ptr(0, offset={plan.tiles[operand]} + at * {plan.stride} + x)"
        size = f"T.Select({first} + at < {limit}, T.uint32({VECTOR_BYTES}), T.uint32(0))"
        call = (
            f'T.evaluate(T.ptx["cp.async.cg.shared.global"]({to}, '
            f'{tensor}.access_ptr("r", offset={source}), {VECTOR_BYTES}, {size}))'
        )
        if total % plan.threads:
            with src.under(f"if chunk < {total}:"):
                src(call)
        else:
            src(call)
    src('T.evaluate(T.ptx["cp.async.commit_group"]())')


def wait(src: Source) -> None:
    """Everything that was copied is there for every thread, and nobody still reads what may be overwritten now."""
    land(src)
    meet(src)


def meet(src: Source) -> None:
    """No thread of the block goes on before all of them got here.

    All barriers are written: TVM does not see what copies do, and adds none where a launch is under a condition.
    """
    src('T.evaluate(T.tvm_storage_sync("shared.dyn"))')


def land(src: Source) -> None:
    """What this thread copied is there."""
    src('T.evaluate(T.ptx["cp.async.wait_group"](0))')


def _place(problem: Problem, operand: str) -> tuple[str, str, str]:
    """(buffer, offset of row 0, elements from row to row) of batch row n and its heads, as int64."""
    head = "head" if operand == "q" else "kv"
    if problem.packed:
        pitch = (problem.h + 2 * problem.h_kv) * problem.d
        before = {"q": 0, "k": problem.h, "v": problem.h + problem.h_kv}[operand]
        return "QKV", f"n * {problem.s} * {i64(pitch)} + ({head} + {i64(before)}) * {i64(problem.d)}", i64(pitch)
    heads, rows = (problem.h, problem.s) if operand == "q" else (problem.h_kv, problem.t)
    pitch = heads * problem.d
    return operand.upper(), f"n * {rows} * {i64(pitch)} + {head} * {i64(problem.d)}", i64(pitch)
