"""How widely to search: one row per `--effort`."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UnknownName


@dataclass(frozen=True)
class Effort:
    """One row. Stages that do not exist yet (nearest record, ranking by a learned model) become fields here."""

    name: str
    most: int  # candidates measured per task; 0: nothing is measured
    batch: int  # candidates that race each other in one halving
    rungs: tuple[int, ...]  # rounds of each rung; half of the candidates go on to the next
    descend: bool  # after the space, vary one field of the best decision at a time
    patience: int  # batches without a better candidate after which a task ends
    confirm_rounds: int  # paired rounds that decide whether a winner is committed


EFFORTS: dict[str, Effort] = {
    row.name: row
    for row in (
        Effort("none", most=0, batch=1, rungs=(), descend=False, patience=0, confirm_rounds=0),
        Effort("quick", most=24, batch=8, rungs=(2, 4), descend=False, patience=2, confirm_rounds=12),
        Effort("full", most=400, batch=8, rungs=(2, 4, 8), descend=True, patience=4, confirm_rounds=20),
    )
}


def effort_named(name: str) -> Effort:
    """The row of that name; `UnknownName` lists the rows."""
    if name not in EFFORTS:
        raise UnknownName("effort", name, EFFORTS)
    return EFFORTS[name]
