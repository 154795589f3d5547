"""The promise on numbers: error against float64 at most 4 times onnxruntime's own, on the full models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.exporters.onnx import export_onnx
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate_all
from halo_tvm.reference import random_inputs
from halo_tvm.runtime import load

SIZES = {
    "gpt2": [{"batch": 1, "sequence": s} for s in (1, 7, 128, 500)],
    "bert-base": [{"batch": 2, "sequence": 65}, {"batch": 1, "sequence": 128}],
    "mlp": [{"batch": 1}, {"batch": 256}],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("bert-base", "mlp"))]
)
def test_error_is_at_most_four_times_that_of_onnxruntime(name: str, tmp_path: Path) -> None:
    import onnxruntime

    model = import_model(name)
    cases = [random_inputs(model.inputs, dims, seed=i) for i, dims in enumerate(SIZES[name])]
    references = [next(iter(outputs.values())) for outputs in evaluate_all(model, cases)]
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    theirs = [session.run(None, case)[0] for case in cases]
    del session
    compile_model(CompileConfig(model=name, output=str(tmp_path / "model.halo"), validate=False))
    module = load(tmp_path / "model.halo")
    for dims, case, reference, other in zip(SIZES[name], cases, references, theirs):
        scale = np.linalg.norm(reference)
        own_error, other_error = (np.linalg.norm(y - reference) / scale for y in (module(**case), other))
        assert own_error <= 4 * other_error, f"{name} {dims}: {own_error:.2e} against {other_error:.2e}"
        print(f"{name} {dims}: relative L2 error {own_error:.2e}, onnxruntime {other_error:.2e}")
