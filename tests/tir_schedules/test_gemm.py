"""The GEMM rule: right for every tail, epilogue, chunking and target; declines with its reason; good code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import tvm
from assembly import inner_loops, k_loops
from covering import covering
from hypothesis import given
from hypothesis import strategies as st
from linear_functions import EPILOGUES, Case, build, check, fused, fused_of, only_function, x86
from tvm import relax, te, tirx

from halo_tvm.errors import Declined
from halo_tvm.relay_ops.linear import Linear
from halo_tvm.targets import read_host
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.gemm import pack_shape
from halo_tvm.tir_schedules.products.gemm.tiling import Tiling
from halo_tvm.tuning.sizes import symbols

pytestmark = pytest.mark.covering

GEMM = RULES["gemm"]
ROWS = (*range(1, 18), 31, 33, 127, 128)
ISAS = [("avx2", 16), ("avx512", 48), ("avx512", 32)]


def runs_here(isa: str) -> bool:
    return x86(isa).isa.requires <= read_host().flags


def widest_here() -> tuple[str, int]:
    """The level with the widest vectors that this processor runs, and a width of panels for it."""
    return ("avx512", 48) if runs_here("avx512") else ("avx2", 16)


def scheduled(case: Case, isa: str, **changes: object) -> tirx.PrimFunc:
    func, target = fused(case), x86(isa)
    return GEMM.apply(func, target, replace(GEMM.default(func, target), **changes))


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(("isa", "nr"), ISAS)
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("n", [144, 131])
def test_symbolic_rows(isa: str, nr: int, epilogue: str, chunks: int, n: int) -> None:
    if not runs_here(isa):
        pytest.skip(f"this processor does not run {isa}")
    case = Case(k=96, n=n, kc=96 // chunks, nr=nr, epilogue=epilogue)
    executable = build(scheduled(case, isa), x86(isa))
    for rows in ROWS:
        check(executable, case, rows)


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 33])
@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_static_rows(isa: str, nr: int, rows: int) -> None:
    if not runs_here(isa):
        pytest.skip(f"this processor does not run {isa}")
    case = Case(k=64, n=70, kc=32, nr=nr, epilogue="bias+relu+residual", m=rows)
    check(build(scheduled(case, isa), x86(isa)), case, rows)


def test_every_decision_is_right() -> None:
    isa, nr = widest_here()
    case, target = Case(k=32, n=100, kc=16, nr=nr, epilogue="bias+residual"), x86(isa)
    func = fused(case)
    space = GEMM.space(func, target)
    assert space[0] == GEMM.default(func, target)
    assert 300 <= len(space) <= 1000
    assert len(set(space)) == len(space)
    for decision in covering(space):
        executable = build(GEMM.apply(func, target, decision), target)
        for rows in (1, 7, 9, 20, 67, 150):
            check(executable, case, rows)


@pytest.mark.parametrize("rows", [0, 1, 7, 33, 100, 200, 300])
def test_no_cut_of_known_rows_is_there_twice(rows: int) -> None:
    target = x86("avx512")
    func = fused(Case(k=64, n=96, kc=64, nr=48, m=rows))
    space = GEMM.space(func, target)
    assert space[0] == GEMM.default(func, target)
    seen = set()
    for decision in space:
        cut = replace(tiling(decision.block_rows, decision.balance), mr=decision.mr)
        blocks = [tuple(cut.tile_heights(height)) for height in cut.heights(rows)]
        seen.add((decision.mr, decision.unroll, decision.prefetch, *blocks))
    assert len(seen) == len(space)
    anything = GEMM.space(fused(Case(k=64, n=96, kc=64, nr=48)), target)
    assert {d.unroll for d in anything} == {d.unroll for d in space} and len(space) < len(anything)
    assert {d.prefetch for d in anything} == {d.prefetch for d in space}


def test_one_panel_narrower_than_a_vector() -> None:
    case = Case(k=20, n=3, kc=20, nr=16)
    executable = build(scheduled(case, "avx2"), x86("avx2"))
    for rows in (1, 2, 13):
        check(executable, case, rows)


def tiling(block_rows: int = 0, balance: bool = True, cores: int = 2) -> Tiling:
    return Tiling(lanes=16, mr=8, unroll=4, prefetch=2, block_rows=block_rows, balance=balance, cores=cores)


@pytest.mark.parametrize(
    ("rows", "balance", "expected"),
    [
        (None, True, [8, 7, 6, 5, 4, 3, 2, 1]),
        (16, True, [8]),
        (9, True, [5, 4]),
        (9, False, [8, 1]),
        (3, False, [3]),
        (127, True, [8, 7]),
        (0, True, [8]),
    ],
)
def test_row_counts(rows: int | None, balance: bool, expected: list[int]) -> None:
    assert tiling(balance=balance).row_counts(rows) == expected


@pytest.mark.parametrize(
    ("rows", "cores", "expected"),
    [
        (127, 2, [127]),
        (128, 2, [64, 64]),
        (200, 2, [100, 100]),
        (200, 4, [66, 67, 67]),
        (300, 2, [75, 75, 75, 75]),
        (300, 16, [75, 75, 75, 75]),
    ],
)
def test_row_blocks(rows: int, cores: int, expected: list[int]) -> None:
    assert tiling(64, cores=cores).heights(rows) == expected


@given(rows=st.integers(1, 700), block_rows=st.integers(0, 100), balance=st.booleans(), cores=st.integers(1, 9))
def test_blocks_and_tiles_cover_every_row_once(rows: int, block_rows: int, balance: bool, cores: int) -> None:
    t = tiling(block_rows, balance, cores)
    tiles = [t.tile_heights(height) for height in t.heights(rows)]
    assert sum(map(sum, tiles)) == rows
    assert {count for block in tiles for count in block} <= set(range(1, t.mr + 1))
    assert set(t.row_counts(rows)) == {count for block in tiles for count in block}


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("chunked", [20, 40])
def test_row_blocks_are_right(chunked: int, balance: bool) -> None:
    """Blocks of 8 rows on three cores: every number of rows around the places where their number changes."""
    isa, nr = widest_here()
    case, target = Case(k=40, n=100, kc=chunked, nr=nr, epilogue="bias+residual"), replace(x86(isa), cores=3)
    func = fused(case)
    decision = replace(GEMM.default(func, target), block_rows=8, balance=balance)
    executable = build(GEMM.apply(func, target, decision), target)
    for rows in (1, 7, 8, 15, 16, 17, 23, 24, 25, 31, 32, 47, 48, 49, 97):
        check(executable, case, rows)
    for rows in (15, 16, 49):
        func = fused(replace(case, m=rows))
        check(build(GEMM.apply(func, target, decision), target), replace(case, m=rows), rows)


# ---- what the rule declines, by its sentence ----


def declined(func: tirx.PrimFunc, isa: str = "avx512") -> str:
    with pytest.raises(Declined) as caught:
        GEMM.default(func, x86(isa))
    return str(caught.value)


def legalised(
    x_shape: list[object], weight_shape: list[int], layout: str, n: int, dtype: str = "float32"
) -> tirx.PrimFunc:
    x = relax.Var("x", relax.TensorType(x_shape, dtype))
    weight = relax.Var("weight", relax.TensorType(weight_shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight]):
        builder.emit_func_output(builder.emit(Linear.call(x, weight, layout=layout, n=n)))
    return only_function(relax.transform.LegalizeOps()(builder.get()))


def with_stage(stage) -> tirx.PrimFunc:
    m = tirx.Var("m", "int64")
    x = te.placeholder((m, 32), "float32", name="x")
    weight = te.placeholder((2, 2, 16, 48), "float32", name="weight")
    total = Linear.compute(x, weight, layout="packed", n=96)
    return te.create_prim_func([x, weight, *stage(x, weight, total)])


def elementwise(total: te.Tensor, body) -> te.Tensor:
    return te.compute(total.shape, lambda i, j: body(i, j), name="stage")


def test_declines_without_linear() -> None:
    x = te.placeholder((4, 4), "float32", name="x")
    func = te.create_prim_func([x, elementwise(x, lambda i, j: x[i, j] + 1.0)])
    assert "no block is annotated halo.op = linear" in declined(func)


@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_declines_unpacked(layout: str) -> None:
    assert "not packed as [k/kc, n/nr, kc, nr]" in declined(legalised([5, 32], [32, 32], layout, 32))


def test_declines_dtype() -> None:
    func = legalised([5, 32], [1, 1, 32, 48], "packed", 48, "float16")
    assert "float16, float16, float32: only float32, float32, float32" in declined(func)


def test_declines_rank_3() -> None:
    assert "x has rank 3: rows must be flattened" in declined(legalised([2, 5, 32], [1, 1, 32, 48], "packed", 48))


def test_declines_lanes() -> None:
    func = legalised([5, 32], [1, 2, 32, 24], "packed", 48)
    assert "panels of 24 columns are no multiple of 16 lanes" in declined(func)


def test_declines_scheduled() -> None:
    assert "scheduled already" in declined(scheduled(Case(k=32, n=48, kc=32, nr=48), "avx512"))


def test_declines_other_indices() -> None:
    func = with_stage(lambda x, w, t: [elementwise(t, lambda i, j: t[i, 95 - j])])
    assert "not at its own indices" in declined(func)


def test_declines_reduction_behind() -> None:
    def stage(x: te.Tensor, w: te.Tensor, t: te.Tensor) -> list[te.Tensor]:
        j = te.reduce_axis((0, 96), "j")
        return [te.compute((t.shape[0],), lambda i: te.sum(t[i, j], axis=j), name="row_sum")]

    assert "stage row_sum is not one element-wise store" in declined(with_stage(stage))


def test_declines_differing_widths() -> None:
    def stage(x: te.Tensor, w: te.Tensor, t: te.Tensor) -> list[te.Tensor]:
        wide = te.compute(t.shape, lambda i, j: t[i, j] + 1.0, name="wide")
        return [wide, te.compute((t.shape[0], 90), lambda i, j: wide[i, j] * 2.0, name="narrow")]

    assert "differ in their number of columns: [90, 96]" in declined(with_stage(stage))


def test_declines_too_few_columns() -> None:
    def stage(x: te.Tensor, w: te.Tensor, t: te.Tensor) -> list[te.Tensor]:
        return [te.compute((t.shape[0], 40), lambda i, j: t[i, j], name="narrow")]

    assert "40 columns do not match 2 panels of 48" in declined(with_stage(stage))


def test_declines_partial_sums_of_another_type() -> None:
    func = with_stage(lambda x, w, t: [elementwise(t, lambda i, j: t[i, j].astype("float16"))])
    assert "partial sums in the output, which is float16" in declined(func)


def test_declines_a_block_before() -> None:
    m = tirx.Var("m", "int64")
    x = te.placeholder((m, 32), "float32", name="x")
    weight = te.placeholder((1, 1, 32, 48), "float32", name="weight")
    doubled = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="doubled")
    func = te.create_prim_func([x, weight, Linear.compute(doubled, weight, layout="packed", n=48)])
    assert "block doubled runs before the linear block" in declined(func)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unroll": 5}, "unroll 5 does not divide the chunk of 32 k steps"),
        ({"mr": 0}, "mr is 0, the rule serves 1 to 32"),
        ({"prefetch": -1}, "prefetch is -1, the rule serves 0 to 48"),
    ],
)
def test_declines_decisions(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        scheduled(Case(k=32, n=48, kc=32, nr=48), "avx512", **changes)


def test_two_outputs() -> None:
    """A stage may write an output of its own: both are stored."""
    import numpy as np

    def stage(x: te.Tensor, w: te.Tensor, t: te.Tensor) -> list[te.Tensor]:
        first = te.compute(t.shape, lambda i, j: t[i, j] + 1.0, name="first")
        return [first, te.compute(t.shape, lambda i, j: first[i, j] * 2.0, name="second")]

    func, target = with_stage(stage), x86("avx2")
    executable = build(GEMM.apply(func, target, GEMM.default(func, target)), target)
    case = Case(k=32, n=96, kc=16, nr=48, epilogue="none")
    from linear_functions import arguments

    inputs, expected = arguments(case, 11)
    outs = [tvm.runtime.tensor(np.full(expected.shape, np.nan, np.float32)) for _ in range(2)]
    executable["main"](*[tvm.runtime.tensor(v) for v in inputs], *outs)
    np.testing.assert_allclose(outs[0].numpy(), expected + 1, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outs[1].numpy(), 2 * (expected + 1), rtol=1e-4, atol=1e-5)


# ---- the code ----


@pytest.mark.parametrize(
    ("isa", "nr", "mr", "register"),
    [
        ("avx512", 48, 8, "zmm"),
        ("avx512", 32, 8, "zmm"),
        ("avx2", 16, 6, "ymm"),
    ],
)
def test_assembly_of_the_main_tile(isa: str, nr: int, mr: int, register: str) -> None:
    """The inner loop of a full tile: all its FMAs on full registers, nothing spilled, one branch."""
    case, target = Case(k=768, n=768, kc=768, nr=nr, epilogue="bias", m=mr * 4), x86(isa)
    func = fused(case)
    decision = GEMM.default(func, target)
    assert decision.mr == mr
    executable = build(GEMM.apply(func, target, decision), target)
    vectors, loop = nr // target.lanes_f32, k_loops(executable, "vfmadd")[0]
    assert loop["vfmadd"] == decision.unroll * mr * vectors
    assert loop["load"] == decision.unroll * vectors
    assert loop["broadcast"] == decision.unroll * mr
    assert loop["stack"] == 0
    assert loop["branch"] == 1
    assert loop["prefetch"] == decision.prefetch
    text = executable.mod.inspect_source("asm")
    fmas = [line for lines in inner_loops(text) for line in lines if "vfmadd" in line and "ss" not in line.split()[0]]
    assert all(register in line for line in fmas)
    assert "gather" not in text and "scatter" not in text


@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_no_height_spills(isa: str, nr: int) -> None:
    case, target = Case(k=768, n=768, kc=768, nr=nr), x86(isa)
    loops = k_loops(build(scheduled(case, isa), target), "vfmadd")
    assert len(loops) >= GEMM.default(fused(case), target).mr
    assert not any(loop["stack"] for loop in loops)


def test_structure() -> None:
    """K chunks outermost, one parallel loop, no allocation of the whole matrix."""
    body = str(scheduled(Case(k=96, n=131, kc=48, nr=48), "avx512").body)
    assert body.count("T.parallel(") == 1
    assert re.search(r"for \w+ in range\(T\.int64\(2\)\):\n\s+for \w+ in T\.parallel", body)
    assert "sblock_alloc_buffer" not in body


def test_the_last_columns_are_vectors() -> None:
    """Of loops over single columns LLVM makes vectors along the rows, of elements that it gathers."""
    body = str(scheduled(Case(k=96, n=28, nr=16, kc=96, epilogue="bias"), "avx2").body)
    widths = set(re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", body))
    assert widths == {"8", "4"}


def test_a_task_divides_once() -> None:
    """Where it begins and how many rows it has are divisions by an open number, which are not in its tiles."""
    func = scheduled(Case(k=96, n=28, nr=16, kc=96, epilogue="bias"), "avx2")
    with tvm.target.Target("llvm"):
        simplified = tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]
    tiles = str(simplified.body).split("T.unroll(", 1)[1]
    assert "//" not in tiles and "%" not in tiles


@pytest.mark.parametrize(
    ("k", "n", "isa", "expected"),
    [
        (768, 768, "avx512", (768, 48)),
        (768, 50257, "avx512", (768, 48)),
        (3072, 768, "avx2", (3072, 16)),
        (768, 2, "avx512", (768, 16)),
        (64, 20, "avx512", (64, 32)),
        (1024, 1024, "avx512", (1024, 32)),
        (64, 131, "avx512", (64, 48)),
        (64, 64, "avx512", (64, 32)),
        (64, 40, "avx512", (64, 48)),
        (11008, 4096, "avx512", (11008 // 4, 48)),
    ],
)
def test_pack_shape(k: int, n: int, isa: str, expected: tuple[int, int]) -> None:
    assert pack_shape(k, n, x86(isa)) == expected
    kc, nr = pack_shape(k, n, x86(isa))
    assert k % kc == 0 and nr % x86(isa).lanes_f32 == 0


# ---- the analytic estimate ----


def estimated(m: int | None, rows: int, k: int = 768, n: int = 768, **fields: object) -> float:
    isa, target = "avx512", x86("avx512")
    func = fused(Case(k=k, n=n, kc=k, nr=48, m=m))
    decision = replace(GEMM.default(func, target), **fields)
    found = GEMM.estimate(func, target, decision, {} if m else {func.params[0].ty.shape[0]: rows})
    assert found is not None, isa
    return found


@pytest.mark.parametrize("rows", [1, 8, 128])
def test_estimates_do_not_depend_on_the_rows_being_static(rows: int) -> None:
    assert estimated(rows, rows) == pytest.approx(estimated(None, rows))


def test_estimates_count_rows_that_are_computed() -> None:
    """As of a convolution of one element on an image of open sizes, whose places are the rows."""
    target, sides = x86("avx512"), tirx.Var("sides", "int64")
    x = relax.Var("x", relax.TensorType([sides * 16, 768], "float32"))
    weight = relax.Var("weight", relax.TensorType([1, 16, 768, 48], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight, relax.Var("sizes", relax.ShapeType([sides]))]):
        with builder.dataflow():
            out = builder.emit_output(Linear.call(x, weight, layout="packed", n=768))
        builder.emit_func_output(out)
    func = fused_of(builder)
    (sides,) = symbols(func)
    times = [GEMM.estimate(func, target, GEMM.default(func, target), {sides: number}) for number in (1, 8)]
    assert all(times) and times[1] > 4 * times[0]


def test_estimates_grow_with_the_rows() -> None:
    times = [estimated(None, rows) for rows in (8, 32, 128, 512)]
    assert times == sorted(times) and times[-1] > 10 * times[0]


def test_estimates_know_what_is_slow() -> None:
    best = estimated(None, 128)
    assert estimated(None, 128, mr=1) > 1.2 * best, "a tile of one row waits for weights"
    assert estimated(None, 9, k=64, n=480, balance=False) > estimated(None, 9, k=64, n=480)
    assert estimated(None, 128, n=48, block_rows=0) > 1.5 * estimated(None, 128, n=48, block_rows=64), "one core waits"
