"""gemv: right for one to eight rows at every tail, reads of 16 bytes, no spills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulation import emulate
from gpu_functions import check_needed, kernels_of, needs_nvcc
from linear_functions import BOUND, Plain, fused_plain, plain_arguments, x86

from halo_tvm.cuda.toolkit import find_tool
from halo_tvm.errors import Declined
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.gemv import Decision

pytestmark = pytest.mark.covering

TARGET = resolve("cuda:sm_80")
RULE = RULES["gemv"]
SMALL = Decision(columns=2, warps=4, split=2)


def check(case: Plain, decision: Decision | None = None) -> None:
    arrays, expected = plain_arguments(replace(case, rounds=False), case.m)
    func = fused_plain(case)
    emulate(RULE.apply(func, TARGET, decision or RULE.default(func, TARGET)), TARGET, arrays)
    bound = BOUND[case.x_dtype] * (1 + case.epilogue.count("+") + 4 * ("gelu" in case.epilogue))
    np.testing.assert_allclose(arrays[-1].astype(float), expected, rtol=bound, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("x_dtype", ["float16", "float32"])
def test_every_number_of_rows(rows: int, x_dtype: str) -> None:
    check(Plain(520, 37, "bias+gelu", m=rows, x_dtype=x_dtype))
    check(Plain(520, 37, "bias", m=rows, x_dtype=x_dtype), SMALL)


CASES = {
    "less than one step": Plain(24, 5, "none"),
    "one step": Plain(256, 16, "none"),
    "k by fours": Plain(300, 33, "bias+relu+residual"),
    "k even": Plain(550, 31, "bias"),
    "k odd": Plain(513, 33, "bias+residual"),
    "bfloat16": Plain(700, 30, "bias", x_dtype="bfloat16", weight_dtype="bfloat16"),
    "float32": Plain(516, 31, "bias+residual", x_dtype="float32", weight_dtype="float32"),
    "float32 times bfloat16": Plain(1033, 9, "bias", x_dtype="float32", weight_dtype="bfloat16"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("rows", [1, 3])
def test_every_tail(case: Plain, rows: int) -> None:
    check(replace(case, m=rows), SMALL)
    check(replace(case, m=rows))


DECISIONS = [Decision(1, 2, 1), Decision(1, 8, 8), Decision(4, 4, 1), Decision(8, 8, 4), Decision(2, 2, 2)]


@pytest.mark.parametrize("decision", DECISIONS, ids=str)
def test_every_way_to_share(decision: Decision) -> None:
    check(Plain(776, 64, "bias", m=4), decision)
    check(Plain(776, 61, "bias", m=1, x_dtype="float32"), decision)


def test_the_barrier_is_needed() -> None:
    case = Plain(776, 64, "none", m=2)
    func = RULE.apply(fused_plain(case), TARGET, Decision(2, 4, 4))
    check_needed(func, plain_arguments(case, 2), barriers=1, waits=0, tolerance=1e-2)


@pytest.mark.parametrize("arch", ["sm_86", "sm_90"])
def test_the_default_of_other_levels_is_right(arch: str) -> None:
    target, case = resolve(f"cuda:{arch}"), Plain(520, 37, "bias", m=3, x_dtype="float32", rounds=False)
    arrays, expected = plain_arguments(case, 3)
    func = fused_plain(case)
    emulate(RULE.apply(func, target, RULE.default(func, target)), target, arrays)
    np.testing.assert_allclose(arrays[-1], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_the_default_comes_first() -> None:
    for arch in ("sm_80", "sm_89", "sm_90"):
        target = resolve(f"cuda:{arch}")
        for case in (Plain(768, 3072, m=1), Plain(4096, 4096, m=8, x_dtype="float32"), Plain(64, 1, m=2)):
            func = fused_plain(case)
            space = RULE.space(func, target)
            assert space[0] == RULE.default(func, target) and len(set(space)) == len(space) > 2
            costs = [RULE.estimate(func, target, decision, {}) for decision in space]
            assert costs == sorted(costs) and costs[0] > 0


@pytest.mark.parametrize(
    ("case", "target", "reason"),
    [
        (Plain(32, 48), TARGET, "m rows: 1 to 8, known in advance"),
        (Plain(32, 48, m=9), TARGET, "9 rows: 1 to 8"),
        (Plain(32, 48, m=1, layout="kn"), TARGET, r"the weight is \[k, n\]"),
        (Plain(32, 48, m=1, x_dtype="bfloat16"), TARGET, "x is bfloat16, the weight float16"),
        (Plain(32, 48, m=1), x86("avx2"), "serves NVIDIA GPUs, llvm-x86_64-avx2 is none"),
    ],
)
def test_declines_with_its_reason(case: Plain, target: object, reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.default(fused_plain(case), target)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (Decision(2, 4, 3), "3 warps of each group do not divide 4"),
        (Decision(8, 4, 2), "8 columns of 5 rows are more than 32 sums"),
        (Decision(17, 4, 2), "columns is 17"),
    ],
)
def test_refuses_what_cannot_be(decision: Decision, reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.apply(fused_plain(Plain(64, 64, m=5)), TARGET, decision)


@needs_nvcc
@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "case",
    [Plain(768, 3072, "bias+gelu", m=1), Plain(4096, 4096, "bias", m=8, x_dtype="float32")],
    ids=["one row", "eight rows of float32"],
)
def test_machine_code(case: Plain, arch: str) -> None:
    """Reads of 16 bytes, shuffles, no spills."""
    target, func = resolve(f"cuda:{arch}"), fused_plain(case)
    func = RULE.apply(func, target, RULE.default(func, target))
    (kernel,), operations = kernels_of([func], arch)
    (found,) = operations.values()
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0), f"{kernel.registers} registers"
    assert any(name.startswith("SHFL.BFLY") for name in found)
    assert any(name.startswith("LDG.E.128") for name in found), dict(found)
