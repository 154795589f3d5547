"""A few of torch's own samples of its operators; `scripts/torch_conformance.py` runs all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("expecttest")
torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import torch_conformance

CASES = ["topk|int64", "roll|float32", "nn.functional.max_pool1d|float32", "transpose|int64", "new_full|float32"]


@pytest.mark.slow
def test_samples_pass_or_are_refused() -> None:
    """Ties, NaN, shifts of one axis, tensors without elements or axes."""
    run = torch_conformance.runner()
    rows = [row for case in CASES for row in run(case)]
    assert [row for row in rows if row["status"] in ("wrong", "failed")] == []
    assert sum(row["status"] == "pass" for row in rows) >= 20


@pytest.mark.parametrize(
    ("found", "wanted", "equal"),
    [
        (np.inf, np.inf, True),
        (1.0, np.inf, False),
        (np.inf, 1.0, False),
        (-np.inf, np.inf, False),
        (np.nan, np.inf, False),
    ]
    + [(np.nan, np.nan, True), (1.0, np.nan, False), (1.0 + 1e-6, 1.0, True), (1.001, 1.0, False)],
)
def test_only_an_infinity_is_one(found: float, wanted: float, equal: bool) -> None:
    got, want = np.array([1.0, found], "float32"), torch.tensor([1.0, wanted])
    assert (torch_conformance.unequal(got, want, lambda: None) == "") == equal
