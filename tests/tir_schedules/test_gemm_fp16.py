"""The GEMM rule on float16 weights: half arithmetic (emulated where the processor has none), and widened weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from assembly import k_loops
from linear_functions import build, skip_unless_runs, x86
from tvm import te, tirx

from halo_tvm.errors import UsageError
from halo_tvm.params import LARGEST_FP16, pack_fp16
from halo_tvm.relay_ops.linear import Linear
from halo_tvm.targets import Target
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.gemm import pack_shape

GEMM = RULES["gemm"]
ROWS = (*range(1, 10), 17, 33, 65)


def linear(k: int, n: int, nr: int, chunks: int = 1, m: int | None = None) -> tirx.PrimFunc:
    x = te.placeholder((tirx.Var("m", "int64") if m is None else m, k), "float32", name="x")
    weight = te.placeholder((chunks, -(-n // nr), k // chunks, nr), "float16", name="weight")
    bias = te.placeholder((n,), "float32", name="bias")
    return te.create_prim_func([x, weight, bias, Linear.compute(x, weight, bias, layout="packed", n=n)])


def emulated(isa: str) -> Target:
    """Half arithmetic on a level without it: LLVM rounds every operation as the processor would."""
    target = x86(isa)
    return Target(target.spec, replace(target.isa, half_arithmetic=True), target.cores)


def error(executable: tvm.runtime.Executable, k: int, n: int, nr: int, chunks: int, rows: int, size: float) -> float:
    """Relative L2 error against float64 on the rounded weights, for x of magnitude `size`; outputs start as NaN."""
    rng = np.random.default_rng(rows)
    x = (size * rng.standard_normal((rows, k))).astype("float32")
    weight = (rng.standard_normal((k, n)) / k**0.5).astype("float16").astype("float32")
    bias = (size * rng.standard_normal(n)).astype("float32")
    expected = x.astype("float64") @ weight.astype("float64") + bias
    packed = pack_fp16(weight, layout="kn", kc=k // chunks, nr=nr)
    out = tvm.runtime.tensor(np.full((rows, n), np.nan, np.float32))
    executable["main"](*map(tvm.runtime.tensor, (x, packed, bias)), out)
    return float(np.linalg.norm(out.numpy() - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize(("isa", "nr"), [("avx2", 32), ("avx512", 96)])
def test_half_arithmetic(isa: str, nr: int, chunks: int) -> None:
    """k over several promotions and a rest, a cropped panel, every kind of tail."""
    target = emulated(isa)
    skip_unless_runs(target)
    k, n = 396, 131
    func = linear(k, n, nr, chunks)
    executable = build(GEMM.apply(func, target, GEMM.default(func, target)), target)
    for rows in ROWS:
        assert error(executable, k, n, nr, chunks, rows, 1.0) < 2e-3, rows


@pytest.mark.parametrize("size", [1e-6, 1e6, 1e30])
def test_rows_of_any_magnitude(size: float) -> None:
    """1e6 is beyond float16, 1e-6 below its normal numbers: rows are scaled."""
    target = emulated("avx2")
    skip_unless_runs(target)
    func = linear(100, 40, 32)
    executable = build(GEMM.apply(func, target, GEMM.default(func, target)), target)
    assert error(executable, 100, 40, 32, 1, 3, size) < 2e-3


@pytest.mark.parametrize(("isa", "nr"), [("avx2", 16), ("avx512", 48)])
def test_widened_weights(isa: str, nr: int) -> None:
    """Without half arithmetic only the weights are narrow: as exact as float32."""
    target = x86(isa)
    skip_unless_runs(target)
    func = linear(96, 131, nr, 3)
    executable = build(GEMM.apply(func, target, GEMM.default(func, target)), target)
    for rows in ROWS:
        assert error(executable, 96, 131, nr, 3, rows, 1.0) < 1e-5, rows


def test_zeros_stay_zeros() -> None:
    target = emulated("avx2")
    skip_unless_runs(target)
    func = linear(64, 32, 32, m=2)
    executable = build(GEMM.apply(func, target, GEMM.default(func, target)), target)
    zeros = [np.zeros(s, d) for s, d in (((2, 64), "float32"), ((1, 1, 64, 32), "float16"), ((32,), "float32"))]
    out = tvm.runtime.tensor(np.full((2, 32), np.nan, np.float32))
    executable["main"](*map(tvm.runtime.tensor, zeros), out)
    assert not out.numpy().any()


def test_assembly_of_half_arithmetic() -> None:
    """24 multiply-adds of 32 lanes, 3 loads and 8 broadcasts of 32 bits a step; no height spills."""
    target = x86("avx512-fp16")
    func = linear(768, 768, 96, m=32)
    decision = GEMM.default(func, target)
    executable = build(GEMM.apply(func, target, decision), target)
    loop = k_loops(executable, "vfmadd231ph")[0]
    assert loop["vfmadd231ph"] == decision.unroll * 24
    assert (loop["load"], loop["broadcast"]) == (decision.unroll * 3, decision.unroll * 8)
    assert (loop["stack"], loop["branch"]) == (0, 1)
    assert "vpbroadcastw" not in executable.mod.inspect_source("asm"), "a broadcast of 16 bits costs a shuffle"
    func = linear(768, 768, 96)
    loops = k_loops(build(GEMM.apply(func, target, GEMM.default(func, target)), target), "vfmadd")
    assert len(loops) >= 8 and not any(loop["stack"] for loop in loops)


def test_assembly_of_widened_weights() -> None:
    target = x86("avx512")
    func = linear(768, 768, 48, m=32)
    decision = GEMM.default(func, target)
    loop = k_loops(build(GEMM.apply(func, target, decision), target), "vfmadd")[0]
    assert loop["vfmadd"] == decision.unroll * 24
    assert (loop["broadcast"], loop["stack"]) == (decision.unroll * 8, 0)


def test_pack_shape_by_arithmetic() -> None:
    assert pack_shape(768, 768, x86("avx512"), "float16") == (768, 48)
    assert pack_shape(768, 768, x86("avx512-fp16"), "float16") == (768, 96)


def test_refuses_weights_beyond_float16() -> None:
    with pytest.raises(UsageError, match="magnitude up to 511.75 at --precision fp16, found 70000: choose"):
        pack_fp16(np.full((4, 4), 7e4, np.float32), layout="kn", kc=4, nr=4)


def test_the_largest_weights_do_not_overflow_a_half_sum() -> None:
    with np.errstate(over="raise"):
        total = np.cumsum(np.full(128, LARGEST_FP16, np.float16), dtype=np.float16)[-1]
    assert np.isfinite(total)
