"""A short form of `scripts/hostile_files.py`: broken and hostile files, each ends in a model or in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "runtime"), str(ROOT / "tests" / "importers" / "onnx")]

import _hostile_corpus as corpus
import hostile_files

FORMATS = {"gguf": "gguf", "tflite": "ai_edge_litert", "npz": "numpy", "huggingface": "numpy"}  # and what writes them


def test_broken_files_end_in_a_model_or_a_sentence(tmp_path: Path) -> None:
    from test_hostile import REAL
    from tiny import write_tiny

    sound = tmp_path / "sound"
    sound.mkdir()
    (sound / "real.onnx").write_bytes(REAL)
    write_tiny(sound / "tiny.halo")
    for kind, package in FORMATS.items():
        pytest.importorskip(package)
        corpus.write_containers(sound, (kind,))
    rows = hostile_files.run_all("short", sound, [str(seed) for seed in range(100)], jobs=1)
    assert {row["ended"] for row in rows} == {"model", "refused"}, hostile_files.say("short", rows, every=False)
