"""Attention of models on a GPU: which rules serve a model, what multiplies in its attention, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from checkpoints import write_checkpoint
from test_emulation import arrays_of, free, reference
from tvm import tirx

from halo_tvm.compiler import lower, schedule
from halo_tvm.config import CompileConfig
from halo_tvm.emulation import emulate
from halo_tvm.importers import import_model
from halo_tvm.passes._work import operator_name
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules._blocks import main_block

TARGET = resolve("cuda:sm_80")
ATTENTION, LINEAR = {"flash_attention_gpu", "decode_attention_gpu"}, {"tensor_core_gemm", "gemv"}


def scheduled_model(kind: str, precision: str, root: Path) -> tuple[tvm.IRModule, tvm.IRModule, dict[str, str]]:
    """(functions before, functions as scheduled, the rule of each) of a tiny model."""
    source = str(write_checkpoint(root / kind, kind))
    config = CompileConfig(model=source, target=TARGET.name, output="x.halo", precision=precision)
    mod, _ = lower(import_model(config.model), TARGET, config)
    done, report = schedule(mod, TARGET, config)
    return mod, done, {entry["function"]: entry["rule"] for entry in report["functions"]}


@pytest.mark.parametrize(("kind", "precision"), [("gpt2", "fp16"), ("bert", "bf16"), ("llama", "fp16")])
def test_a_model_runs_on_tensor_cores(kind: str, precision: str, tmp_path: Path) -> None:
    """No function goes to the fallback; attention multiplies at the precision's digits and is as exact."""
    mod, done, rules = scheduled_model(kind, precision, tmp_path)
    assert "fallback_gpu" not in rules.values()
    functions = {gvar.name_hint: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    linears = [name for name, func in functions.items() if main_block(func, "linear") is not None]
    assert linears and {rules[name] for name in linears} <= LINEAR
    served = {name: func for name, func in functions.items() if operator_name(func) == "attention"}
    assert served and {rules[name] for name in served} <= ATTENTION
    for name, func in served.items():
        assert 'ptx_legacy.mma("m16n8k8", "row", "col", "tf32", "tf32", "fp32"' in done[name].script()
        arrays = arrays_of(func, {**{var.name: 6 for var in free(func)}, "batch": 2, "sequence": 5})
        expected = reference(func, arrays)
        emulate(done[name], TARGET, arrays)
        for array, wanted in zip(arrays, expected):
            np.testing.assert_allclose(array, wanted, rtol=2e-3, atol=2e-3, err_msg=name)
