"""How far apart arrays are that hold infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from halo_tvm.differences import relative_error

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("output", "expected", "least", "error"),
    [
        ([1.0, 3.0], [1.0, 4.0], 0.0, 0.25),
        ([1.0, 3.0], [1.0, 4.0], 10.0, 0.1),
        ([0.5, 0.0], [0.0, 0.0], 0.0, 0.5),
        ([INF, NAN, 2.0], [INF, NAN, 4.0], 0.0, 0.5),
        ([NAN, 1.0], [1.0, 1.0], 0.0, INF),
        ([INF, 1.0], [-INF, 1.0], 0.0, INF),
        ([], [], 0.0, 0.0),
    ],
)
def test_relative_error(output: list[float], expected: list[float], least: float, error: float) -> None:
    assert relative_error(np.float32(output), np.float32(expected), least) == pytest.approx(error)
