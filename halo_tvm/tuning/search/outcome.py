"""What a search hands on: its trials and their count, what was confirmed, and why it ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .race import Samples

# Why a search ended.
SPACE, PATIENCE, SMALL_GAIN, NO_STEP = "space", "patience", "small gain", "no step helps"
ROOFLINE, MOST, TRIALS, BUDGET, NO_STAGE = "roofline", "most candidates", "trials", "budget", "no stage measures"


@dataclass(frozen=True)
class Trial:
    """One candidate: timed (`outcome` is None), or failed with that error class."""

    decision: object
    stage: str
    outcome: str | None
    speedup: float = 0.0
    message: str = ""
    samples: Samples | None = None


@dataclass
class Tally:
    """What happened to the candidates of one task."""

    measured: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[object, str, str]] = field(default_factory=list)  # decision, error class, message

    @property
    def tried(self) -> int:
        return self.measured + sum(self.failures.values())


@dataclass(frozen=True)
class Confirmed:
    """A candidate against the default in paired rounds. Rows of samples are sizes, in us."""

    decision: object
    default_us: tuple[tuple[float, ...], ...]
    candidate_us: tuple[tuple[float, ...], ...]
    speedup: float
    speedup_low: float
    speedup_high: float
    stage: str = ""  # that proposed it

    @property
    def is_faster(self) -> bool:
        return self.speedup_low > 1.0
