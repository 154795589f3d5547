"""Records of a tuning run: a trial or a winner as one line of the log."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from datetime import UTC, datetime

from ..records.decision import decision_to_plain
from ..records.record import IMPROVED, MEASURED, WITHDRAWN, Fingerprint, Record, Size
from ..records.workload import family_of
from .search.efforts import RECORDS
from .search.outcome import Confirmed, Trial
from .search.race import timed
from .task import Task

_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_LONGEST_MESSAGE = 500


class Recorder:
    """Makes the records of one run."""

    def __init__(self, fingerprint: Fingerprint, run: str, seed: int) -> None:
        self._target = fingerprint.facts()
        self._versions = versions()
        self._run = run
        self._seed = seed

    def trial(self, task: Task, trial: Trial) -> Record:
        """A candidate that was timed, with the sizes it was timed at, or one that failed."""
        known = timed(trial.samples) if trial.samples is not None else {}
        total = sum(task.sizes[s].weight for s in known)
        return self._record(
            task,
            trial.decision,
            trial.outcome or MEASURED,
            trial.stage,
            sizes=tuple(Size(task.sizes[s].dims, task.sizes[s].weight / total) for s in known) or task.sizes,
            candidate_us=_rounded([candidate for _, candidate in known.values()]),
            default_us=_rounded([default for default, _ in known.values()]),
            speedup=round(trial.speedup, 4),
            message=trial.message[:_LONGEST_MESSAGE],
        )

    def winner(self, task: Task, confirmed: Confirmed) -> Record:
        return self._record(
            task,
            confirmed.decision,
            IMPROVED,
            confirmed.stage,
            sizes=task.sizes,
            candidate_us=_rounded(confirmed.candidate_us),
            default_us=_rounded(confirmed.default_us),
            speedup=round(confirmed.speedup, 4),
            speedup_low=round(confirmed.speedup_low, 4),
        )

    def withdrawn(self, task: Task, decision: object, speedup: float, message: str) -> Record:
        """A winner of before that this run measured again and does not choose, with its speed-up and why."""
        return self._record(
            task, decision, WITHDRAWN, RECORDS, sizes=task.sizes, speedup=round(speedup, 4), message=message
        )

    def _record(self, task: Task, decision: object, outcome: str, stage: str, **more: object) -> Record:
        family, extents = family_of(task.func)
        return Record(
            workload=task.key,
            readable=task.readable,
            rule=task.rule.name,
            rule_version=task.rule.version,
            decision=decision_to_plain(decision),
            outcome=outcome,
            target=self._target,
            versions=self._versions,
            seed=self._seed,
            timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
            family=family,
            extents=extents,
            stage=stage,
            run=self._run,
            **more,
        )


def versions() -> dict[str, str]:
    """The releases a record was made with."""
    from .. import __version__

    return {"halo_tvm": __version__} | {name: importlib.metadata.version(name) for name in _PACKAGES}


def _rounded(samples: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(us, 3) for us in row) for row in samples)
