"""Every case of `halo.attention` as code for a GPU: whatever rule serves it, TVM lowers it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from attention_functions import Attention, function
from attention_kernels import DTYPES
from gpu_code import cuda_source
from tvm import tirx

from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.targets import resolve

ARCH = "sm_90"
CASES = Attention.cases()
MOST = max(range(len(CASES)), key=lambda i: len(CASES[i]["args"]))  # operands: every feature at once


def keeps_bytes(arguments: list[object]) -> bool:
    """Whether keys and values are caches in eight bits, whose rows have no other type."""
    return any(isinstance(x, np.ndarray) and x.dtype == np.int8 for x in arguments[1:3])


def scheduled(index: int, dtype: str) -> tirx.PrimFunc:
    """One case with queries, keys and values of `dtype`, as `compile` schedules it."""
    arguments, attrs = CASES[index]["args"], CASES[index]["attrs"]
    data = 1 if attrs.get("packed") else 3
    given = [(x.shape, str(x.dtype)) if isinstance(x, np.ndarray) else (x, "float32") for x in arguments]
    shapes, dtypes = zip(*given)
    func = function(shapes, attrs, [dtype] * data + list(dtypes[data:]))
    mod, _ = schedule_functions(
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), resolve(f"cuda:{ARCH}")
    )
    return mod["main"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_features_at_once_become_source(dtype: str) -> None:
    """A bias and a key mask whose elements lie at the same place, beside a soft cap."""
    assert "__global__" in cuda_source([scheduled(MOST, dtype)], ARCH)


@pytest.mark.slow
@pytest.mark.sampled(17)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [i for i, case in enumerate(CASES) if not keeps_bytes(case["args"])])
def test_every_case_becomes_source(index: int, dtype: str) -> None:
    assert "__global__" in cuda_source([scheduled(index, dtype)], ARCH)
