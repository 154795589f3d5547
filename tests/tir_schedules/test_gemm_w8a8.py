"""The GEMM rule on uint8 x int8: the very same integers on every ISA, every tail, and good code."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from assembly import k_loops
from covering import covering
from linear_functions import after, build, skip_unless_runs, with_stages, x86
from tvm import relax, te, tirx

from halo_tvm.errors import Declined
from halo_tvm.params import pack_int8
from halo_tvm.relay_ops.linear_w8a8 import LinearW8A8
from halo_tvm.targets import TARGETS, Target, read_host
from halo_tvm.tir_schedules import RULES

pytestmark = pytest.mark.covering

GEMM = RULES["gemm"]
ISAS = [("avx2", 16), ("avx512", 48), ("avx512-vnni", 48), ("avx512-amx", 48)]
PLAIN = replace(x86("avx2").isa, byte_dot="")  # as an instruction set without a form of its own


@dataclass(frozen=True)
class Case:
    """q [m, k] @ weight [1, ceil(n/nr), k/4, nr, 4], dequantised, then an epilogue; m None is symbolic."""

    k: int
    n: int
    nr: int
    epilogue: str = "bias"
    m: int | None = None


def fused(case: Case) -> tirx.PrimFunc:
    rows = tirx.Var("m", "int64") if case.m is None else case.m

    def variable(name: str, dtype: str, *shape: object) -> relax.Var:
        return relax.Var(name, relax.TensorType(list(shape), dtype))

    params = [
        variable("q", "uint8", rows, case.k),
        variable("scale", "float32", rows),
        variable("weight", "int8", 1, -(-case.n // case.nr), case.k // 4, case.nr, 4),
        variable("weight_scale", "float32", case.n),
        variable("correction", "int32", case.n),
    ]
    bias, residual = variable("bias", "float32", case.n), variable("residual", "float32", rows, case.n)
    return with_stages(LinearW8A8, params, bias, residual, case.epilogue, layout="packed", n=case.n)


def arguments(case: Case, rows: int, extreme: bool = False) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs in the function's order, and the result: int64 sums, then float64.

    extreme: only the largest products, which a 16-bit sum would not hold.
    """
    rng = np.random.default_rng(rows)
    q = rng.integers(0, 256, (rows, case.k)).astype("uint8")
    weight = rng.integers(-127, 128, (case.k, case.n)).astype("int8")
    if extreme:
        q[:], weight[:] = 255, np.where(np.arange(case.n) % 2, 127, -127)
    whole = case.epilogue == "none"  # scales of one keep the integers
    scale = np.ones(rows, "float32") if whole else rng.uniform(0.001, 0.01, rows).astype("float32")
    weight_scale = np.ones(case.n, "float32") if whole else rng.uniform(0.001, 0.01, case.n).astype("float32")
    correction = (-128 * weight.astype("int64").sum(0)).astype("int32")
    bias = rng.standard_normal(case.n, dtype=np.float32)
    residual = rng.standard_normal((rows, case.n), dtype=np.float32)
    total = (q.astype("int64") - 128) @ weight.astype("int64")
    y = total * (scale.astype("float64")[:, None] * weight_scale)
    y, extras = after(y, case.epilogue, bias, residual)
    return [q, scale, np.ascontiguousarray(pack_int8(weight, nr=case.nr)), weight_scale, correction, *extras], y


def check(executable: tvm.runtime.Executable, case: Case, rows: int, extreme: bool = False) -> None:
    """Integers exactly, what follows within float32; the output starts as NaN."""
    inputs, expected = arguments(case, rows, extreme)
    out = tvm.runtime.tensor(np.full(expected.shape, np.nan, np.float32))
    executable["main"](*[tvm.runtime.tensor(v) for v in inputs], out)
    if case.epilogue == "none":
        np.testing.assert_array_equal(out.numpy(), expected.astype("float32"), err_msg=f"{case} rows {rows}")
    else:
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=f"{case} rows {rows}")


def scheduled(case: Case, target: Target, **changes: object) -> tirx.PrimFunc:
    func = fused(case)
    return GEMM.apply(func, target, replace(GEMM.default(func, target), **changes))


@pytest.mark.parametrize("n", [144, 131])
@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_every_number_of_rows(isa: str, nr: int, n: int) -> None:
    skip_unless_runs(isa)
    case = Case(k=96, n=n, nr=nr, epilogue="none")
    executable = build(scheduled(case, x86(isa)), x86(isa))
    for rows in range(1, 66):
        check(executable, case, rows)
    check(executable, case, 5, extreme=True)


@pytest.mark.parametrize("epilogue", ["bias", "bias+gelu", "bias+residual"])
@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_stages(isa: str, nr: int, epilogue: str) -> None:
    skip_unless_runs(isa)
    case = Case(k=100, n=131, nr=nr, epilogue=epilogue)
    executable = build(scheduled(case, x86(isa)), x86(isa))
    for rows in (1, 3, 8, 9, 33, 65):
        check(executable, case, rows)


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 33])
@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_static_rows(isa: str, nr: int, rows: int) -> None:
    skip_unless_runs(isa)
    case = Case(k=64, n=70, nr=nr, epilogue="none", m=rows)
    check(build(scheduled(case, x86(isa)), x86(isa)), case, rows)


def test_plain_form() -> None:
    """What ARM and unknown instruction sets run: the same integers."""
    skip_unless_runs("avx2")
    target = Target(TARGETS["x86"], PLAIN, 2)
    case = Case(k=64, n=40, nr=16, epilogue="none")
    executable = build(scheduled(case, target), target)
    for rows in (1, 2, 7, 17):
        check(executable, case, rows)
    check(executable, case, 3, extreme=True)


def test_vocabulary_head() -> None:
    """A cropped head wide enough that its last panel is nearly empty: 50257 = 1047 * 48 + 1."""
    isa, nr = ("avx512-vnni", 48) if x86("avx512-vnni").isa.requires <= read_host().flags else ("avx2", 16)
    skip_unless_runs(isa)
    case = Case(k=32, n=50257, nr=nr, epilogue="none")
    executable = build(scheduled(case, x86(isa)), x86(isa))
    for rows in (1, 9):
        check(executable, case, rows)


@pytest.mark.slow
def test_every_decision_is_right() -> None:
    isa, nr = next((i, nr) for i, nr in reversed(ISAS) if x86(i).isa.requires <= read_host().flags)
    case, target = Case(k=32, n=100, nr=nr, epilogue="none"), x86(isa)
    func = fused(case)
    for decision in covering(GEMM.space(func, target)):
        executable = build(GEMM.apply(func, target, decision), target)
        for rows in (1, 7, 9, 20):
            check(executable, case, rows)


def test_declines_another_group() -> None:
    m = tirx.Var("m", "int64")
    q = te.placeholder((m, 32), "uint8", name="q")
    weight = te.placeholder((1, 1, 16, 48, 2), "int8", name="weight")
    k = te.reduce_axis((0, 32), "k")
    total = te.compute(
        (m, 48),
        lambda i, j: te.sum(q[i, k].astype("int32") * weight[0, j // 48, k // 2, j % 48, k % 2].astype("int32"), k),
        name="linear_w8a8",
        attrs={"halo.op": "linear_w8a8"},
    )
    with pytest.raises(Declined, match="the packed weight groups 2 rows, int8 takes 4"):
        GEMM.default(te.create_prim_func([q, weight, total]), x86("avx512-vnni"))


def test_builds_for_arm() -> None:
    spec = TARGETS["arm"]
    target = Target(spec, spec.isas[0], 2)
    text = build(scheduled(Case(k=64, n=24, nr=12), target), target).mod.inspect_source("asm")
    assert re.search(r"^\s+(mla|smlal2?|umlal2?|sdot|udot|usdot)\s", text, re.MULTILINE), "float32's fmla is not meant"


@pytest.mark.parametrize(
    ("isa", "nr", "mr", "multiplication"),
    [
        ("avx512-vnni", 48, 8, "vpdpbusd"),
        ("avx512", 48, 8, "vpmaddwd"),
        ("avx2", 16, 6, "vpmaddwd"),
    ],
)
def test_assembly_of_the_main_tile(isa: str, nr: int, mr: int, multiplication: str) -> None:
    """A step of the full tile: one multiplication a vector of sums, each weight and each x loaded once."""
    case, target = Case(k=768, n=768, nr=nr, m=mr * 4), x86(isa)
    decision = GEMM.default(fused(case), target)
    assert decision.mr == mr
    vectors, executable = nr // target.lanes_f32, build(scheduled(case, target), target)
    loop = k_loops(executable, multiplication)[0]
    assert loop[multiplication] == decision.unroll * mr * vectors
    assert loop["load"] <= decision.unroll * vectors  # a shift may load, too
    assert loop["broadcast"] == decision.unroll * mr
    assert loop["stack"] == 0
    assert loop["branch"] == 1
    assert loop["prefetch"] == decision.prefetch


@pytest.mark.parametrize(("isa", "nr", "multiplication"), [("avx512-vnni", 48, "vpdpbusd"), ("avx2", 16, "vpmaddwd")])
def test_no_height_spills(isa: str, nr: int, multiplication: str) -> None:
    target = x86(isa)
    executable = build(scheduled(Case(k=768, n=768, nr=nr), target), target)
    loops = k_loops(executable, multiplication)
    assert len(loops) >= GEMM.default(fused(Case(k=768, n=768, nr=nr)), target).mr
    assert not any(loop["stack"] for loop in loops)
