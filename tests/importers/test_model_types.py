"""Types of transformers that found what no operator by itself shows: whole small models, at several sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import transformers_conformance

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "mimo_v2_flash",  # two names for one product of sizes, of which a clean-up keeps one
        # the largest of an open number, sizes that kernels read, parameters taken apart into numbers
        pytest.param("hy_v4", marks=pytest.mark.sweep),
    ],
)
def test_equal_to_transformers(name: str) -> None:
    row = transformers_conformance.run(name)
    assert row["status"] == "pass", row["why"]
