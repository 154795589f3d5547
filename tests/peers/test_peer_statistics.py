"""Percentiles, ratios and verdicts on numbers whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from halo_tvm.peers.statistics import compare, paired_interval, percentiles_ms, relative_l2


def test_percentiles():
    assert percentiles_ms(range(1, 12)) == (2.0, 6.0, 10.0)


def test_a_constant_ratio_has_no_spread():
    ours = np.linspace(1, 3, 20)
    found = paired_interval(ours, 2 * ours, 0.95)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_pairing_removes_what_both_engines_share():
    rng = np.random.default_rng(0)
    load = rng.uniform(1, 4, 30)  # the machine slows both by the same factor in each round
    c = compare("peer", 10 * load, 11 * load * rng.normal(1, 0.01, 30))
    assert c.verdict == "faster" and 1.05 < c.paired.low < 1.1 < c.paired.high < 1.15


def test_the_95_interval_holds_the_90_interval():
    rng = np.random.default_rng(1)
    ours, peer = rng.uniform(1, 2, (2, 25))
    narrow, wide = paired_interval(ours, peer, 0.90), paired_interval(ours, peer, 0.95)
    assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(100):
        ratios = np.exp(rng.normal(0, 0.2, 31))
        found = paired_interval(np.ones(31), ratios, 0.90, seed)
        hits += found.low <= 1 <= found.high
    assert 80 <= hits <= 99


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "slower"), (1.0, "equal within noise"), (1.5, "faster")])
def test_verdicts(factor, verdict):
    rng = np.random.default_rng(3)
    ours = rng.normal(10, 0.5, 40)
    assert compare("p", ours, factor * rng.normal(10, 0.5, 40)).verdict == verdict


def test_few_rounds_give_no_verdict():
    """Two engines that are equally fast differ in all of three rounds in a quarter of all cases."""
    assert compare("p", [1.0, 1.0, 1.0], [2.0, 2.1, 2.2]).verdict == "too few rounds to tell"
    assert compare("p", [1.0] * 6, [2.0] * 6).verdict == "faster"


def test_relative_l2():
    assert relative_l2(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
    assert relative_l2(np.zeros(2), np.zeros(2)) == 0


def test_infinities_and_nan_that_are_expected_are_no_error():
    expected = np.array([3.0, 4.0, np.inf, -np.inf, np.nan], "float32")
    assert relative_l2(expected + np.float32(0.5), expected) == pytest.approx(0.5**0.5 / 5)
    for other in (-np.inf, np.nan, 1.0):
        assert relative_l2(np.array([3.0, 4.0, other, -np.inf, np.nan]), expected) == np.inf
