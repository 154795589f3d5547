"""Where the compiler meets the tuning log: a target's fingerprint, and the decision a record holds for a function."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from .errors import Declined
from .passes.schedule import Lookup
from .records.decision import decision_from_plain
from .records.home import log_dirs
from .records.log import TuningLog
from .records.record import Fingerprint
from .records.workload import describe, workload_key
from .targets import Target, read_host
from .tir_schedules import Rule

# What a rule may come to on numbers that no tuner wrote; TVM's errors are RuntimeErrors.
_UNUSABLE = (
    Declined, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


def fingerprint_of(target: Target) -> Fingerprint:
    """The facts records of `target` are compared by; cache sizes are the host's where it can run the target.

    Of a GPU they are those of its level's device in the manifest: multiprocessors for cores, shared memory for L1.
    """
    host = read_host()
    here = not target.spec.runs_on or host.machine in target.spec.runs_on
    gpu = target.isa.gpu
    return Fingerprint(
        kind=target.spec.kind,
        machine=target.spec.machine,
        isa=target.isa.name,
        isas=tuple(isa.name for isa in target.spec.isas),
        cores=gpu.multiprocessors if gpu else target.cores,
        l1_bytes=gpu.shared_bytes_per_multiprocessor if gpu else (host.l1_bytes if here else 0) or target.spec.l1_bytes,
        l2_bytes=gpu.l2_bytes if gpu else (host.l2_bytes if here else 0) or target.spec.l2_bytes,
        l3_bytes=host.l3_bytes if here and gpu is None else 0,
    )


def open_log(target: Target, named: str | None, use: bool = True) -> TuningLog:
    """The records for `target` in `--log DIR`, the user's log and the shipped one; none with `use` off."""
    return TuningLog.open(log_dirs(named) if use else (), fingerprint_of(target))


def lookup_in(log: TuningLog, target: Target, unusable: Callable[[str], None]) -> Lookup:
    """A look-up for the schedule phase; a record that no longer fits its rule is told to `unusable`."""

    def find(func: tirx.PrimFunc, rule: Rule) -> tuple[object, str] | None:
        key, readable = workload_key(func), describe(func)
        record = log.best(key, rule.name, rule.version, readable=readable)
        if record is None:
            return None
        try:
            decision = decision_from_plain(rule.Decision, record.decision)
            rule.apply(func, target, decision)
        except _UNUSABLE as reason:
            first = str(reason).strip().split("\n")[0]
            unusable(f"{readable}: {type(reason).__name__}: {first}")
            return None
        return decision, f"{key} ({record.speedup_low:.2f}x)"

    return find
