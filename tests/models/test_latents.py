"""Attention over latents: what is kept of a token, and a compiled model of it behind its caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint

from halo_tvm import LanguageModel
from halo_tvm.artifact import read_manifest
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate

IDS = [int(i) for i in np.random.default_rng(0).integers(1, 131, 14)]


def test_a_token_is_one_vector_for_all_heads(tmp_path: Path) -> None:
    model = import_model(str(write_checkpoint(tmp_path / "m", "deepseek_v3")))
    for name in ("prefill", "decode", "decode_slots"):
        state = [spec for spec in model.entries[name]("float16").inputs if spec.name not in ("input_ids", "lengths")]
        assert [(spec.name, spec.shape[2:], spec.dtype) for spec in state] == [("key_0", (1, 48), "float16")]
    assert model.entries["decode"]("int8").inputs[2].shape[2:] == (1, 52)


@pytest.mark.slow
def test_compiled_steps_equal_the_definition(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "m", "deepseek_v3")
    artifact = str(tmp_path / "m.halo")
    compile_model(CompileConfig(model=str(directory), output=artifact, threads=2, records=False, slots=2))
    wanted = evaluate(import_model(str(directory)), {"input_ids": np.array([IDS])})["logits"][0]
    near = {"rtol": 0, "atol": 1e-5 * np.abs(wanted).max()}
    reports = read_manifest(artifact).reports
    assert reports["build"]["apart_bytes"] == 0
    rules = {row["function"]: row["rule"] for row in reports["functions"]["decode"]["schedule"]["functions"]}
    assert rules["attention"] == "decode_attention"
    with LanguageModel.load(artifact, context=48, slots=2, threads=2) as model:
        np.testing.assert_allclose(model.prefill(IDS[:9]), wanted[8], **near)
        model.prefill(IDS[:4], 1)
        for at in range(9, 14):
            together = model.decode_together({0: IDS[at], 1: IDS[at - 5]})
            np.testing.assert_allclose([together[0], together[1]], wanted[[at, at - 5]], **near)
        model.truncate(3)
        np.testing.assert_allclose(model.extend(IDS[3:]), wanted[-1], **near)
        np.testing.assert_allclose(model.score(IDS), wanted, **near)
