"""Both products of attention in AMX's registers: 32 queries times 32 keys, or times 32 columns of values, at a time.

Pairs of bfloat16 lie in scratch and in the packed keys and values as the registers take them: 16 words are a row. All
registers have 16 rows: what lies behind the last query is computed along with the others, and read by nobody.

                 weights 6 7
    operand 4    sums    0 1
    operand 5    sums    2 3
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from ...code.tile_registers import ROW_BYTES, ROWS, WHOLE
from .._text import Source, i64
from .plan import Plan

SIDE = 32  # rows and columns of the sums
_WORD_BYTES = 4
_WORDS = ROW_BYTES // _WORD_BYTES
_LEFT, _RIGHT = 4, 6


@dataclass(frozen=True)
class _Operand:
    """(row, column) -> a place of a scratch buffer, as text; and the words from one row to the next."""

    at: Callable[[object, object], str]
    stride: int


def configure(src: Source) -> None:
    """All registers have 16 rows of 64 bytes, from here on until `release`."""
    src(f'T.evaluate(T.call_extern("void", "{WHOLE}"))')


def release(src: Source, plan: Plan) -> None:
    """Give the registers back. Of every buffer the last element is read, so that lowering makes none smaller: the
    instructions say where they begin alone.
    """
    _call(src, "tilerelease")
    src(*(f"T.evaluate({name}[{rows - 1}, {columns - 1}])" for name, (rows, columns) in plan.scratch.items()))


def score_tiles(src: Source, plan: Plan) -> None:
    """scores[r, key] = queries[r] . keys[key] for the keys of a panel and all rows that see some of them."""
    problem, decision = plan.problem, plan.decision
    queries = _Operand(lambda row, k: f"queries[top + {i64(row)}, {k}]", plan.width)
    keys = _Operand(lambda k, column: f"keys[n, kv, block, panel, {k}, {i64(column)}]", plan.panel)
    scores = _Operand(
        lambda row, column: f"scores[top + {i64(row)}, panel * {i64(plan.panel)} + {i64(column)}]", decision.block_k
    )
    seen = f"if panel * {i64(plan.panel)} < q0 + top + {i64(SIDE)} + {problem.shift} - first:"
    with _tiles(src), src.under(seen) if problem.causal else nullcontext():
        _product(src, queries, keys, scores, i64(plan.width // _WORDS), continued=False)


def value_tiles(src: Source, plan: Plan) -> None:
    """mixed[r] = mixed[r] * fades[r] + weights[r] @ V over the keys of the block that any of 32 rows sees."""
    problem = plan.problem
    with src.rows():
        for x in src.columns(problem.d, plan.lanes):
            mixed = plan.vector("mixed", "r", x)
            src(f"{mixed} = {mixed} * {plan.vector('fades', 'r')}")
    weights = _Operand(lambda row, k: f"weights[top + {i64(row)}, {k}]", plan.depth)
    values = _Operand(lambda k, column: f"values[n, kv, block, {k}, part * {i64(SIDE)} + {i64(column)}]", problem.d)
    mixed_sums = _Operand(lambda row, column: f"mixed[top + {i64(row)}, part * {i64(SIDE)} + {i64(column)}]", problem.d)
    with _tiles(src):
        seen = "valid"
        if problem.causal:
            seen = f"T.max(T.int64(0), T.min(valid, q0 + top + {i64(SIDE)} + {problem.shift} - first))"
        src.let("steps", f"({seen} + {i64(2 * _WORDS - 1)}) // {i64(2 * _WORDS)}")
        with src.loop("part", problem.d // SIDE):
            _product(src, weights, values, mixed_sums, "steps", continued=True)


@contextmanager
def _tiles(src: Source) -> Iterator[None]:
    """For every 32 rows, `top` being their first."""
    with src.loop("tile", f"(rows + {i64(SIDE - 1)}) // {i64(SIDE)}"):
        src.let("top", f"tile * {i64(SIDE)}")
        yield


def _product(src: Source, left: _Operand, right: _Operand, sums: _Operand, steps: str, continued: bool) -> None:
    """sums (+)= left @ right, 16 words of each row of `left` a step."""
    places = [(i, j, 2 * i + j) for i in range(2) for j in range(2)]
    for i, j, register in places:
        if continued:
            _move(src, "tileloadd64", register, sums.at(ROWS * i, _WORDS * j), sums.stride)
        else:
            _call(src, "tilezero", f"T.int8({register})")
    with src.loop("k", steps):
        for i in range(2):
            _move(src, "tileloadd64", _LEFT + i, left.at(ROWS * i, f"k * {i64(_WORDS)}"), left.stride)
            _move(src, "tileloadd64", _RIGHT + i, right.at(f"k * {i64(_WORDS)}", _WORDS * i), right.stride)
        for i, j, register in places:
            _call(src, "tdpbf16ps", *(f"T.int8({each})" for each in (register, _LEFT + i, _RIGHT + j)))
    for i, j, register in places:
        _move(src, "tilestored64", register, sums.at(ROWS * i, _WORDS * j), sums.stride)


def _move(src: Source, name: str, register: int, place: str, stride: int) -> None:
    _call(src, name, f"T.int8({register})", f"T.address_of({place})", i64(_WORD_BYTES * stride))


def _call(src: Source, name: str, *arguments: str) -> None:
    listed = ", ".join(('"void"', f'"llvm.x86.{name}"', *arguments))
    src(f"T.evaluate(T.call_llvm_intrin({listed}))")
