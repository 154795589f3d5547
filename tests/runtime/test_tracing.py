"""A run seen call by call: shapes, weights and times, and the whole run beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from halo_tvm.errors import UsageError
from halo_tvm.runtime import load


def test_a_trace_names_shapes_and_weights(tmp_path: Path) -> None:
    with load(tiny.write_tiny(tmp_path / "t.halo"), threads=1) as module:
        trace = module.trace(rounds=3, sizes={"batch": 5})
        expected = module(x=np.ones((5, tiny.K), np.float32), ids=np.zeros(5, np.int64))
    kernels = [call for call in trace.calls if not call.builtin]
    assert [call.function for call in kernels] == ["matmul", "relu", "multiply"], "in the order of the run"
    product = kernels[0]
    assert product.arguments == ((5, tiny.K), (tiny.K, tiny.N), (5, tiny.N))
    assert product.weights == (None, 0, None)
    assert all(call.us >= 0 for call in trace.calls) and min(call.us for call in trace.calls) == 0
    assert trace.run_us > 0 and trace.rounds == 3 and trace.instrument_us > 0
    assert trace.peak_rss_mib > 1
    assert expected[0].shape == (5, tiny.N), "the module runs on as before"


def test_no_rounds_are_refused(tmp_path: Path) -> None:
    with load(tiny.write_tiny(tmp_path / "t.halo"), threads=1) as module:
        with pytest.raises(UsageError, match="expected rounds of at least 1, found 0"):
            module.trace(rounds=0)
