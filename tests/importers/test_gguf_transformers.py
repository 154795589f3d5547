"""GGUF files of the architectures whose tensors converters change most, against the model of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_models import written

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate

gguf = pytest.importorskip("gguf")
pytest.importorskip("torch")
pytest.importorskip("transformers")
from gguf_converted import write_converted
from gguf_models import MODELS

IDS = np.random.default_rng(0).integers(3, 131, (1, 14))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(16)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Whole prompts; then 4 and 6 tokens and single ones behind what is kept."""
    kind, words, more = MODELS[name]
    wanted = written(tmp_path, kind, words, IDS)
    near = {"rtol": 0, "atol": 1e-5 * np.abs(wanted).max()}
    path = write_converted(tmp_path, name.partition(":")[0], more, older=name.endswith(": older"))
    model = import_model(str(path))
    np.testing.assert_allclose(evaluate(model, {"input_ids": IDS})["logits"], wanted, **near)
    prefill, decode = (model.entries[n]("float32") for n in ("prefill", "decode"))
    caches = {s.name: np.zeros([16 if d == "capacity" else d for d in s.shape]) for s in prefill.inputs[2:]}
    for begin, end in ((0, 4), (4, 10), *((at, at + 1) for at in range(10, 14))):
        given = {"input_ids": IDS[:, begin:end], "lengths": np.array([begin], np.int32), **caches}
        found = evaluate(decode if end - begin == 1 else prefill, given)["logits"]
        np.testing.assert_allclose(found, wanted[:, end - 1], **near)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        (
            "falcon-h1",
            {"tie": True},
            r"expected output.weight \(a factor of its own is in it\) in a GGUF file, found none",
        ),
        (
            "granitehybrid: turned",
            {"rope.dimension_count": 8},
            "heads that positions turn wholly in .*dimension_count 8",
        ),
        ("minicpm", {"logit_scale": None}, "expected minicpm.logit_scale in a GGUF file, found none"),
        ("gemma4", {"rope.dimension_count": 16}, "a rope.dimension_count of whole heads in a GGUF file, found 16"),
        ("minimax-m2", {"expert_gating_func": 1}, "experts are chosen by sigmoid .* found expert_gating_func 1"),
        ("minimax-m2", {"expert_gating_func": 4}, "found expert_gating_func 4"),
        ("mistral3", {"rope.scaling.type": "linear"}, "temperature_scale beside a rotation of the kind yarn"),
        ("mistral3", {"rope.scaling.yarn_ext_factor": 0.5}, "expected rope.scaling.yarn_ext_factor 1 .* found 0.5"),
        ("mistral3", {"attention.causal": False}, "whose tokens see those in front of them alone"),
        ("mamba2", {"ssm.time_step_rank": 3}, "ssm.inner_size as a multiple of ssm.time_step_rank .* found 128 and 3"),
        ("mamba2", {"ssm.state_size": 4}, "expected tensor 'blk.0.ssm_.*do not belong together"),
        (
            "qwen35",
            {"ssm.time_step_rank": 1 << 31, "ssm.inner_size": 1 << 31},
            "expected tensor 'blk.0.attn_qkv.weight' .* do not belong together",
        ),
        ("nemotron_h", {"feed_forward_length": [0, 0, 0, 0]}, "feed_forward_length above 0 in some layer"),
        ("qwen35", {"ssm.group_count": None}, "the complete metadata of a qwen35 model, found KeyError"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, name: str, more: dict[str, object], message: str) -> None:
    kind, words, known = MODELS[name]
    if more.get("tie"):
        words, more = {**words, "tie_word_embeddings": True}, {}
    written(tmp_path, kind, words, IDS)
    path = write_converted(tmp_path, name.partition(":")[0], {**known, **more})
    with pytest.raises(UnsupportedModel, match=message) as found:
        import_model(str(path))
    assert "\n" not in str(found.value)
