"""Where the compiler meets the tuning log: a target's fingerprint, and the decision a record holds for a function."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from .errors import Declined
from .passes.schedule import Lookup
from .records.decision import decision_from_plain
from .records.log import TuningLog
from .records.record import Fingerprint
from .records.workload import describe, workload_key
from .targets import Gpu, Target, read_host
from .tir_schedules import Rule

# What a rule may come to on numbers that no tuner wrote; TVM's errors are RuntimeErrors.
_UNUSABLE = (
    Declined,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def fingerprint_of(target: Target, gpu: Gpu | None = None) -> Fingerprint:
    """The facts records of `target` are compared by; cache sizes are the host's where it can run the target.

    For a GPU they are multiprocessors for cores, shared memory for L1, and L2: those of `gpu`, which measures, else of
    the device that the level's manifest assumes.
    """
    host = read_host()
    here = not target.spec.runs_on or host.machine in target.spec.runs_on
    level = target.isa.gpu
    if level is not None:
        cores = gpu.multiprocessors if gpu else level.multiprocessors
        caches = (level.shared_bytes_per_multiprocessor, gpu.l2_bytes if gpu else level.l2_bytes, 0)
    else:
        cores = target.cores
        caches = (
            (host.l1_bytes if here else 0) or target.spec.l1_bytes,
            (host.l2_bytes if here else 0) or target.spec.l2_bytes,
            host.l3_bytes if here else 0,
        )
    l1_bytes, l2_bytes, l3_bytes = caches
    return Fingerprint(
        kind=target.spec.kind,
        machine=target.spec.machine,
        isa=target.isa.name,
        isas=tuple(isa.name for isa in target.spec.isas),
        cores=cores,
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        l3_bytes=l3_bytes,
    )


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
