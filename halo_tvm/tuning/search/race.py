"""Successive halving: a batch races the default in rungs, and half of it goes on to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..measure import protocol as p
from ..measure.lab import Failure, Lab
from .efforts import Rung

TURN_OVERHEAD_S = 0.004  # pause, and short calls repeated
_CARRIED = 0.75  # the weight that the sizes of a cheap rung carry at least


@dataclass
class Samples:
    """A candidate's times and the default's in the same rounds; rows are sizes, in us."""

    default_us: list[list[float]]
    candidate_us: list[list[float]]

    @classmethod
    def empty(cls, sizes: int) -> Samples:
        return cls([[] for _ in range(sizes)], [[] for _ in range(sizes)])

    @property
    def rounds(self) -> int:
        """Rounds at the size that has the fewest; 0 when one was not timed."""
        return min(map(len, self.default_us))

    def add(self, size: int, default_us: Sequence[float], candidate_us: Sequence[float]) -> None:
        self.default_us[size] += default_us
        self.candidate_us[size] += candidate_us

    def speedup(self, weights: Sequence[float], sizes: Container[int] | None = None) -> float:
        """The weighted geometric mean over the sizes that were timed (of `sizes`) of the median ratio; 0 of nothing."""
        timed = [
            (w, median(math.log(a / b) for a, b in zip(d, c)))
            for at, (w, d, c) in enumerate(zip(weights, self.default_us, self.candidate_us))
            if d and (sizes is None or at in sizes)
        ]
        total = sum(w for w, _ in timed)
        return math.exp(sum(w * ratio for w, ratio in timed) / total) if total else 0.0


@dataclass
class Outcome:
    """What a race came to: samples by candidate, and those that died while they were timed.

    `last` holds the samples of the last rung alone: who got there was chosen by the rounds before, which flatter.
    """

    samples: dict[int, Samples] = field(default_factory=dict)
    last: dict[int, Samples] = field(default_factory=dict)
    failed: dict[int, Failure] = field(default_factory=dict)
    finalists: list[int] = field(default_factory=list)  # who ran in the last rung, the best first


def halving(
    lab: Lab,
    candidates: Sequence[int],
    standing: int | None,
    rungs: Sequence[Rung],
    default_us: Sequence[float],
    weights: Sequence[float],
    affordable: Callable[[float], bool],
    *,
    hopeless: float = 0.0,
) -> Outcome:
    """Race `candidates`; from the second rung on (or in the only one) the best so far, `standing`, joins them.

    `affordable(seconds)` says whether there is time for a rung. A first rung whose best speed-up is below
    `hopeless` (a figure at the same sizes) ends the race. A candidate that dies is blamed and leaves;
    `Failure` passes when the default is to blame, or nobody.
    """
    outcome = Outcome()
    running = list(candidates)
    for at, rung in enumerate(rungs):
        sizes = cheap_sizes(default_us, weights) if rung.cheap else list(range(len(default_us)))
        joins = standing is not None and standing not in outcome.failed and (at > 0 or len(rungs) == 1)
        ids = [*running, *([standing] if joins else [])]
        if not running or not affordable(rung_s(len(ids), rung.rounds, [default_us[s] for s in sizes])):
            break
        outcome.last = {}
        for size in sizes:
            _time(lab, ids, size, rung.rounds, default_us, outcome)
            ids = [i for i in ids if i not in outcome.failed]
        running = [i for i in running if i not in outcome.failed]
        running.sort(key=lambda i: outcome.samples[i].speedup(weights), reverse=True)
        outcome.finalists = running
        if not running or (at == 0 and outcome.samples[running[0]].speedup(weights) < hopeless):
            break
        running = running[: max(1, len(running) // 2)]
    return outcome


def _time(lab: Lab, ids: Sequence[int], size: int, rounds: int, default_us: Sequence[float], outcome: Outcome) -> None:
    """One race at one size, again without whoever died in it."""
    while ids:
        try:
            times = lab.race([p.DEFAULT_ID, *ids], size, rounds, default_us[size])
        except Failure as failure:
            if failure.blamed not in ids:
                raise
            outcome.failed[failure.blamed] = failure
            ids = [i for i in ids if i != failure.blamed]
            continue
        for i in ids:
            for kept in (outcome.samples, outcome.last):
                kept.setdefault(i, Samples.empty(len(default_us))).add(size, times[p.DEFAULT_ID], times[i])
        return


def cheap_sizes(default_us: Sequence[float], weights: Sequence[float]) -> list[int]:
    """The sizes that are left when the dearest for their weight go, as long as most of the weight stays."""
    kept = list(range(len(default_us)))
    total = sum(weights)
    for at in sorted(kept, key=lambda i: default_us[i] / max(weights[i], 1e-9), reverse=True):
        if sum(weights[i] for i in kept) - weights[at] < _CARRIED * total:
            break
        kept.remove(at)
    return kept


def rung_s(candidates: int, rounds: int, default_us: Sequence[float]) -> float:
    """About how long so many rounds of the default and so many candidates take."""
    return (candidates + 1) * rounds * sum(us * 1e-6 + TURN_OVERHEAD_S for us in default_us)


def timed(samples: Samples) -> Mapping[int, tuple[list[float], list[float]]]:
    """size index -> (default's, candidate's times), of the sizes that were timed."""
    return {s: (d, c) for s, (d, c) in enumerate(zip(samples.default_us, samples.candidate_us)) if d}
