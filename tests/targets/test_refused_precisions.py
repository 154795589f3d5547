"""A precision that a target computes slower than float32 is refused, unless it is asked for twice."""

from __future__ import annotations

import pytest

from halo_tvm.config import PRECISIONS
from halo_tvm.errors import UsageError
from halo_tvm.targets import TARGETS, check_precision, resolve


def test_float32_is_served_everywhere():
    for name in TARGETS:
        check_precision(resolve(name), "fp32")


def test_a_slower_precision_is_refused_with_the_ways_forward():
    with pytest.raises(UsageError, match="x86:avx2 computes fp16 slower than fp32: choose one of fp32, .*--force"):
        check_precision(resolve("x86:avx2"), "fp16")
    check_precision(resolve("x86:avx2"), "fp16", force=True)


def test_half_arithmetic_serves_fp16():
    check_precision(resolve("x86:avx512-fp16"), "fp16")


def test_manifests_name_known_precisions():
    for spec in TARGETS.values():
        for isa in spec.isas:
            assert set(isa.precisions) <= set(PRECISIONS) - {"fp32"}
