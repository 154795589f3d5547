"""TVM's rules over every operator, whether or not ours serve it: what each takes, and that it is right."""

from __future__ import annotations

from collections import Counter

import pytest
from emulated_functions import TARGET, assert_near, emulated, module_of, primitive
from test_emulation import RECURRENT
from test_operators import CASES

from halo_tvm.errors import Declined
from halo_tvm.passes.schedule import scheduled_by
from halo_tvm.tir_schedules import RULES

# The table of docs/cuda.md: operators of which at least one case has a function that the rule takes. quantisation_grid
# is not among them: the blocks behind its two sums have another number of axes than they.
TAKEN = {
    "dlight_matmul": {
        "convolution",
        "convolution_integer",
        "ffn",
        "fourier",
        "linear",
        "linear_integer",
        "linear_w8a8",
        "matmul",
    },
    "dlight_general_reduction": {
        "convolution",
        "convolution_integer",
        "convolution_integer_winograd",
        "experts",
        "ffn",
        "layer_norm",
        "linear",
        "linear_groups",
        "linear_integer",
        "linear_w8a8",
        "pooling",
        "rms_norm",
    },
    "dlight_reduction": {"fourier", "pooling", "rms_norm"},
}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TAKEN)
def test_what_a_rule_takes_is_right(name: str) -> None:
    rule, taken = RULES[name], Counter()
    for operator, index in CASES:
        if operator in RECURRENT:  # emulated for minutes
            continue
        for func in primitive(module_of(operator, index)).values():
            try:
                decision = rule.default(func, TARGET)
            except Declined:
                continue
            taken[operator] += 1
            for array, wanted in emulated(func, scheduled_by(rule, func, TARGET, decision)):
                assert_near(array, wanted, f"{operator} {index}")
    assert set(taken) == TAKEN[name]
