"""Attention of models on a GPU: which rules serve a model, what multiplies in its attention, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_functions import emulated, scheduled_model

from halo_tvm.passes.work import operator_name
from halo_tvm.tir_schedules.blocks import main_block

ATTENTION, LINEAR = {"flash_attention_gpu", "decode_attention_gpu"}, {"tensor_core_gemm", "gemv"}


@pytest.mark.parametrize(("kind", "precision"), [("gpt2", "fp16"), ("bert", "bf16"), ("llama", "fp16")])
@pytest.mark.sampled(1)
def test_a_model_runs_on_tensor_cores(kind: str, precision: str, tmp_path: Path) -> None:
    """No function goes to the fallback; attention multiplies at the precision's digits and is as exact."""
    model = scheduled_model(kind, precision, tmp_path)
    rules = model.rules
    assert "fallback_gpu" not in rules.values()
    linears = [name for name, func in model.before.items() if main_block(func, "linear") is not None]
    assert linears and {rules[name] for name in linears} <= LINEAR
    served = {name: func for name, func in model.before.items() if operator_name(func) == "attention"}
    assert served and {rules[name] for name in served} <= ATTENTION
    for name, func in served.items():
        assert 'ptx_legacy.mma("m16n8k8", "row", "col", "tf32", "tf32", "fp32"' in model.after[name].script()
        for array, wanted in emulated(func, model.after[name], batch=2, sequence=5):
            np.testing.assert_allclose(array, wanted, rtol=2e-3, atol=2e-3, err_msg=name)
