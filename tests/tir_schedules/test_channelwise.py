"""The rule for windows of single channels: right for every shape and decision, in vectors, without a load twice."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_functions import Case, build_all, check, check_decisions, fused

from halo_tvm.errors import Declined
from halo_tvm.relay_ops.convolution import Convolution
from halo_tvm.relay_ops.pooling import Pooling
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES

RULE = RULES["channelwise"]
TARGET = resolve("cpu", cores=2)
MAX = {
    "layout": "last",
    "kind": "max",
    "kernel": (3, 2),
    "strides": (2, 1),
    "dilations": (1, 1),
    "pads": (1, 0, 1, 1),
    "ceil": True,
    "include_pad": False,
    "p": 2,
}
MEAN = {**MAX, "kind": "average", "pads": (1, 1, 1, 0)}


def depthwise(shape: tuple[int, ...], kernel, strides, dilations, pads, dtype: str = "float32", **fields) -> Case:
    channels = shape[-1]
    weight = np.random.default_rng(0).standard_normal((*kernel, 1, channels)).astype(dtype)
    attrs = {"layout": "last", "strides": strides, "dilations": dilations, "pads": pads, "groups": channels}
    return Case(Convolution, shape, attrs, (weight,), dtype=dtype, **fields)


CASES = [
    depthwise((1, 14, 14, 24), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), epilogue="bias+silu+residual"),
    depthwise(
        (2, 9, 11, 37), (5, 3), (2, 1), (1, 2), (2, 1, 2, 3), symbolic=True, further=((1, 3, 2, 37), (0, 4, 4, 37))
    ),
    depthwise((2, 30, 8), (7,), (2,), (1,), (3, 3), "float16", symbolic=True, epilogue="silu", further=((1, 1, 8),)),
    depthwise((1, 2, 2, 3), (7, 7), (1, 1), (1, 1), (3, 3, 3, 3)),  # a kernel larger than the image
    depthwise((1, 5, 6, 7, 20), (2, 2, 3), (1, 2, 1), (1, 1, 1), (0, 1, 1, 1, 0, 1), epilogue="bias"),
    depthwise((1, 600, 2), (40,), (1,), (1,), (0, 0)),  # too long to be unrolled
    Case(Pooling, (2, 9, 12, 20), MAX, epilogue="residual"),
    Case(Pooling, (1, 9, 8, 5), MEAN),
    Case(Pooling, (1, 9, 8, 16), {**MEAN, "include_pad": True}, symbolic=True, further=((2, 5, 4, 16),)),
    Case(Pooling, (2, 10, 8, 3), {**MAX, "kind": "lp", "p": 3, "ceil": False}),
]


def test_every_kind_of_window():
    functions = {f"f{i}": fused(case) for i, case in enumerate(CASES)}
    built = {name: RULE.apply(func, TARGET, RULE.default(func, TARGET)) for name, func in functions.items()}
    executable = build_all(built, TARGET)
    for i, case in enumerate(CASES):
        check(executable, f"f{i}", case)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_known_row_of_windows(data: st.DataObject):
    """Tiles whose first and last places leave out what lies outside, whatever does."""
    kernel, stride, dilation = (data.draw(st.integers(1, most)) for most in (7, 3, 2))
    before, behind = (data.draw(st.integers(0, 5)) for _ in range(2))
    reach = (kernel - 1) * dilation + 1
    width = data.draw(st.integers(max(1, reach - before - behind), 45))
    case = depthwise(
        (2, 3, width, 18), (2, kernel), (1, stride), (1, dilation), (1, before, 0, behind), epilogue="bias"
    )
    func = fused(case)
    columns, tasks = (data.draw(st.sampled_from(values)) for values in ((1, 2, 3, 5, 8, 12), (1, 8)))
    decision = dataclasses.replace(RULE.default(func, TARGET), columns=columns, tasks=tasks)  # whole rows, and cut ones
    check(build_all({"f": RULE.apply(func, TARGET, decision)}, TARGET), "f", case)


@pytest.mark.slow
def test_every_decision_is_right():
    case = depthwise((1, 11, 21, 24), (3, 3), (2, 1), (1, 1), (1, 1, 1, 1), epilogue="bias+residual")
    check_decisions(RULE, case, TARGET)


def test_an_element_is_loaded_once_for_all_windows_of_a_tile():
    case = depthwise((1, 58, 58, 64), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    func = fused(case)
    wide = resolve("x86:avx512", cores=2)  # with 32 registers
    decision = RULE.default(func, wide)
    assert decision.columns == 8 and decision.lanes == wide.lanes_f32
    executable = build_all({"main": RULE.apply(func, wide, decision)}, wide)
    lines = executable.mod.inspect_source("asm").splitlines()
    products = [line for line in lines if "vfmadd" in line]
    loads = [line for line in lines if re.search(r"mov\w+\s.*\(.*\), %[xyz]mm", line)]
    assert len(products) >= 3 * 3 * 8 and len(products) > 1.5 * len(loads), (
        "8 windows of 3 elements: 10 loads and 3 of weights"
    )
    assert not any("%rsp" in line for line in products), "sums are spilled"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (dataclasses.replace(CASES[6], attrs={**MAX, "layout": "first"}), "made of channel"),
        (
            Case(
                Convolution,
                (1, 5, 5, 4),
                {"layout": "last", "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1},
                (np.ones((3, 3, 4, 4), np.float32),),
            ),
            "4 elements add up along reduction axis 2",
        ),
    ],
)
def test_declines(case: Case, reason: str):
    with pytest.raises(Declined, match=reason):
        RULE.default(fused(case), TARGET)


def test_a_vector_wider_than_the_channels_is_declined():
    func = fused(CASES[3])
    with pytest.raises(Declined, match="vectors of 16 channels, but there are 3"):
        RULE.apply(func, TARGET, dataclasses.replace(RULE.default(func, TARGET), lanes=16))
