"""halo.rotary: the type rule checks both tables (numbers, clamping included: tests/test_operators.py)."""

from __future__ import annotations

import pytest
from norm_graphs import graph

from halo_tvm.relay_ops import OPERATORS


def test_tables_of_different_lengths_are_refused() -> None:
    shapes = [(2, 5, 3, 16), (5,), (40, 8), (30, 8)]
    with pytest.raises(ValueError, match="cos and sin must have one shape"):
        graph(
            lambda emit, *a: emit(OPERATORS["rotary"].call(*a, interleaved=False)),
            shapes,
            ["float32", "int64", "float32", "float32"],
        )
