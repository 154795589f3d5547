"""A few of torch's own samples of its operators; `scripts/torch_conformance.py` runs all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("expecttest")
pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import torch_conformance

CASES = ["topk|int64", "roll|float32", "nn.functional.max_pool1d|float32", "transpose|int64", "new_full|float32"]


def test_samples_pass_or_are_refused() -> None:
    """Ties, NaN, shifts of one axis, tensors without elements or axes."""
    run = torch_conformance.runner()
    rows = [row for case in CASES for row in run(case)]
    assert [row for row in rows if row["status"] in ("wrong", "failed")] == []
    assert sum(row["status"] == "pass" for row in rows) >= 20
