"""Models of the hub: what a cache holds serves only where it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halo_tvm.errors import EnvironmentProblem
from halo_tvm.importers.huggingface import _of_hub

hub = pytest.importorskip("huggingface_hub")
COMMIT = "a" * 40


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch) -> Path:
    """That of me/tiny in a cache of its own, on a machine without a network."""

    def offline(*_asked: object, **_how: object) -> None:
        raise hub.errors.OfflineModeIsEnabled("no network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.HfApi, "model_info", offline)
    model = tmp_path / "models--me--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    folder = model / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def test_a_tokenizer_alone_is_no_model(snapshot: Path) -> None:
    """As AutoTokenizer leaves it behind; then without one of two shards, then whole."""
    refused = "expected to reach the hub for me/tiny, found OfflineModeIsEnabled"
    with pytest.raises(EnvironmentProblem, match=refused):
        _of_hub("me/tiny")
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": dict(zip("ab", shards))}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / shards[0]).write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=refused):
        _of_hub("me/tiny")
    (snapshot / shards[1]).write_bytes(b"")
    assert _of_hub("me/tiny") == snapshot
    (snapshot / "config.json").unlink()
    with pytest.raises(EnvironmentProblem, match=refused):
        _of_hub("me/tiny")


def test_an_adapter_is_whole_with_its_own_weights(snapshot: Path) -> None:
    (snapshot / "adapter_config.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match="expected to reach the hub for me/tiny"):
        _of_hub("me/tiny")
    (snapshot / "adapter_model.safetensors").write_bytes(b"")
    assert _of_hub("me/tiny") == snapshot
