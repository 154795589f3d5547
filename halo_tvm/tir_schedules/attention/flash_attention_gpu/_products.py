"""Both products of a step, on tensor cores and by multiply-adds in float32.

Tensor cores: m16n8k16 of 16-bit operands, m16n8k8 of float32 rounded to tf32; operands through ldmatrix; the weights of
the second product are a thread's own scores, which lie where the instruction wants its first operand. Multiply-adds:
a thread has 4 rows, its 8 neighbours share them; weights go through shared memory.
"""

from __future__ import annotations

from .._text import Source
from ._plan import Plan
from ._tiles import meet


def declare(src: Source, plan: Plan) -> None:
    """Registers of the operands."""
    dtype = plan.problem.dtype
    if plan.on_tensor_cores:
        depth = plan.problem.d // plan.depth if plan.keeps_queries else 1
        _local(src, "query", plan.stack * depth * plan.chunk, dtype)
        _local(src, "other", plan.chunk, dtype)
        _local(src, "weights", plan.row_count * plan.column_count, dtype)
        if plan.operand == "tf32":
            _local(src, "bits", 1, "uint32")
    else:
        _local(src, "query", 4 * plan.row_count, dtype)
        _local(src, "other", 4, dtype)


def keep_queries(src: Source, plan: Plan) -> None:
    """Queries into registers, once their tile is there."""
    with _unrolled(src, "kk", plan.problem.d // plan.depth):
        _load_queries(src, plan, plan.problem.d // plan.depth)


def scores(src: Source, plan: Plan) -> None:
    """score = queries @ keys^T"""
    with _unrolled(src, "i", plan.row_count * plan.column_count):
        src("score[i] = T.float32(0)")
    if plan.on_tensor_cores:
        _scores_by_mma(src, plan)
    else:
        _scores_by_fma(src, plan)


def values(src: Source, plan: Plan) -> None:
    """out = out + score @ values"""
    if plan.operand == "tf32":
        _values_by_tf32(src, plan)
    elif plan.on_tensor_cores:
        _values_by_mma(src, plan)
    else:
        _values_by_fma(src, plan)


def store_weights(src: Source, plan: Plan) -> None:
    """The weights where the second product takes them."""
    held = plan.row_count * plan.column_count
    if plan.operand == "tf32":
        with _unrolled(src, "i", held // 4):
            for to, source in enumerate((0, 2, 1, 3)):
                _round(src, f"weights[i * 4 + {to}]", f"score[i * 4 + {source}]")
    elif plan.on_tensor_cores:
        with _unrolled(src, "i", held):
            src(f'weights[i] = T.cast(score[i], "{plan.problem.dtype}")')
    else:
        for r in range(plan.row_count):
            with _unrolled(src, "c", plan.column_count):
                at = f"{plan.tiles['p']} + {plan.row(r)} * {plan.score_stride} + {plan.column('c')}"
                src(f"{plan.memory}[{at}] = score[{plan.score(r, 'c')}]")
        meet(src)


# ---- tensor cores


def _scores_by_mma(src: Source, plan: Plan) -> None:
    per_tile, chunk = plan.decision.block_k // 8, plan.chunk
    with _unrolled(src, "kk", plan.problem.d // plan.depth):
        if not plan.keeps_queries:
            _load_queries(src, plan, 1)
        with _unrolled(src, "pair", plan.decision.block_k // 16):
            key = "(pair * 16 + lane // 16 * 8 + lane % 8)"
            at = f"{plan.tiles['k']} + {key} * {plan.stride} + kk * {plan.depth} + lane // 8 % 2 * {chunk}"
            _load(src, plan, "other", "0", at)
            for m in range(plan.stack):
                a = f"({m * plan.problem.d // plan.depth} + kk) * {chunk}" if plan.keeps_queries else f"{m * chunk}"
                for half in range(2):
                    c = f"({m * per_tile + half} + pair * 2) * 4"
                    src(_mma(plan, "query", a, half * chunk // 2, "score", c))


def _values_by_mma(src: Source, plan: Plan) -> None:
    per_tile = plan.problem.d // 8
    with _unrolled(src, "kk", plan.decision.block_k // 16), _unrolled(src, "pair", plan.problem.d // 16):
        at = f"{plan.tiles['v']} + (kk * 16 + lane % 16) * {plan.stride} + pair * 16 + lane // 16 * 8"
        _load(src, plan, "other", "0", at, transposed=True)
        for m in range(plan.stack):
            a = f"({m * plan.decision.block_k // 16} + kk) * 8"
            for half in range(2):
                src(_mma(plan, "weights", a, half * 4, "out", f"({m * per_tile + half} + pair * 2) * 4"))


def _values_by_tf32(src: Source, plan: Plan) -> None:
    """ldmatrix transposes 16-bit elements only, so each thread loads its two.

    A thread's scores are of the keys 2 t and 2 t + 1 of eight, t = lane % 4, where the instruction has t and t + 4.
    The order of keys does not matter in a sum over them: both operands take the former for the latter.
    """
    with _unrolled(src, "kk", plan.decision.block_k // 8), _unrolled(src, "column", plan.problem.d // 8):
        for e in range(2):
            at = f"{plan.tiles['v']} + (kk * 8 + lane % 4 * 2 + {e}) * {plan.stride} + column * 8 + lane // 4"
            _round(src, f"other[{e}]", f"{plan.memory}[{at}]")
        for m in range(plan.stack):
            a = f"({m * plan.decision.block_k // 8} + kk) * 4"
            src(_mma(plan, "weights", a, 0, "out", f"({m * plan.problem.d // 8} + column) * 4"))


def _load_queries(src: Source, plan: Plan, depth: int) -> None:
    """The operand of step kk of each tile of 16 rows; `depth` steps are kept."""
    for m in range(plan.stack):
        row = f"(warp * {plan.rows_per_warp} + {m * 16} + lane % 16)"
        to = f"({m * depth} + kk) * {plan.chunk}" if depth > 1 else f"{m * plan.chunk}"
        at = f"{plan.tiles['q']} + {row} * {plan.stride} + kk * {plan.depth} + lane // 16 * {plan.chunk}"
        _load(src, plan, "query", to, at)


def _load(src: Source, plan: Plan, to: str, to_at: str, at: str, transposed: bool = False) -> None:
    """Four matrices of 8 rows of 16 bytes into the registers that hold an operand."""
    src(
        f'T.evaluate(T.ptx_legacy.ldmatrix({transposed}, 4, ".b16", {to}.data, {to_at}, '
        f'{plan.memory}.access_ptr("r"), {at}, dtype="{plan.problem.dtype}"))'
    )
    if plan.operand == "tf32":
        with _unrolled(src, "e", plan.chunk):
            _round(src, f"{to}[{to_at} + e]", f"{to}[{to_at} + e]")


def _round(src: Source, to: str, value: str) -> None:
    """to = `value` as tf32: to nearest, ties away from zero.

    Adding half a unit to the bits would be one instruction instead of two, and makes -0 of NVIDIA's NaN, 0x7FFFFFFF.
    """
    src(f'T.evaluate(T.ptx["cvt.rna.tf32.f32"](bits[0], {value}))', f'{to} = T.reinterpret("float32", bits[0])')


def _mma(plan: Plan, a: str, a_at: str, b_at: int, c: str, c_at: str) -> str:
    return (
        f'T.evaluate(T.ptx_legacy.mma("m16n8k{plan.depth}", "row", "col", "{plan.operand}", "{plan.operand}", "fp32", '
        f'{a}.data, {a_at}, other.data, {b_at}, {c}.data, {c_at}, False, dtype="float32"))'
    )


# ---- multiply-adds


def _scores_by_fma(src: Source, plan: Plan) -> None:
    with src.under(f"for x in T.serial({plan.problem.d // 4}):"):
        for r in range(plan.row_count):
            query = f"{plan.tiles['q']} + {plan.row(r)} * {plan.stride} + x * 4"
            src(f"query[{_four(r * 4)}] = {plan.memory}[{_four(query)}]")
        with _unrolled(src, "c", plan.column_count):
            key = f"{plan.tiles['k']} + {plan.column('c')} * {plan.stride} + x * 4"
            src(f"other[{_four(0)}] = {plan.memory}[{_four(key)}]")
            for r in range(plan.row_count):
                at = f"score[{plan.score(r, 'c')}]"
                with _unrolled(src, "e", 4):
                    src(f"{at} = {at} + query[{r * 4} + e] * other[e]")


def _values_by_fma(src: Source, plan: Plan) -> None:
    vector = plan.out_vector
    with src.under(f"for j in T.serial({plan.decision.block_k // 4}):"):
        for r in range(plan.row_count):
            weight = f"{plan.tiles['p']} + {plan.row(r)} * {plan.score_stride} + j * 4"
            src(f"query[{_four(r * 4)}] = {plan.memory}[{_four(weight)}]")
        with _unrolled(src, "e", 4), _unrolled(src, "u", plan.out_count):
            value = f"{plan.tiles['v']} + (j * 4 + e) * {plan.stride} + {plan.out_column('u')}"
            src(f"other[T.ramp(0, 1, {vector})] = {plan.memory}[T.ramp({value}, 1, {vector})]")
            for r in range(plan.row_count):
                with _unrolled(src, "w", vector):
                    at = f"out[{plan.out(r, 'u')} + w]"
                    src(f"{at} = {at} + query[{r * 4} + e] * other[w]")


def _four(start: object) -> str:
    return f"T.ramp({start}, 1, 4)"


def _local(src: Source, name: str, count: int, dtype: str) -> None:
    src(f'{name} = T.alloc_buffer(({count},), "{dtype}", scope="local")')


def _unrolled(src: Source, var: str, extent: int):
    return src.under(f"for {var} in T.unroll({extent}):")
