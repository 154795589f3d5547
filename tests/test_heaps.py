"""The first elements of rows by a heap, against a stable sort of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from halo_tvm.heaps import first_places

TYPES = ("float32", "float16", "float64", "int64", "int32", "uint32", "uint8")


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[str, bool], tvm.runtime.Module]:
    """One kernel of open sizes for each type and direction."""
    built = {}
    for dtype in TYPES:
        for largest in (True, False):
            rows, n, k = (tirx.Var(name, "int64") for name in ("rows", "n", "k"))
            x = te.placeholder((rows, n), dtype, name="x")
            kernel = te.create_prim_func([x, first_places(x, k, largest=largest)])
            built[dtype, largest] = tvm.compile(kernel.with_attr("global_symbol", "first"), target="llvm")
    return built


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    rows=st.integers(1, 3),
    n=st.integers(1, 300),
    k=st.integers(0, 75),
    values=st.integers(1, 80),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(TYPES),
    largest=st.booleans(),
)
def test_first_of_equal_ones_is_first_and_nan_is_the_largest(kernels, rows, n, k, values, seed, dtype, largest):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, (rows, n)).astype(dtype)
    if dtype == "int32":
        x = x - np.int32(40)
    if "float" in dtype:
        x = (x - 40) * np.where(rng.random(x.shape) < 0.1, -0.0, 1.0).astype(dtype)
        x[rng.random(x.shape) < 0.1] = np.nan
    found = tvm.runtime.tensor(np.full((rows, k), -1))
    kernels[dtype, largest]["first"](tvm.runtime.tensor(x), found)
    key = np.where(np.isnan(x), np.inf, x.astype(np.float64))
    wanted = np.argsort(-key if largest else key, axis=1, kind="stable")
    wanted = np.concatenate([wanted, np.repeat(wanted[:, -1:], k, axis=1)], axis=1)  # the last stands for missing ones
    np.testing.assert_array_equal(found.numpy(), wanted[:, :k])
