"""How widely to search: one row per `--effort`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...config import STAGES
from ...errors import UnknownName

ANALYTIC, RECORDS, RANKED, DESCENT, METASCHEDULE = STAGES


@dataclass(frozen=True)
class Rung:
    """One race of a halving. A cheap rung leaves out the sizes that cost most and carry little weight."""

    rounds: int
    cheap: bool = False


@dataclass(frozen=True)
class Effort:
    """One row."""

    name: str
    most: int  # candidates measured per task; 0: nothing is measured
    stages: tuple[str, ...]  # those that are on, in their order
    batch: int  # candidates that race each other in one halving
    rungs: tuple[Rung, ...]  # half of the candidates go on to the next
    epsilon: float  # the share of a ranked batch that is drawn at random
    nearest: int  # records of similar workloads that are tried
    patience: int  # ranked batches without a better candidate after which that stage ends
    cycles: int  # rounds of ranking and descent without a better candidate after which the task ends
    confirm_rounds: int  # paired rounds that decide whether a winner is committed

    def of_stages(self, stages: Sequence[str]) -> Effort:
        """This row with exactly these stages on; `UnknownName` lists them. None given: the row as it is."""
        for name in stages:
            if name not in STAGES:
                raise UnknownName("stage", name, STAGES)
        return replace(self, stages=tuple(s for s in STAGES if s in stages)) if stages else self


EFFORTS: dict[str, Effort] = {
    row.name: row
    for row in (
        Effort(
            "none",
            most=0,
            stages=(ANALYTIC,),
            batch=1,
            rungs=(),
            epsilon=0.0,
            nearest=0,
            patience=0,
            cycles=0,
            confirm_rounds=0,
        ),
        Effort(
            "quick",
            most=24,
            stages=(ANALYTIC, RECORDS, RANKED),
            batch=8,
            rungs=(Rung(1, cheap=True), Rung(4)),
            epsilon=0.125,
            nearest=3,
            patience=2,
            cycles=1,
            confirm_rounds=12,
        ),
        Effort(
            "full",
            most=400,
            stages=(ANALYTIC, RECORDS, RANKED, DESCENT),
            batch=8,
            rungs=(Rung(2, cheap=True), Rung(4), Rung(8)),
            epsilon=0.25,
            nearest=4,
            patience=4,
            cycles=2,
            confirm_rounds=20,
        ),
    )
}


def effort_named(name: str) -> Effort:
    """The row of that name; `UnknownName` lists the rows."""
    if name not in EFFORTS:
        raise UnknownName("effort", name, EFFORTS)
    return EFFORTS[name]
