"""The lower bound of a speed-up covers the truth as often as it says."""

import math

import numpy as np
import pytest

from halo_tvm.tuning.statistics import median_and_interval, speedups_by_round


def test_weighted_geometric_mean():
    default = [[2.0, 4.0], [1.0, 1.0]]
    candidate = [[1.0, 1.0], [1.0, 1.0]]
    assert speedups_by_round(default, candidate, [1.0, 1.0]) == pytest.approx([2**0.5, 2.0])
    assert speedups_by_round(default, candidate, [1.0, 0.0]) == pytest.approx([2.0, 4.0])


def test_too_few_rounds_prove_nothing():
    assert median_and_interval([2.0, 2.0, 2.0]) == (2.0, 0.0, math.inf)


@pytest.mark.parametrize(("n", "index"), [(6, 0), (12, 2), (20, 5)])
def test_order_statistic(n, index):
    values = [1.0 + i for i in range(n)]
    assert median_and_interval(values)[1:] == (values[index], values[-1 - index])


@pytest.mark.parametrize("n", [12, 20])
def test_coverage(n):
    rng = np.random.default_rng(0)
    # Skewed noise, as a shared machine gives it; the true median is 1.
    draws = np.exp(rng.standard_normal((4000, n)) ** 3 * 0.05)
    false_claims = sum(median_and_interval(list(row))[1] > 1.0 for row in draws)
    assert false_claims / 4000 < 0.03
