"""tensor_core_gemm: right at every tail, free of bank conflicts, on tensor cores without spills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from emulation import emulate
from gpu_functions import check_needed, kernels_of, needs_nvcc, scheduled_for
from linear_functions import BOUND, Case, Plain, fused, fused_plain, plain_arguments, x86
from tvm import relax

from halo_tvm.build import can_capture
from halo_tvm.cuda.toolkit import find_tool
from halo_tvm.dimensions import itemsize_of
from halo_tvm.errors import Declined
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.tensor_core_gemm import Decision
from halo_tvm.tir_schedules.products.tensor_core_gemm._shared import SharedTile
from halo_tvm.workspaces import LiftWorkspaces

TARGET = resolve("cuda:sm_80")
WITHOUT_COPIES = replace(TARGET, isa=replace(TARGET.isa, gpu=replace(TARGET.isa.gpu, copies=())))
RULE = RULES["tensor_core_gemm"]
SMALL = Decision(block_m=32, block_n=32, block_k=32, warps=2, stages=3)


def check(case: Plain, rows: int, decision: Decision) -> None:
    of_one_row = rows == 1 and case.m is None and case.layout == "nk"  # these do not round
    arrays, expected = plain_arguments(replace(case, rounds=False) if of_one_row else case, rows)
    emulate(scheduled_for(fused_plain(case), RULE.name, decision), TARGET, arrays)
    # Epilogues of a narrow x round after each of their steps.
    bound = BOUND[case.x_dtype] * (1 + case.epilogue.count("+") + 4 * ("gelu" in case.epilogue))
    np.testing.assert_allclose(arrays[-1].astype(float), expected, rtol=bound, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize("rows", [1, 7, 16, 33, 65])
@pytest.mark.parametrize("x_dtype", ["float16", "float32"])
@pytest.mark.sampled(4)
def test_symbolic_rows(rows: int, x_dtype: str) -> None:
    check(Plain(96, 72, "bias+gelu", x_dtype=x_dtype), rows, SMALL)


CASES = {
    "one step of k": Plain(32, 32, "none"),
    "fewer steps than stages": Plain(40, 64, "none"),
    "k by eights": Plain(104, 40, "bias"),
    "k by fours": Plain(100, 50, "bias+relu+residual"),
    "k even": Plain(70, 31, "bias"),
    "bfloat16": Plain(90, 70, "bias", x_dtype="bfloat16", weight_dtype="bfloat16"),
    "float32 rounded": Plain(98, 35, "bias+gelu", x_dtype="float32"),
    "float32 rounded to bfloat16": Plain(72, 66, "bias+residual", x_dtype="float32", weight_dtype="bfloat16"),
    "rows of k": Plain(90, 54, "bias", layout="kn"),
    "rows of k, n by twos": Plain(65, 46, "none", layout="kn", weight_dtype="bfloat16", x_dtype="float32"),
    "rows of k, float32": Plain(33, 64, "bias", layout="kn", x_dtype="float32", weight_dtype="bfloat16"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.sampled(5)
def test_every_tail(case: Plain) -> None:
    check(case, 19, SMALL)
    check(replace(case, m=32), 32, SMALL)


DECISIONS = [
    Decision(16, 64, 64, 4, 2),
    Decision(64, 32, 32, 1, 4),
    Decision(32, 128, 64, 8, 3),
    Decision(128, 64, 32, 8, 2),
    Decision(256, 32, 32, 4, 2),
]


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("decision", DECISIONS, ids=str)
@pytest.mark.sampled(4)
def test_every_shape_of_a_tile(decision: Decision, layout: str) -> None:
    check(Plain(136, 136, "bias", layout=layout), 40, decision)


# Magnitudes of the rows of one tile: float16 ends at 65504, and at 6e-8 on the other side.
MAGNITUDES = (1e5, 1e-9, 1.0, 0.0, 3e37, 1e-30, 1e30, 1e-37, 65504.0)
# Of one product of a row that is rounded: 11 bits of its own magnitude, and 2**-25 of twice the row's largest.
RELATIVE, OF_LARGEST = 2.0**-11, 2.0**-24


def rounding_bound(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What rounding rows of x [m, k] may change of x @ weight.T, [m, n]; sums in float32 besides."""
    size, of = np.abs(x).astype(np.float64), np.abs(weight.astype(np.float64)).T
    largest = size.max(axis=1, keepdims=True) * np.ones_like(size)
    return (RELATIVE + x.shape[1] * 2.0**-24) * (size @ of) + OF_LARGEST * (largest @ of)


@pytest.mark.parametrize("k", [64, 1042])
@pytest.mark.parametrize("static", [False, True])
def test_rows_of_every_size(static: bool, k: int) -> None:
    """None overflows, none vanishes, whatever stands beside it."""
    rows = 2 * len(MAGNITUDES)
    case = Plain(k, 40, "none", m=rows if static else None, x_dtype="float32")
    (x, weight, out), _ = plain_arguments(case, rows)
    x *= np.float32(np.tile(MAGNITUDES, 2))[:, None] / np.abs(x).max(axis=1, keepdims=True)
    x[len(MAGNITUDES) :, 1:] *= 1e-3  # one element as large as the row, the rest small
    emulate(scheduled_for(fused_plain(case), RULE.name, SMALL), TARGET, [x, weight, out])
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.isfinite(out).all() and (np.abs(out - exact) <= rounding_bound(x, weight)).all()
    assert (np.abs(out).max(axis=1) > 0).tolist() == [size > 0 for size in MAGNITUDES] * 2


def test_what_is_not_finite_stays_in_its_row() -> None:
    (x, weight, out), _ = plain_arguments(Plain(64, 40, "none", x_dtype="float32"), 17)
    x[3, 5], x[9, 0] = np.inf, np.nan
    emulate(RULE.apply(fused_plain(Plain(64, 40, "none", x_dtype="float32")), TARGET, SMALL), TARGET, [x, weight, out])
    assert np.isfinite(out).all(axis=1).tolist() == [row not in (3, 9) for row in range(17)]
    assert np.isnan(out[9]).all() and not np.isfinite(out[3]).any()


@pytest.mark.parametrize("magnitude", [1.0, 1e5, 1e-9])
def test_a_row_alone_and_among_others(magnitude: float) -> None:
    """prefill(n) and one step against prefill(n + 1): as far apart as the rounding of x, which one row is spared."""
    case = Plain(200, 48, "none", x_dtype="float32")
    func = scheduled_for(fused_plain(case), RULE.name, SMALL)
    (x, weight, together), _ = plain_arguments(case, 18)
    x *= np.float32(magnitude)
    emulate(func, TARGET, [x, weight, together])
    alone = np.full((1, case.n), np.nan, np.float32)
    emulate(func, TARGET, [x[-1:].copy(), weight, alone])
    before = np.full((17, case.n), np.nan, np.float32)
    emulate(func, TARGET, [x[:-1].copy(), weight, before])
    np.testing.assert_array_equal(before, together[:-1])  # the number of rows changes nothing but that
    assert (np.abs(alone - together[-1:]) <= rounding_bound(x[-1:], weight)).all()


@pytest.mark.parametrize("x_dtype", ["float16", "float32"])
def test_no_rows_launch_nothing(x_dtype: str) -> None:
    case = Plain(64, 32, x_dtype=x_dtype)
    arrays, _ = plain_arguments(case, 0)
    assert emulate(scheduled_for(fused_plain(case), RULE.name, SMALL), TARGET, arrays).launches == ()


@pytest.mark.parametrize(("x_dtype", "captured"), [("float16", True), ("float32", False)])
def test_no_graph_keeps_the_address_of_a_workspace(x_dtype: str, captured: bool) -> None:
    x = relax.Var("x", relax.TensorType((16, 64), x_dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    mod = builder.get()
    mod["linear"] = scheduled_for(fused_plain(Plain(64, 32, m=16, x_dtype=x_dtype)), RULE.name, SMALL)
    assert can_capture(mod, TARGET) == captured and can_capture(LiftWorkspaces()(mod), TARGET)


@pytest.mark.parametrize("static", [True, False])
def test_rounded_rows_are_handed_over(static: bool) -> None:
    case = Plain(64, 32, m=16 if static else None, x_dtype="float32")
    func = scheduled_for(fused_plain(case), RULE.name, SMALL)
    ((_, lifted),) = LiftWorkspaces()(tvm.IRModule({"linear": func})).functions_items()
    assert [param.name for param in lifted.params[-2:]] == ["x_half", "x_scale"]
    arrays, _ = plain_arguments(case, 16)
    emulate(func, TARGET, arrays)
    again = [*arrays[:-1], np.full_like(arrays[-1], np.nan)]
    emulate(lifted, TARGET, [*again, np.full((16, 64), np.nan, np.float16), np.full(16, np.nan, np.float32)])
    np.testing.assert_array_equal(again[-1], arrays[-1])


@pytest.mark.parametrize("arch", ["sm_86", "sm_90"])
def test_the_default_of_other_levels_is_right(arch: str) -> None:
    """Their shared memory is of another size, so they choose other tiles."""
    target, case = resolve(f"cuda:{arch}"), Plain(200, 136, "bias", x_dtype="float32")
    arrays, expected = plain_arguments(case, 40)
    func = fused_plain(case)
    emulate(RULE.apply(func, target, RULE.default(func, target)), target, arrays)
    np.testing.assert_allclose(arrays[-1], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


# What is read before it is there, or overwritten before it is read: each barrier and each wait, one at a time.
NEEDED = {
    "float16": Plain(200, 64, "none", m=40),
    "float32": Plain(1100, 40, "none", m=40, x_dtype="float32"),
    "float32 to bfloat16": Plain(200, 64, "none", m=40, x_dtype="float32", weight_dtype="bfloat16"),
}


@pytest.mark.parametrize("case", NEEDED.values(), ids=NEEDED.keys())
def test_every_barrier_and_every_wait_is_needed(case: Plain) -> None:
    func = RULE.apply(fused_plain(case), TARGET, SMALL)
    rounded_first = case.x_dtype != case.weight_dtype == "float16"
    check_needed(func, plain_arguments(case, case.m), barriers=1 + rounded_first, waits=1, tolerance=1e-2)


@pytest.mark.parametrize(("dtype", "lanes"), [("float16", 8), ("bfloat16", 8), ("float32", 4)])
@pytest.mark.parametrize("columns", [32, 64, 128])
def test_no_bank_conflicts(dtype: str, lanes: int, columns: int) -> None:
    """What one pass over shared memory reads comes from 32 different banks of 4 bytes."""
    tile, size = SharedTile(64, columns, dtype), itemsize_of(dtype)
    places = sorted(tile.at(row, column) for row in range(tile.rows) for column in range(columns))
    assert places == list(range(tile.size)), "two elements stand at one place"
    for top in range(0, tile.rows, 8):
        for column in range(0, columns, 8):
            if dtype == "float32":  # half a warp reads pairs: 4 rows of 4 pairs
                starts = [tile.at(top + lane // 4, column + lane % 4 * 2) for lane in range(16)]
                width = 2
            else:  # ldmatrix reads 8 rows of 16 bytes
                starts, width = [tile.at(top + row, column) for row in range(8)], 8
            banks = [(start + e) * size // 4 % 32 for start in starts for e in range(0, width, max(1, 4 // size))]
            assert len(set(banks)) == len(banks) == 32, f"rows from {top}, columns from {column}"


@pytest.mark.slow
def test_the_default_fits_and_comes_first() -> None:
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100"):
        target = resolve(f"cuda:{arch}")
        for case in (Plain(768, 3072), Plain(768, 3072, x_dtype="float32"), Plain(4096, 4096, m=4096), Plain(64, 10)):
            func = fused_plain(case)
            space = RULE.space(func, target)
            assert space[0] == RULE.default(func, target) and len(set(space)) == len(space) > 5
            sizes = {} if case.m else {func.params[0].ty.shape[0]: 512}
            costs = [RULE.estimate(func, target, decision, sizes) for decision in space]
            assert costs == sorted(costs) and costs[0] > 0
    assert RULE.default(fused_plain(Plain(768, 3072, m=16)), TARGET).block_m == 16


@pytest.mark.parametrize(
    ("func", "target", "reason"),
    [
        (fused(Case(32, 48, 32, 48)), TARGET, "weight has rank 4: it is packed for a CPU"),
        (fused_plain(Plain(32, 48, x_dtype="float32", weight_dtype="float32")), TARGET, "the weight is float32"),
        (fused_plain(Plain(32, 48, x_dtype="bfloat16")), TARGET, "x is bfloat16 under a weight of float16"),
        (fused_plain(Plain(32, 48)), x86("avx2"), "serves NVIDIA GPUs, llvm-x86_64-avx2 is none"),
        (fused_plain(Plain(32, 48)), WITHOUT_COPIES, "cuda:sm_80 has no asynchronous copies"),
        (fused_plain(Plain(33, 48)), TARGET, "rows of 33 elements of 16 bits"),
        (fused_plain(Plain(33, 48, layout="kn", x_dtype="float32")), TARGET, "rows of 33 elements of 16 bits"),
        (fused_plain(Plain(32, 47, layout="kn")), TARGET, "rows of 47 elements of 16 bits"),
    ],
    ids=["packed", "float32", "mixed", "cpu", "no copies", "odd k", "odd k rounded first", "odd n"],
)
def test_declines_with_its_reason(func: tvm.tirx.PrimFunc, target: object, reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.default(func, target)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"block_m": 48}, "block_m is 48"),
        ({"warps": 8}, "8 warps cannot share 32 x 32"),
        ({"stages": 9}, "stages is 9"),
        ({"block_m": 256, "block_n": 256, "warps": 4}, "512 sums|256 sums"),
        ({"block_m": 256, "block_n": 256, "block_k": 64, "warps": 16, "stages": 6}, "bytes of shared memory"),
    ],
)
def test_refuses_what_cannot_be(changed: dict[str, int], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        RULE.apply(fused_plain(Plain(64, 64)), TARGET, replace(SMALL, **changed))


BUILT = {
    "sm_80-default": (Plain(768, 3072, "bias+gelu"), "sm_80", None),
    "sm_90-rounded-on-the-way": (
        Plain(768, 768, "bias+residual", x_dtype="float32", weight_dtype="bfloat16"),
        "sm_90",
        Decision(128, 128, 32, 4, 3),
    ),
    "sm_90-bfloat16": (
        Plain(1024, 1024, x_dtype="bfloat16", weight_dtype="bfloat16"),
        "sm_90",
        Decision(128, 256, 32, 8, 4),
    ),
    "sm_80-kn": (Plain(768, 768, layout="kn"), "sm_80", Decision(128, 128, 64, 4, 3)),
}


@pytest.mark.slow
@needs_nvcc
@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(("case", "arch", "decision"), BUILT.values(), ids=BUILT.keys())
@pytest.mark.sampled(1, 2)
def test_machine_code(case: Plain, arch: str, decision: Decision | None) -> None:
    """Tensor cores, ldmatrix and asynchronous copies of 16 bytes; nothing is spilled, one barrier in each step."""
    target, func = resolve(f"cuda:{arch}"), fused_plain(case)
    func = RULE.apply(func, target, decision or RULE.default(func, target))
    kernels, operations = kernels_of([func], arch)
    for kernel in kernels:
        assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0), f"{kernel.registers} registers"
    *of_one_row, found = sorted(operations.values(), key=lambda names: "HMMA" in str(names))
    assert [any("SHFL" in name for name in names) for names in of_one_row] == [True] * (case.layout == "nk")
    wide = [name for name in found if name.startswith("LDGSTS") and "128" in name]
    for operation in ("HMMA.16816.F32", "LDSM.16.M"):
        assert any(name.startswith(operation) for name in found), f"no {operation} among {dict(found)}"
    assert wide and not any(name.startswith("STS") for name in found)


# (k, n, epilogue) of GPT-2 124M: query, key and value; attention's output; the two of a feed-forward; the head.
GPT2 = [
    (768, 2304, "bias"),
    (768, 768, "bias+residual"),
    (768, 3072, "bias+gelu"),
    (3072, 768, "bias+residual"),
    (768, 50257, "none"),
]


@needs_nvcc
@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90", marks=pytest.mark.slow)])
def test_machine_code_of_gpt2(arch: str) -> None:
    """Nothing is spilled; each linear has a kernel of tensor cores and asynchronous copies of 16 bytes."""
    target, rule = resolve(f"cuda:{arch}"), RULES["tensor_core_gemm"]
    funcs = [fused_plain(Plain(k, n, epilogue, x_dtype="float32")) for k, n, epilogue in GPT2]
    kernels, operations = kernels_of([rule.apply(f, target, rule.default(f, target)) for f in funcs], arch)
    assert len(kernels) == 3 * len(GPT2), "rows that are rounded, one row, and many"
    for kernel in kernels:
        assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0), kernel
    products = [names for names in operations.values() if any(name.startswith("HMMA.16816.F32") for name in names)]
    assert len(products) == len(GPT2)
    for names in products:
        assert any(name.startswith("LDGSTS") and "128" in name for name in names), dict(names)
        assert any(name.startswith("LDSM.16.M") for name in names) and not any(n.startswith("STS") for n in names)
