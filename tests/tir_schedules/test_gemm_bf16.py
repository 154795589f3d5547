"""The GEMM rule on bfloat16 weights under float32: every tail, good code, exact but for the rounding of the weights.

With vdpbf16ps x is rounded, too: to nearest even, so what is multiplied is known, and a result is off by at most
    |y - x w| <= 2^-8 sum |x_k| |w_k|
beside the sums' own rounding in float32 (a bfloat16 has 8 bits).
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tvm
from assembly import k_loops
from covering import covering
from linear_functions import Case, after, bfloat16_tensor, build, skip_unless_runs, with_stages, x86
from tvm import relax, tirx

from halo_tvm.params import pack_bf16
from halo_tvm.relay_ops.linear import Linear
from halo_tvm.targets import TARGETS, Target, read_host
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.gemm import pack_shape
from halo_tvm.tir_schedules.products.gemm.amx import TilePairs
from halo_tvm.tir_schedules.products.gemm.bf16 import BFloat16Pairs

pytestmark = pytest.mark.covering

GEMM = RULES["gemm"]
ISAS = [("avx2", 16), ("avx512", 48), ("avx512-bf16", 48), ("avx512-amx", 48)]
PAIRS = ISAS[2]


def fused(case: Case) -> tirx.PrimFunc:
    """x [m, k] @ weight [k/kc, ceil(n/nr), kc/2, nr, 2] + bias, then an epilogue and a residual."""
    rows = tirx.Var("m", "int64") if case.m is None else case.m
    x = relax.Var("x", relax.TensorType([rows, case.k], "float32"))
    shape = [case.k // case.kc, -(-case.n // case.nr), case.kc // 2, case.nr, 2]
    weight = relax.Var("weight", relax.TensorType(shape, "bfloat16"))
    bias = relax.Var("bias", relax.TensorType([case.n], "float32"))
    residual = relax.Var("residual", relax.TensorType([rows, case.n], "float32"))
    stages = bias, residual, f"{case.epilogue}+residual"
    return with_stages(Linear, [x, weight], *stages, layout="packed", n=case.n)


def scheduled(case: Case, target: Target, **changes: object) -> tirx.PrimFunc:
    func = fused(case)
    return GEMM.apply(func, target, replace(GEMM.default(func, target), **changes))


def check(executable: tvm.runtime.Executable, case: Case, rows: int, isa: str) -> None:
    """Compare with float64 on what is multiplied: weights in bfloat16, and x as well on the level that rounds it."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, case.k), dtype=np.float32)
    weight = rng.standard_normal((case.k, case.n), dtype=np.float32) / np.float32(case.k**0.5)
    bias = rng.standard_normal(case.n, dtype=np.float32)
    residual = rng.standard_normal((rows, case.n), dtype=np.float32)
    level = x86(isa).isa
    rounds = level.bf16_dot or (level.tiles and case.kc // 2 >= TilePairs.least_steps)
    multiplied = x.astype(ml_dtypes.bfloat16) if rounds else x
    y = multiplied.astype("float64") @ weight.astype(ml_dtypes.bfloat16).astype("float64")
    y, _ = after(y, f"{case.epilogue}+residual", bias, residual)
    out = ran(executable, case, x, weight, bias, residual)
    np.testing.assert_allclose(out, y, rtol=1e-4, atol=1e-5, err_msg=f"{case} rows {rows}")
    np.testing.assert_array_equal(ran(executable, case, x, weight, bias, residual), out)


def ran(
    executable: tvm.runtime.Executable, case: Case, x: np.ndarray, weight: np.ndarray, *rest: np.ndarray
) -> np.ndarray:
    """What the kernel makes of them; the output starts as NaN."""
    packed = pack_bf16(weight, layout="kn", kc=case.kc, nr=case.nr)
    inputs = [tvm.runtime.tensor(x), bfloat16_tensor(packed), *map(tvm.runtime.tensor, rest)]
    out = tvm.runtime.tensor(np.full((len(x), case.n), np.nan, np.float32))
    executable["main"](*inputs, out)
    return out.numpy()


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("n", [144, 131])
@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_every_number_of_rows(isa: str, nr: int, n: int, chunks: int) -> None:
    skip_unless_runs(isa)
    case = Case(k=96, n=n, kc=96 // chunks, nr=nr)
    executable = build(scheduled(case, x86(isa)), x86(isa))
    for rows in range(1, 66):
        check(executable, case, rows, isa)


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 33])
@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_static_rows(isa: str, nr: int, rows: int) -> None:
    skip_unless_runs(isa)
    case = Case(k=66, n=70, kc=22, nr=nr, epilogue="bias+gelu", m=rows)
    check(build(scheduled(case, x86(isa)), x86(isa)), case, rows, isa)


@pytest.mark.slow
def test_every_decision_is_right() -> None:
    isa, nr = next((i, nr) for i, nr in reversed(ISAS) if x86(i).isa.requires <= read_host().flags)
    case, target = Case(k=32, n=100, kc=16, nr=nr), x86(isa)
    func = fused(case)
    for decision in covering(GEMM.space(func, target)):
        executable = build(GEMM.apply(func, target, decision), target)
        for rows in (1, 7, 9, 20):
            check(executable, case, rows, isa)


def test_a_rounded_row_is_within_its_bound() -> None:
    """Against float64 on x itself; a large x, so that many threads round it, and sizes beyond float16."""
    isa, nr = PAIRS
    skip_unless_runs(isa)
    case = Case(k=1026, n=96, kc=1026, nr=nr)
    executable = build(scheduled(case, x86(isa)), x86(isa))
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((case.k, case.n), dtype=np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    bias = np.zeros(case.n, np.float32)
    for rows in (1, 3, 70):  # 70 x 1026 elements are shared
        x = rng.standard_normal((rows, case.k), dtype=np.float32) * np.float32(1e6)
        out = ran(executable, case, x, weight, bias, np.zeros((rows, case.n), np.float32))
        wide, size = x.astype("float64"), np.abs(x.astype("float64")) @ np.abs(weight.astype("float64"))
        assert (np.abs(out - wide @ weight.astype("float64")) <= (2**-8 + case.k * 2**-24) * size).all()


def test_what_is_no_number_stays_none() -> None:
    isa, nr = PAIRS
    skip_unless_runs(isa)
    case = Case(k=66, n=48, kc=66, nr=nr)
    executable = build(scheduled(case, x86(isa)), x86(isa))
    x = np.ones((3, case.k), np.float32)
    x[0, 5] = np.uint32(0x7FFFFFFF).view("float32")  # as an integer it would round to -0
    x[1, 65] = np.inf
    weight, bias = np.ones((case.k, case.n), np.float32), np.zeros(case.n, np.float32)
    out = ran(executable, case, x, weight, bias, np.zeros((3, case.n), np.float32))
    assert np.isnan(out[0]).all() and np.isposinf(out[1]).all() and (out[2] == case.k).all()


def test_builds_for_arm() -> None:
    spec = TARGETS["arm"]
    target = Target(spec, spec.isas[0], 2)
    text = build(scheduled(Case(k=64, n=24, kc=64, nr=12), target), target).mod.inspect_source("asm")
    assert "fmla" in text


@pytest.mark.parametrize(("isa", "nr", "mr"), [("avx512", 48, 8), ("avx2", 16, 5)])
def test_assembly_of_the_main_tile(isa: str, nr: int, mr: int) -> None:
    """A step of the full tile: two multiply-adds a vector of sums, each pair of weights loaded once, no spill."""
    case, target = Case(k=768, n=768, kc=768, nr=nr, m=mr * 4), x86(isa)
    decision = GEMM.default(fused(case), target)
    assert decision.mr == mr
    vectors, loop = nr // target.lanes_f32, k_loops(build(scheduled(case, target), target), "vfmadd")[0]
    assert loop["vfmadd"] == decision.unroll * mr * vectors * 2
    assert loop["load"] == decision.unroll * vectors
    assert loop["broadcast"] in (decision.unroll * mr * 2, decision.unroll * mr * 2 + 1)  # the mask may be one more
    assert loop["stack"] == 0
    assert loop["branch"] == 1
    assert loop["prefetch"] == decision.prefetch


def test_few_sums_of_pairs_take_an_addition_each() -> None:
    arithmetic = BFloat16Pairs()
    assert [arithmetic.instructions(rows, 3) for rows in (1, 2, 8)] == [6, 6, 24]


def test_assembly_of_pairs() -> None:
    """A step of the full tile: one instruction a vector of sums for two k; rounding is one a vector, too."""
    case, target = Case(k=768, n=768, kc=768, nr=48, m=32), x86("avx512-bf16")
    decision, executable = GEMM.default(fused(case), target), build(scheduled(case, target), target)
    loop = k_loops(executable, "vdpbf16ps")[0]
    assert (decision.mr, decision.unroll) == (8, 4)
    assert loop["vdpbf16ps"] == 4 * 24
    assert (loop["load"], loop["broadcast"]) == (4 * 3, 4 * 8)
    assert (loop["stack"], loop["branch"], loop["prefetch"]) == (0, 1, decision.prefetch)
    text = executable.mod.inspect_source("asm")
    assert "vcvtneps2bf16" in text or "vcvtne2ps2bf16" in text
    assert "halo_" not in text, "every piece of LLVM's text is inlined"


@pytest.mark.parametrize(
    ("isa", "nr", "multiplication"),
    [("avx2", 16, "vfmadd"), ("avx512", 48, "vfmadd"), ("avx512-bf16", 48, "vdpbf16ps")],
)
def test_no_height_spills(isa: str, nr: int, multiplication: str) -> None:
    case, target = Case(k=768, n=768, kc=768, nr=nr), x86(isa)
    loops = k_loops(build(scheduled(case, target), target), multiplication)
    assert len(loops) >= GEMM.default(fused(case), target).mr
    assert not any(loop["stack"] for loop in loops)


def test_one_row_has_sums_of_its_own_for_even_and_odd() -> None:
    """Otherwise two dependent multiply-adds a step would take longer than the memory."""
    case, target = Case(k=768, n=768, kc=768, nr=48, m=1), x86("avx512")
    func = scheduled(case, target)
    assert str(func).count("T.alloc_buffer((48,)") >= 2


@pytest.mark.parametrize(("k", "expected"), [(768, (768, 48)), (3072, (3072, 48)), (6, (6, 48)), (11008, (5504, 48))])
def test_pack_shape(k: int, expected: tuple[int, int]) -> None:
    """Half the bytes: twice the depth fits."""
    assert pack_shape(k, 768, x86("avx512"), "bfloat16") == expected
