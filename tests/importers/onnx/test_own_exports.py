"""What this package exports, imported again: the same numbers as the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import halo_tvm
from halo_tvm import CompileConfig, reference
from halo_tvm.exporters.onnx import export_onnx
from halo_tvm.models import FAMILIES
from halo_tvm.models._t5 import T5Config
from halo_tvm.models.builder import RandomWeights


@pytest.mark.slow
def test_a_decoder_whose_positions_are_a_sum_of_two_sizes(tmp_path: Path) -> None:
    """Its bias is gathered at past + tokens positions, by an index that the importer's own kernel makes."""
    config = T5Config(
        layers=1,
        decoder_layers=2,
        hidden=32,
        heads=2,
        head_dim=16,
        feed_forward=48,
        vocabulary=67,
        buckets=16,
        distance=20,
    )
    model = FAMILIES["t5-decoder"].build("t5-decoder", config, RandomWeights(1), {"kind": "builtin"})
    export_onnx(model, tmp_path / "decoder.onnx")
    halo_tvm.compile_model(CompileConfig(str(tmp_path / "decoder.onnx"), output=str(tmp_path / "decoder.halo")))
    arrays = reference.cases_of(model, seed=0)
    inputs = {k.removeprefix("case0.input."): v for k, v in arrays.items() if k.startswith("case0.input.")}
    with halo_tvm.load(str(tmp_path / "decoder.halo")) as module:
        for name, found in zip(model.outputs, module(**inputs), strict=True):
            expected = arrays[f"case0.output.{name}"]
            assert found.shape == expected.shape
            assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
