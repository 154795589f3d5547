"""An artifact that several verbs look at, and none changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from halo_tvm.cli import main


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 of one or two texts of up to 32 tokens."""
    root = tmp_path_factory.mktemp("made")
    write_checkpoint(root / "gpt2", "gpt2")
    words = ["-o", str(root / "gpt2.halo"), "--no-validate", "--shape", "input_ids=1..2x4..32"]
    assert main(["compile", "--model", str(root / "gpt2"), *words]) == 0
    return root / "gpt2.halo"
