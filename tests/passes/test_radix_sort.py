"""Places of rows' elements in order, against a stable sort of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from halo_tvm.passes._radix_sort import places_in_order

TYPES = ("float64", "float32", "float16", "int64", "int32", "int8", "uint64", "uint32", "bool")


def kernel(rows: int | tirx.Var, n: int | tirx.Var, dtype: str, descending: bool) -> tvm.runtime.Module:
    x = te.placeholder((rows, n), dtype, name="x")
    func = te.create_prim_func([x, *places_in_order(x, descending=descending)])
    return tvm.compile(func.with_attr("global_symbol", "argsort"), target="llvm")


def check(built: tvm.runtime.Module, x: np.ndarray, descending: bool) -> None:
    (rows, n), bits = x.shape, 64 if "64" in str(x.dtype) else 32
    outs = [np.full((rows, n), -1), np.zeros((rows, 2, n), "int32"), np.zeros((rows, n), f"int{bits}")]
    outs = [tvm.runtime.tensor(out) for out in outs]
    built["argsort"](tvm.runtime.tensor(x), *outs)
    wanted = np.argsort(x[:, ::-1] if descending else x, axis=1, kind="stable")
    wanted = n - 1 - wanted[:, ::-1] if descending else wanted  # a stable order the other way round
    np.testing.assert_array_equal(outs[0].numpy(), wanted)


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[str, bool], tvm.runtime.Module]:
    """One kernel of open sizes for each type and direction."""
    sizes = [tirx.Var(name, "int64") for name in ("rows", "n")]
    return {(dtype, way): kernel(*sizes, dtype, way) for dtype in TYPES for way in (True, False)}


def numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str, values: int) -> np.ndarray:
    """Few or many values of all bits, with both ends of the type; of floats also zeros of both signs, no numbers."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "float" in dtype:
        x = rng.choice(rng.standard_normal(values) * 100, shape).astype(dtype)
        for some in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0):
            x[rng.random(shape) < 0.05] = some
        return x
    ends = np.iinfo(dtype)
    x = rng.choice(rng.integers(ends.min, ends.max, values, dtype, endpoint=True), shape)
    for end in (ends.min, ends.max):
        x[rng.random(shape) < 0.05] = end
    return x


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    rows=st.integers(1, 3),
    n=st.one_of(st.integers(0, 20), st.integers(60, 300)),  # compared each with each, and sorted by digits
    values=st.integers(1, 80),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(TYPES),
    descending=st.booleans(),
)
def test_of_equal_ones_the_first_is_first_and_nan_is_the_largest(kernels, rows, n, values, seed, dtype, descending):
    x = numbers(np.random.default_rng(seed), (rows, n), dtype, values)
    check(kernels[dtype, descending], x, descending)


@pytest.mark.parametrize(("rows", "n"), [(8, 1), (19, 9), (16, 32), (9, 33)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_rows_of_few_elements_stand_side_by_side(rows: int, n: int, dtype: str) -> None:
    """In lanes, eight at a time; those that are left one by one."""
    for descending in (True, False):
        check(kernel(rows, n, dtype, descending), numbers(np.random.default_rng(n), (rows, n), dtype, 7), descending)
