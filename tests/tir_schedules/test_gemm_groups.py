"""The GEMM rule on integers in groups: the very same sums on every ISA, every tail, and good code."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from assembly import k_loops
from linear_functions import build, skip_unless_runs, with_stages, x86
from tvm import relax, te, tirx

from halo_tvm.errors import Declined
from halo_tvm.relay_ops.linear_groups import LinearGroups, exact_rows
from halo_tvm.targets import TARGETS, Target, read_host
from halo_tvm.tir_schedules import RULES
from halo_tvm.weight_groups import group_grid, group_pack, unpacked

GEMM = RULES["gemm"]
ISAS = [("avx2", 16), ("avx512", 48), ("avx512-vnni", 48), ("avx512-amx", 48)]
PLAIN = replace(x86("avx2").isa, byte_dot="")  # as an instruction set without a form of its own


@dataclass(frozen=True)
class Case:
    """x [m, k] times integers in groups of `group`, then bias and a residual; m None is symbolic."""

    k: int
    n: int
    nr: int
    bits: int
    group: int = 32
    least: bool = False
    m: int | None = None


def fused(case: Case) -> tirx.PrimFunc:
    rows = tirx.Var("m", "int64") if case.m is None else case.m
    panels = -(-case.n // case.nr)

    def variable(name: str, dtype: str, *shape: object) -> relax.Var:
        return relax.Var(name, relax.TensorType(list(shape), dtype))

    scales = (panels, case.k // case.group, case.nr)
    operands = [
        variable("x", "float32", rows, case.k),
        variable("weight", "uint8", 1, panels, case.k * case.bits // 32, case.nr, 4),
        variable("scale", "float16", *scales),
        *([variable("least", "float16", *scales)] if case.least else []),
    ]
    stages = variable("bias", "float32", case.n), variable("residual", "float32", rows, case.n), "bias+residual"
    return with_stages(LinearGroups, operands, *stages, layout="packed", n=case.n, bits=case.bits, least=case.least)


def arguments(case: Case, rows: int, *, extreme: bool = False) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs in the function's order and the result in float64; rows lie on the grid they are rounded to.

    extreme: only the largest products, which a 16-bit sum would not hold.
    """
    rng = np.random.default_rng(rows)
    x = exact_rows((rows,), case.k, case.group, rows)
    weight = rng.standard_normal((case.k, case.n), dtype=np.float32)
    if extreme:
        x, weight = np.full_like(x, 1.0), np.where(np.arange(case.n) % 2, weight, np.sign(weight))
    how = {"layout": "kn", "group": case.group, "nr": case.nr}
    grid = group_grid(weight, **how, bits=case.bits, least=case.least)
    packed = np.ascontiguousarray(group_pack(weight, grid, **how, bits=case.bits))
    bias = rng.standard_normal(case.n, dtype=np.float32)
    residual = rng.standard_normal((rows, case.n), dtype=np.float32)
    meant = unpacked(packed, *grid, bits=case.bits, n=case.n)
    return [x, packed, *grid, bias, residual], x @ meant + bias + residual


def check(executable: tvm.runtime.Executable, case: Case, rows: int, *, extreme: bool = False) -> None:
    """The output starts as NaN."""
    inputs, expected = arguments(case, rows, extreme=extreme)
    out = tvm.runtime.tensor(np.full(expected.shape, np.nan, np.float32))
    executable["main"](*[tvm.runtime.tensor(v) for v in inputs], out)
    bound = 3e-6 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=bound, err_msg=f"{case} rows {rows}")


def scheduled(case: Case, target: Target, **changes: object) -> tirx.PrimFunc:
    func = fused(case)
    return GEMM.apply(func, target, replace(GEMM.default(func, target), **changes))


@pytest.mark.parametrize(
    ("bits", "group", "least", "n"), [(8, 32, False, 131), (4, 64, False, 144), (4, 32, True, 131)]
)
@pytest.mark.parametrize(("isa", "nr"), ISAS)
@pytest.mark.sampled(4)
def test_every_number_of_rows(isa: str, nr: int, bits: int, group: int, least: bool, n: int) -> None:
    skip_unless_runs(isa)
    case = Case(k=192, n=n, nr=nr, bits=bits, group=group, least=least)
    executable = build(scheduled(case, x86(isa)), x86(isa))
    for rows in (*range(1, 18), 33, 65):
        check(executable, case, rows)
    check(executable, case, 3, extreme=True)


@pytest.mark.parametrize("bits", [8, 4])
def test_one_row_alone(bits: int) -> None:
    """What a step of a language model runs: the number of rows is known."""
    isa, nr = next((i, nr) for i, nr in reversed(ISAS) if x86(i).isa.requires <= read_host().flags)
    case = Case(k=256, n=70, nr=nr, bits=bits, group=128, m=1)
    check(build(scheduled(case, x86(isa)), x86(isa)), case, 1)


def test_plain_form() -> None:
    """What unknown instruction sets run: the same integers."""
    skip_unless_runs("avx2")
    target = Target(TARGETS["x86"], PLAIN, 2)
    case = Case(k=64, n=40, nr=16, bits=4, least=True)
    executable = build(scheduled(case, target), target)
    for rows in (1, 2, 7):
        check(executable, case, rows)


@pytest.mark.parametrize(("isa", "nr"), ISAS)
def test_nan_stays_in_its_row(isa: str, nr: int) -> None:
    skip_unless_runs(isa)
    case = Case(k=64, n=nr, nr=nr, bits=8)
    inputs, expected = arguments(case, 14)
    inputs[0][3, 40] = np.nan
    out = tvm.runtime.tensor(np.zeros(expected.shape, np.float32))
    build(scheduled(case, x86(isa)), x86(isa))["main"](*[tvm.runtime.tensor(v) for v in inputs], out)
    assert np.isnan(out.numpy()[3]).all()
    np.testing.assert_allclose(np.delete(out.numpy(), 3, 0), np.delete(expected, 3, 0), rtol=0, atol=1e-4)


def test_rows_that_lie_on_no_grid() -> None:
    """Rounded to 127 steps by groups, whatever else is in the row: the error is that of the group's own step."""
    isa, nr = next((i, nr) for i, nr in reversed(ISAS) if x86(i).isa.requires <= read_host().flags)
    case = Case(k=64, n=nr, nr=nr, bits=8)
    executable = build(scheduled(case, x86(isa)), x86(isa))
    inputs, _ = arguments(case, 4)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 64), dtype=np.float32)
    x[1, :32] *= 1e4
    x[2, :32] = 0.0
    x[3] *= 1e-30
    groups = x.reshape(4, 2, 32)
    steps = np.maximum(np.abs(groups).max(2, keepdims=True), np.float32(1e-20)) / np.float32(127)
    rounded = (np.rint(groups / steps.astype(np.float64)) * steps).reshape(4, 64)
    meant = unpacked(inputs[1], inputs[2], None, bits=8, n=case.n)
    out = tvm.runtime.tensor(np.zeros((4, nr), np.float32))
    zero = [np.zeros_like(a) for a in inputs[3:]]
    executable["main"](*map(tvm.runtime.tensor, [x, *inputs[1:3], *zero]), out)
    np.testing.assert_allclose(out.numpy(), rounded @ meant, rtol=1e-5, atol=1e-4)
    assert np.abs(out.numpy()[2] - x[2].astype(np.float64) @ meant).max() < 0.2


@pytest.mark.parametrize(("isa", "nr", "bits"), [("avx512-vnni", 48, 8), ("avx512-vnni", 48, 4)])
def test_no_height_spills(isa: str, nr: int, bits: int) -> None:
    """A group's loop is unrolled: products of integers, one conversion a vector of sums, nothing on the stack."""
    target = x86(isa)
    case = Case(k=768, n=768, nr=nr, bits=bits)
    loops = k_loops(build(scheduled(case, target), target), "vpdpbusd")
    assert len(loops) >= GEMM.default(fused(case), target).mr
    assert not any(loop["stack"] for loop in loops)


@pytest.mark.parametrize(("bits", "multiplication", "count"), [(8, "vpmaddwd", 32), (4, "vpmaddubsw", 16)])
def test_a_row_on_avx2_spills_nothing(bits: int, multiplication: str, count: int) -> None:
    """What a step of a language model runs: the loop is a whole group of two vectors of columns."""
    target, case = x86("avx2"), Case(k=768, n=768, nr=16, bits=bits, m=1)
    (loop,) = k_loops(build(scheduled(case, target), target), multiplication)
    assert (loop["stack"], loop[multiplication]) == (0, count)
    assert GEMM.default(fused(replace(case, m=None)), target).mr == 4


def test_builds_for_arm() -> None:
    spec = TARGETS["arm"]
    target = Target(spec, spec.isas[0], 2)
    build(scheduled(Case(k=64, n=24, nr=12, bits=4), target), target)


def test_declines_other_integers() -> None:
    m, k = tirx.Var("m", "int64"), te.reduce_axis((0, 64), "k")
    x = te.placeholder((m, 64), "float32", name="x")
    weight = te.placeholder((1, 1, 32, 48, 4), "uint8", name="weight")
    scale = te.placeholder((1, 2, 48), "float16", name="scale")

    def product(i, j):
        value = weight[0, j // 48, k // 2, j % 48, k % 4].astype("float32") * scale[j // 48, k // 32, j % 48].astype(
            "float32"
        )
        return te.sum(x[i, k] * value, k)

    total = te.compute((m, 48), product, name="linear_groups", attrs={"halo.op": "linear_groups"})
    with pytest.raises(Declined, match="32 steps for 64 rows: neither eight bits nor four"):
        GEMM.default(te.create_prim_func([x, weight, scale, total]), x86("avx512-vnni"))
