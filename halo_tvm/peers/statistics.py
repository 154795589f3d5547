"""Numbers from samples: percentiles, and ratios with bootstrap intervals over paired rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..differences import differences
from ..report.schema import Comparison, Interval

RESAMPLES = 4000
LEAST_ROUNDS = 6  # of fewer even a unanimous outcome is chance in more than 5 % of all cases, 2 * 0.5 ** 5


def percentiles_ms(samples: Sequence[float]) -> tuple[float, float, float]:
    """p10, median and p90."""
    low, median, high = np.percentile(np.asarray(samples, float), (10, 50, 90))
    return float(low), float(median), float(high)


def paired_interval(ours: Sequence[float], peer: Sequence[float], confidence: float, seed: int = 0) -> Interval:
    """Median over rounds of peer / ours, with its percentile-bootstrap interval; one round gives a point."""
    assert len(ours) == len(peer) > 0, f"paired rounds need equal counts, got {len(ours)} and {len(peer)}"
    ratios = np.asarray(peer, float) / np.asarray(ours, float)
    rng = np.random.default_rng(seed)
    medians = np.median(ratios[rng.integers(0, len(ratios), (RESAMPLES, len(ratios)))], axis=1)
    low, high = np.quantile(medians, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(float(np.median(ratios)), float(low), float(high), confidence)


def compare(peer_name: str, ours: Sequence[float], peer: Sequence[float]) -> Comparison:
    """How much longer the peer takes; a verdict only of enough rounds, where the 95 % interval leaves 1 out."""
    wide = paired_interval(ours, peer, 0.95)
    if len(ours) < LEAST_ROUNDS:
        verdict = "too few rounds to tell"
    else:
        verdict = "faster" if wide.low > 1 else "slower" if wide.high < 1 else "equal within noise"
    return Comparison(
        peer=peer_name,
        ratio_of_medians=float(np.median(peer) / np.median(ours)),
        paired=paired_interval(ours, peer, 0.90),
        paired_95=wide,
        verdict=verdict,
    )


def relative_l2(output: np.ndarray, expected: np.ndarray) -> float:
    """|output - expected| / |expected| in float64, of finite values; infinite where shapes or other values differ."""
    if output.shape != expected.shape:
        return float("inf")
    norm = float(np.linalg.norm(np.where(np.isfinite(expected), expected, 0).astype(np.float64)))
    return float(np.linalg.norm(differences(output, expected))) / (norm or 1.0)
