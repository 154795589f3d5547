"""Elements among equal ones, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from halo_tvm.passes._sorting import groups_kernel


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("in_order_of_values", [True, False])
def test_nan_is_a_group_of_its_own(dtype: str, in_order_of_values: bool) -> None:
    x = np.array([3, np.nan, 1, 3, -np.nan, np.inf, -0.0, 0.0], dtype)
    group, count = np.full(len(x), -1), np.array([-1])
    kernel = groups_kernel(dtype, in_order_of_values).with_attr({"global_symbol": "groups"})
    order = np.argsort(x, kind="stable")
    results = [tvm.runtime.tensor(a) for a in (group, count)]
    tvm.compile(kernel, target="llvm")["groups"](*map(tvm.runtime.tensor, (x[None, :, None], order[None])), *results)
    found, number = (result.numpy() for result in results)
    values, first, wanted = np.unique(x, return_index=True, return_inverse=True)
    if not in_order_of_values:
        wanted = np.argsort(np.argsort(first))[wanted]
    assert number == len(values) == 5
    np.testing.assert_array_equal(found, wanted)
