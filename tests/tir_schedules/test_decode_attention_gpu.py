"""The decode_attention_gpu rule: numbers of both emulated kernels against float64, declines, machine code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attention_functions import SEEN, TARGETS, attributes, function, of_a_cache
from attention_kernels import DTYPES, TOLERANCE, check, check_nan_stays, exact_result, lower_once, normal
from attention_kernels import scheduled as scheduled_by
from covering import covering
from emulation import emulate
from gpu_functions import TARGET, check_needed, kernels_of, needs_nvcc

from halo_tvm.errors import Declined
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES

pytestmark = pytest.mark.covering

RULE = RULES["decode_attention_gpu"]
SMALL = RULE.Decision(splits=3, least_keys=1, warps=2, keys=1)  # few statements to emulate, and many parts
scheduled = partial(scheduled_by, RULE, decision=SMALL)


@pytest.fixture(autouse=True)
def lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_once(monkeypatch)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if dtype == "float16" or name == "window" else pytest.mark.slow)
        for name in SEEN
        for dtype in DTYPES
    ],
)
@pytest.mark.sampled(4, 8)
def test_symbolic_lengths(name, dtype):
    attrs = attributes(4, 2, 32, **SEEN[name])
    func = scheduled([("b", 1, 4, 32), ("b", "t", 2, 32), ("b", "t", 2, 32)], attrs, dtype)
    for b, t in ((1, 1), (2, 50), (1, 64), (1, 131)):
        check(func, normal(dtype, (b, 1, 4, 32), *[(b, t, 2, 32)] * 2), attrs)


@pytest.mark.parametrize(
    ("name", "queries"),
    [
        ("causal", 3),
        ("window", 2),
        pytest.param("causal", 2, marks=pytest.mark.slow),
        pytest.param("window", 3, marks=pytest.mark.slow),
    ],
)
def test_several_queries(name, queries):
    attrs = attributes(4, 2, 16, **SEEN[name])
    func = scheduled([("b", queries, 4, 16), *[("b", "t", 2, 16)] * 2], attrs, "float16")
    for t in (1, 90, 200):
        check(func, normal("float16", (2, queries, 4, 16), *[(2, t, 2, 16)] * 2), attrs)


@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        pytest.param(
            d,
            dtype,
            marks=[] if (d, dtype) in ((48, "float16"), (256, "float16"), (80, "float32")) else pytest.mark.slow,
        )
        for d in (16, 48, 80, 128, 208, 256)
        for dtype in ("float16", "float32")
    ],
)
@pytest.mark.sampled(4, 8)
def test_head_sizes_by_default(d, dtype):
    attrs = attributes(2, 1, d, causal=True)
    func = scheduled([(1, 1, 2, d), *[(1, 70, 1, d)] * 2], attrs, dtype, decision=None)
    done = check(func, normal(dtype, (1, 1, 2, d), *[(1, 70, 1, d)] * 2), attrs)
    assert len(done.launches) == 2


def test_many_heads_of_a_group_read_the_keys_in_piles():
    attrs = attributes(12, 1, 64)
    func = scheduled([(1, 1, 12, 64), *[(1, "t", 1, 64)] * 2], attrs, "float16")
    done = check(func, normal("float16", (1, 1, 12, 64), *[(1, 21, 1, 64)] * 2), attrs)
    assert done.launches[0][1]["blockIdx.x"] == 3 * SMALL.splits, "four rows a block"


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_lengths_of_a_cache(causal):
    """Nothing comes of what lies behind the valid keys: it is NaN here."""
    attrs = attributes(2, 1, 16, causal=causal, has_lengths=True)
    func = scheduled([("b", 1, 2, 16), *[("b", "t", 1, 16)] * 2, ("b",)], attrs, [*["float16"] * 3, "int32"])
    for t, lengths in ((150, (150, 33, 130)), (70, (0, 5, 999)), (32, (-3, 1, 32))):
        check(func, of_a_cache(normal("float16", (3, 1, 2, 16), *[(3, t, 1, 16)] * 2), lengths), attrs)


def test_masks_and_biases():
    attrs = attributes(2, 1, 16, has_key_mask=True, has_bias=True, softcap=3.0, causal=True)
    shapes = [("b", 2, 2, 16), *[("b", "t", 1, 16)] * 2, ("b", "t"), (1, 2, 2, "t")]
    func = scheduled(shapes, attrs, [*["float16"] * 3, "bool", "float32"])
    for t in (5, 90):
        mask = np.arange(t) % 3 != np.array([[0], [3]])
        arrays = [*normal("float16", (2, 2, 2, 16), *[(2, t, 1, 16)] * 2), mask, *normal("float32", (1, 2, 2, t))]
        check(func, arrays, attrs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_decision(dtype):
    attrs = attributes(2, 1, 48, causal=True)
    func = function([("b", 1, 2, 48), *[("b", "t", 1, 48)] * 2], attrs, [dtype] * 3)
    space = RULE.space(func, TARGET)
    assert space[0] == RULE.default(func, TARGET) and len(set(space)) == len(space) >= 6
    for decision in covering(space):
        check(RULE.apply(func, TARGET, decision), normal(dtype, (1, 1, 2, 48), *[(1, 301, 1, 48)] * 2), attrs)


def test_the_barrier_is_needed():
    attrs = attributes(2, 1, 16)
    func = scheduled([(1, 1, 2, 16), *[(1, 70, 1, 16)] * 2], attrs, "float16")
    arrays = normal("float16", (1, 1, 2, 16), *[(1, 70, 1, 16)] * 2)
    exact = exact_result(arrays, attrs)
    case = [*arrays, np.zeros(exact.shape, "float16")], exact
    check_needed(func, case, barriers=1, waits=0, tolerance=TOLERANCE["float16"])


@pytest.mark.parametrize("dtype", ["float16", "float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_nan_stays(dtype):
    attrs = attributes(2, 1, 16)
    func = scheduled([("b", 1, 2, 16), *[("b", "t", 1, 16)] * 2], attrs, dtype)
    check_nan_stays(func, normal(dtype, (2, 1, 2, 16), *[(2, 21, 1, 16)] * 2), attrs, TOLERANCE[dtype])


def test_nothing_to_compute_launches_nothing():
    func = scheduled([("b", 1, 2, 16), *[("b", "t", 1, 16)] * 2], attributes(2, 1, 16), "float16")
    q, k = np.zeros((0, 1, 2, 16), "float16"), np.zeros((0, 7, 1, 16), "float16")
    assert not emulate(func, TARGET, [q, k, k, q.copy()]).launches


# ---- declines ----


@pytest.mark.parametrize(
    ("shapes", "attrs", "message"),
    [
        ([(1, 1, 96)], attributes(2, 2, 16, packed=True), "serves separate q, k and v, not packed ones"),
        (
            [(1, "s", 2, 16), *[(1, "t", 2, 16)] * 2],
            attributes(2, 2, 16),
            "1 to 8 queries, known when compiling, got s",
        ),
        ([(1, 9, 2, 16), *[(1, "t", 2, 16)] * 2], attributes(2, 2, 16), "1 to 8 queries, known when compiling, got 9"),
        ([(1, 1, 2, 20), *[(1, "t", 2, 20)] * 2], attributes(2, 2, 20), "multiples of 16 up to 256, got 20"),
    ],
)
def test_declines(shapes, attrs, message):
    with pytest.raises(Declined, match=message):
        RULE.default(function(shapes, attrs, ["float16"] * len(shapes)), TARGET)


def test_declines_other_targets_and_decisions():
    func = function([(1, 1, 2, 256), *[(1, "t", 1, 256)] * 2], attributes(2, 1, 256))
    with pytest.raises(Declined, match="serves NVIDIA GPUs, llvm-x86_64-avx2 is none"):
        RULE.default(func, TARGETS["avx2"])
    first = RULE.default(func, TARGET)
    with pytest.raises(Declined, match="registers a thread are needed, 200 are served"):
        RULE.apply(func, TARGET, replace(first, keys=8))
    with pytest.raises(Declined, match="splits is 1000, the rule serves 1 to 256"):
        RULE.apply(func, TARGET, replace(first, splits=1000))


def test_prefill_is_left_to_the_next_rule():
    names = TARGET.spec.rules
    assert names.index("decode_attention_gpu") < names.index("flash_attention_gpu")


# ---- machine code and the analytic estimate ----


@needs_nvcc
@pytest.mark.parametrize(
    ("dtype", "d", "arch"),
    [
        ("float16", 128, "sm_80"),
        pytest.param("float16", 64, "sm_80", marks=pytest.mark.slow),
        pytest.param("float16", 128, "sm_90", marks=pytest.mark.slow),
    ],
)
def test_machine_code(dtype, d, arch):
    """Everything in registers."""
    attrs = attributes(8, 2, d, causal=True)
    shapes = [("b", 1, 8, d), *[("b", "t", 2, d)] * 2]
    kernels, _ = kernels_of([scheduled_by(RULE, shapes, attrs, dtype, target=resolve(f"cuda:{arch}"))], arch)
    assert len(kernels) == 2
    assert all(k.spill_store_bytes == k.spill_load_bytes == 0 for k in kernels)


def test_estimates():
    func = function([("b", 1, 8, 128), *[("b", "t", 2, 128)] * 2], attributes(8, 2, 128), ["float16"] * 3)
    (b, t), first = func.params[1].ty.shape[:2], RULE.default(func, TARGET)

    def estimated(rows: int, keys: int, **fields: int) -> float:
        return RULE.estimate(func, TARGET, replace(first, **fields), {b: rows, t: keys})

    times = [estimated(1, keys) for keys in (1, 512, 4096, 32768)]
    assert times == sorted(times)
    assert estimated(1, 32768, splits=1) > 3 * estimated(1, 32768), "one block reads all keys of a head"
