"""Which record look-up would use for each workload of some logs, and why that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .log import TuningLog
from .record import Fingerprint, Record, measured_again, only_a_hint, unlikeness


@dataclass(frozen=True)
class Choice:
    """The record that is used for a workload, or None; `reason` says why it, or why none."""

    workload: str
    readable: str
    rule: str
    record: Record | None
    directory: Path | None
    reason: str

    def to_plain(self) -> dict[str, object]:
        record = self.record
        return {
            "workload": self.workload,
            "readable": self.readable,
            "rule": self.rule,
            "rule_version": record.rule_version if record else None,
            "decision": dict(record.decision) if record else None,
            "speedup": record.speedup if record else None,
            "speedup_low": record.speedup_low if record else None,
            "directory": str(self.directory) if self.directory else None,
            "reason": self.reason,
        }


def choices(directories: Sequence[Path], target: Fingerprint, versions: Mapping[str, int]) -> list[Choice]:
    """The choice for every workload in `directories`, given in look-up order; `versions` are those of the rules."""
    logs = [(directory, TuningLog.open([directory], target)) for directory in directories]
    found = dict.fromkeys(pair for _, log in logs for pair in log.workloads())
    return [_choice(logs, target, workload, rule, versions.get(rule)) for workload, rule in found]


def _choice(
    logs: Sequence[tuple[Path, TuningLog]], target: Fingerprint, workload: str, rule: str, version: int | None
) -> Choice:
    hints: list[Record] = []
    for position, (directory, log) in enumerate(logs):
        known = log.hints(workload, rule, version or 0)
        usable = [r for r in known if r.rule_version == version and not only_a_hint(r, target)]
        record = log.best(workload, rule, version) if version is not None else None
        if record is not None:
            shadowed = any(later.best(workload, rule, version) for _, later in logs[position + 1 :])
            reason = _why(record, usable, target) + (", before later directories" if shadowed else "")
            return Choice(workload, record.readable, rule, record, directory, reason)
        hints += known
    return Choice(workload, hints[0].readable, rule, None, None, f"only hints: {_why_not(hints, target, version)}")


def _why(record: Record, usable: Sequence[Record], target: Fingerprint) -> str:
    # In look-up order: of one decision that a machine measured several times the latest comes first.
    latest = list({measured_again(r): r for r in reversed(usable)}.values())
    rank = unlikeness(record, target)
    alike = [r for r in latest if unlikeness(r, target) == rank]
    machine = (" and caches, as the target has", ", as the target has, but other caches", "")[rank]
    where = f"measured with {record.cores} cores{machine}"
    if len(latest) == 1:
        reason = "the only record" if len(usable) == 1 else f"the latest of {len(usable)} measurements of one decision"
    elif len(alike) < len(latest):
        reason = f"of {len(latest)} records " + (
            "the one" if len(alike) == 1 else f"the largest lower bound of the {len(alike)}"
        )
        return f"{reason} {where}"
    else:
        reason = f"the largest lower bound of {len(latest)} records"
    return reason + (f", {where}" if rank else "")


def _why_not(hints: Sequence[Record], target: Fingerprint, version: int | None) -> str:
    if version is None:
        return "there is no such rule here"
    left = [(only_a_hint(record, target), record) for record in hints]
    isas = sorted({record.isa for why, record in left if why == "smaller_isa"})
    cores = sorted({record.cores for why, record in left if why == "fewer_cores"})
    others = sorted({record.rule_version for why, record in left if not why})
    return " and ".join(
        [
            *([f"measured at {', '.join(isas)}, smaller than {target.isa}"] if isas else []),
            *([f"measured with {', '.join(map(str, cores))} cores, far fewer than {target.cores}"] if cores else []),
            *([f"version {', '.join(map(str, others))} of the rule, which is now {version}"] if others else []),
        ]
    )
