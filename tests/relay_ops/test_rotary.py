"""halo.rotary: the type rule checks both tables, and no position reads outside them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from norm_graphs import graph
from tvm import relax

from halo_tvm.relay_ops import OPERATORS
from halo_tvm.relay_ops.rotary import rotary_tables

ROTARY = OPERATORS["rotary"]
DTYPES = ["float32", "int64", "float32", "float32"]


def test_tables_of_different_lengths_are_refused() -> None:
    shapes = [(2, 5, 3, 16), (5,), (40, 8), (30, 8)]
    with pytest.raises(ValueError, match="cos and sin must have one shape"):
        graph(lambda emit, *a: emit(ROTARY.call(*a, interleaved=False)), shapes, DTYPES)


def test_positions_outside_the_tables_are_clamped() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 8)).astype("float32")
    cos, sin = rotary_tables(40, 8, 10000.0)
    positions = np.array([-5, 39, 70])
    mod = graph(
        lambda emit, *a: emit(ROTARY.call(*a, interleaved=False)), [x.shape, (3,), cos.shape, sin.shape], DTYPES
    )
    executable = relax.build(relax.transform.LegalizeOps()(mod), "llvm")
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = run(*map(tvm.runtime.tensor, (x, positions, cos, sin))).numpy()
    expected = ROTARY.reference(x, np.array([0, 39, 39]), cos, sin, interleaved=False)
    np.testing.assert_allclose(found, expected, atol=1e-6)
