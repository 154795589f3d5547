"""Results as records, and their one versioned JSON form: bench, tokens, validate, tune, profile and report.

A result is `{"schema": 1, "kind": "bench", "host": {...}, ...}`; `to_json` and `from_json` convert.
No record holds a host name; the only path is that of the log which a tuning run wrote to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..ceilings import Peaks
from ..codec import Unfit, plain, read
from ..errors import UsageError
from .parts import Host, TokenPeer, TokenSpeed
from .tuned import TuneResult

SCHEMA = 1


@dataclass(frozen=True)
class Accuracy:
    """Largest error of one engine over all cases and outputs, against the float64 reference."""

    cases: int
    max_abs: float
    relative_l2: float


@dataclass(frozen=True)
class EngineResult:
    """One engine in a benchmark: its samples in order of rounds, or why there are none."""

    engine: str
    version: str = ""
    samples_ms: tuple[float, ...] = ()  # one per round: the median of the round's runs
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    load_s: float | None = None
    peak_rss_mib: float | None = None
    accuracy: Accuracy | None = None
    failure: str | None = None
    precision: str = "fp32"  # of products with weights, as it was asked for
    note: str = ""  # what the engine itself says about how it ran


@dataclass(frozen=True)
class Interval:
    """A ratio with the interval that holds it with `confidence`, by bootstrap over paired rounds."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Comparison:
    """peer time / our time: above 1, ours is faster."""

    peer: str
    ratio_of_medians: float
    paired: Interval  # the median of the rounds' ratios
    paired_95: Interval
    verdict: Literal["faster", "slower", "equal within noise", "too few rounds to tell"]


@dataclass(frozen=True)
class BenchResult:
    """Engines timed in turns on the same inputs."""

    model: str
    inputs: Mapping[str, tuple[int, ...]]  # name -> shape
    threads: int
    rounds: int
    runs_per_turn: int
    pause_ms: float
    host: Host
    engines: tuple[EngineResult, ...]  # ours first
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    other_cores: float | None = None  # that other processes kept busy during the rounds, on average
    precision: str = "fp32"  # ours
    reference: str = ""  # the engine whose outputs errors are against; "" in results of earlier releases
    kind: str = field(default="bench", init=False)


@dataclass(frozen=True)
class TokensResult:
    """How fast a language model reads and speaks."""

    model: str
    precision: str
    params_mib: float
    host: Host
    tests: tuple[TokenSpeed, ...]
    notes: tuple[str, ...] = ()
    peers: tuple[TokenPeer, ...] = ()
    other_cores: float | None = None  # that other processes kept busy meanwhile, on average
    divergence: float | None = None  # nats a token from the source, where compiling has measured it
    kind: str = field(default="tokens", init=False)


@dataclass(frozen=True)
class SkippedResult:
    """A benchmark that was asked for and could not be made."""

    model: str
    inputs: Mapping[str, tuple[int, ...]]
    threads: int
    precision: str
    host: Host
    reason: str
    kind: str = field(default="skipped", init=False)


@dataclass(frozen=True)
class OutputError:
    """Difference of one output in one case."""

    case: str
    output: str
    max_abs: float
    relative_l2: float
    limit: float  # on max_abs
    passed: bool
    limit_from: str = ""  # what set the limit
    top1: float | None = None  # share of rows whose largest element is in the same place


@dataclass(frozen=True)
class ValidateResult:
    """An artifact against its reference."""

    model: str
    reference: str  # what made the reference
    host: Host
    outputs: tuple[OutputError, ...]
    passed: bool
    notes: tuple[str, ...] = ()
    kind: str = field(default="validate", init=False)


@dataclass(frozen=True)
class Work:
    """What calls do and move at least; None where that is not known."""

    flops: int | None = None
    integer_ops: int | None = None  # on products of 8-bit integers
    bytes: int | None = None
    weight_bytes: int | None = None  # of `bytes`
    limit_us: float | None = None  # the least time under the host's ceilings
    bound: str = ""  # what sets the limit: "compute", "memory" or, in a sum, both
    narrow_flops: int = 0  # of `flops`, that may be done on operands of 16 bits, where that is faster


@dataclass(frozen=True)
class KernelTime:
    """One function of a model: the rule that scheduled it ("" where a library made it), calls and time per run."""

    kernel: str
    rule: str
    calls: int
    total_us: float  # per run, all calls together
    operator: str = ""  # "" for a function that holds none
    work: Work = Work()


@dataclass(frozen=True)
class CallTime:
    """One call of a run, in order."""

    kernel: str
    operator: str
    layer: str  # "" where it is not known
    us: float
    work: Work = Work()


@dataclass(frozen=True)
class Memory:
    """Of one process with one loaded artifact, in MiB."""

    peak_rss_mib: float | None  # after the first run
    planned_mib: float | None  # activations and results at the largest declared sizes
    params_mib: float | None


@dataclass(frozen=True)
class ProfileResult:
    """Where one run's time goes."""

    model: str
    inputs: Mapping[str, tuple[int, ...]]
    threads: int
    rounds: int  # runs that times are the median of
    total_us: float
    host: Host
    kernels: tuple[KernelTime, ...]
    notes: tuple[str, ...] = ()
    run_us: float | None = None  # the whole run without the instrument
    builtin_us: float | None = None  # in the virtual machine's own functions
    instrument_us: float | None = None  # that was taken off every call
    memory: Memory | None = None
    peaks: Peaks | None = None
    calls: tuple[CallTime, ...] = ()
    by: Literal["kernel", "operator", "layer"] = "kernel"  # what the table groups by
    kind: str = field(default="profile", init=False)


@dataclass(frozen=True)
class Side:
    """One artifact of a report: what its manifest says, and what was measured of it. None: nobody says."""

    label: str  # the artifact's own name, no path
    model: str
    target: str = ""
    precision: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    params_mib: float | None = None
    library_mib: float | None = None
    planned_mib: float | None = None  # activations and results at the largest declared sizes
    unplanned_mib: float | None = None  # the same, each tensor on its own
    operators: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, int] = field(default_factory=dict)
    functions: int | None = None
    tuned: int | None = None
    fused: int | None = None
    fusion_candidates: int | None = None
    saved_bytes: int | None = None  # memory traffic per run that fusion avoids, at the model's typical sizes
    passes: Mapping[str, str] = field(default_factory=dict)  # pass -> what it did
    profile: ProfileResult | None = None
    validation: ValidateResult | None = None


@dataclass(frozen=True)
class ReportResult:
    """One artifact, or two side by side; before first."""

    title: str
    host: Host
    sides: tuple[Side, ...]
    bench: BenchResult | None = None
    others: tuple[Mapping[str, object], ...] = ()  # further results in their JSON form
    notes: tuple[str, ...] = ()
    kind: str = field(default="report", init=False)


Result = BenchResult | TokensResult | SkippedResult | ValidateResult | TuneResult | ProfileResult | ReportResult
KINDS: dict[str, type] = {
    "bench": BenchResult,
    "tokens": TokensResult,
    "skipped": SkippedResult,
    "validate": ValidateResult,
    "tune": TuneResult,
    "profile": ProfileResult,
    "report": ReportResult,
}


def to_json(result: Result) -> dict[str, object]:
    """The result as an object of plain JSON values."""
    return {"schema": SCHEMA, **plain(result)}


def from_json(data: Mapping[str, object]) -> Result:
    """The inverse of `to_json`; `UsageError` for another schema version, an unknown kind or a wrong field."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        raise UsageError(
            f"expected a result of schema {SCHEMA}, found {found!r}: measure again, or use the release that wrote it"
        )
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(
            f"expected a result of kind {', '.join(sorted(KINDS))}, found {kind!r}: give a file written with --json"
        )
    values = {key: value for key, value in data.items() if key not in ("schema", "kind")}
    try:
        result = read(KINDS[kind], values, kind)
    except Unfit as unfit:
        raise UsageError(f"{unfit}: the file is damaged or of another release, measure again") from unfit
    for other in result.others if isinstance(result, ReportResult) else ():
        if other.get("kind") == "report":
            raise UsageError(
                "a report within a report was found, none was expected: the file is damaged, measure again"
            )
        from_json(other)
    return result
