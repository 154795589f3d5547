"""What paired rounds say about a speed-up, without assuming anything about the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

_TAIL = 0.025  # each side of a 95 % interval


def speedups_by_round(
    default_us: Sequence[Sequence[float]], candidate_us: Sequence[Sequence[float]], weights: Sequence[float]
) -> list[float]:
    """Per round, the weighted geometric mean over the sizes of default / candidate. Rows are sizes, columns rounds."""
    total = sum(weights)
    rounds = min(len(row) for row in (*default_us, *candidate_us))
    return [
        math.exp(sum(w * math.log(d[r] / c[r]) for w, d, c in zip(weights, default_us, candidate_us)) / total)
        for r in range(rounds)
    ]


def median_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval of order statistics; 0 and infinity when there are too few values."""
    ordered = sorted(values)
    n = len(ordered)
    # With k values below the true median with probability Binomial(n, 1/2): the largest k whose tail fits.
    below, k, tail = 0.0, 0, 0.5**n
    while below + tail <= _TAIL:
        below += tail
        tail *= (n - k) / (k + 1)
        k += 1
    return (median(ordered), ordered[k - 1], ordered[-k]) if k else (median(ordered), 0.0, math.inf)
