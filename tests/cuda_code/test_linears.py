"""Linears of models on a GPU: their weights' layout, the rules that serve them, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_functions import emulated, scheduled_model

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UsageError
from halo_tvm.params import pack_nk
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules.blocks import main_block

# x is rounded to the weight's type: 11 or 8 bits, of sums of some dozens of products of about 1.
BOUND = {"fp16": 2e-3, "bf16": 2e-2}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), [("gpt2", "fp16"), ("llama", "bf16")])
def test_linears_of_a_model_run_on_tensor_cores(kind: str, precision: str, tmp_path: Path) -> None:
    model = scheduled_model(kind, precision, tmp_path)
    assert all(label.endswith("/nk") for label in model.reports.optimise.pack_formats)
    for name, func in model.before.items():
        if main_block(func, "linear") is None:
            continue
        assert model.rules[name] == "tensor_core_gemm", name
        for array, wanted in emulated(func, model.after[name], batch=2, sequence=3):
            error = np.abs(array.astype(float) - wanted.astype(float)).max()
            assert error <= BOUND[precision] * np.abs(wanted.astype(float)).max(), name


@pytest.mark.parametrize(
    ("target", "options", "precision"),
    [
        ("cuda:sm_90", {}, "fp16"),
        ("cuda:sm_90", {"precision": "fp32"}, "fp32"),
        ("cuda:sm_90", {"opt_level": "0"}, "fp32"),
        ("cuda:sm_90", {"disable": ("pack_weights",)}, "fp32"),
        ("x86:avx2", {}, "fp32"),
        ("x86:avx2", {"precision": "bf16"}, "bf16"),
    ],
)
def test_what_is_computed_in_where_nothing_is_asked_for(
    target: str, options: dict[str, object], precision: str
) -> None:
    assert Compilation.of(CompileConfig(model="gpt2", **options), resolve(target)).precision == precision


def test_weights_for_a_gpu() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) / 3
    for dtype in ("float32", "float16", "bfloat16"):
        turned = pack_nk(weight, layout="kn", stored=dtype)
        assert turned.shape == (4, 3) and str(turned.dtype) == dtype
        np.testing.assert_array_equal(turned, pack_nk(weight.T, layout="nk", stored=dtype))
        np.testing.assert_allclose(turned.astype(float), weight.T, rtol=2**-8)
    pack_nk(np.float32([[65504.0]]), layout="nk", stored="float16")
    with pytest.raises(UsageError, match="magnitude up to 65504 at --precision fp16, found 70000: choose"):
        pack_nk(np.float32([[7e4]]), layout="nk", stored="float16")
