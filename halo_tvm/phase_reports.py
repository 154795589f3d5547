"""What each phase of a compilation says it did: records, their plain form in the manifest, and back.

A manifest is untrusted and may be of another release, so `read` takes what is as expected and leaves a field at its
default where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from . import codec
from .codec import REST, Form, Unfit, plain

_SALVAGE = Form(other_fields=True, salvage=True, lowest=0)
T = TypeVar("T")


@dataclass(frozen=True)
class Rejection:
    """A sub-graph that a lift recognised and refused."""

    lift: str = ""
    node: str = ""
    reason: str = ""


@dataclass(frozen=True)
class LiftReport:
    """Phase lift: which lifts applied how often, which refused, and the operators there are now."""

    applied: Mapping[str, int] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FusionCandidate:
    """Functions that may become one: bytes that one run moves apart and fused, at the typical sizes."""

    function: str = ""
    functions: tuple[str, ...] = ()
    bytes_apart: int = 0
    bytes_fused: int = 0
    benefit_bytes: int = 0
    taken: bool = False
    reason: str = ""  # why it was not taken


@dataclass(frozen=True)
class FusionReport:
    """The pass `fuse`."""

    candidates: tuple[FusionCandidate, ...] = ()
    saved_bytes: int | None = None
    quantised: object = None


@dataclass(frozen=True)
class Kept:
    """A weight that stays as it is."""

    weight: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Loss:
    """What a language model lost by a rung of the precision's schemes, in nats per token of a text."""

    schemes: str = ""
    divergence: float | None = None  # None: infinite
    bound: float | None = None

    def __str__(self) -> str:
        return f"{self.schemes} ({self.divergence} nats per token where {self.bound} are allowed)"


@dataclass(frozen=True)
class QuantiseReport:
    """The pass `quantise`."""

    linears: int = 0
    activations: int = 0
    tied_embeddings: tuple[str, ...] = ()
    formats: Mapping[str, int] = field(default_factory=dict)
    methods: Mapping[str, int] = field(default_factory=dict)  # weights by how their integers are found
    kept: tuple[Kept, ...] = ()
    schemes: str = ""  # the rung that was taken, of those that were tried
    tried: tuple[Loss, ...] = ()  # before it, from the cheapest on

    @property
    def choice(self) -> str:
        """Which schemes were taken, and in place of which; empty where none were tried."""
        before = ", ".join(map(str, self.tried))
        return f"{self.schemes}, as cheaper ones lose too much: {before}" if before else self.schemes


@dataclass(frozen=True)
class OptimiseReport:
    """Phase optimise: what the passes that readers ask about did, and `others` by their names."""

    fuse: FusionReport | None = None
    quantise: QuantiseReport | None = None
    others: Mapping[str, Mapping[str, object]] = field(default_factory=dict, metadata=REST)

    @property
    def shares(self) -> dict[str, float]:
        """The part of a tensor that one row reads, of those that no row reads whole: weights of experts."""
        return read(dict[str, float], self.others.get("pack_experts", {}).get("read"))

    @property
    def pack_formats(self) -> dict[str, int]:
        """How many weights are stored in each packed format."""
        counts = dict(self.quantise.formats) if self.quantise else {}
        for step in ("pack_weights", "pack_experts"):
            for name, count in read(dict[str, int], self.others.get(step, {}).get("formats")).items():
                counts[name] = counts.get(name, 0) + count
        return counts


@dataclass(frozen=True)
class FunctionReport:
    """How one function was scheduled, and what it computes at least (`passes.work`)."""

    function: str = ""
    rule: str = ""
    origin: str = ""  # "override", "record ...", "rule"
    decision: str = ""
    declined: tuple[str, ...] = ()  # rules asked before, each with its reason
    work: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelCount:
    """Kernels of one run of main. `per_layer` times `layers`, plus `outside`, is `kernels`."""

    kernels: int = 0
    layers: int = 0
    per_layer: int = 0
    outside: int = 0
    copies: tuple[str, ...] = ()  # names of the functions, one entry per launch

    def __str__(self) -> str:
        layers = f"{self.per_layer} per layer, {self.layers} layers, " if self.layers else ""
        names = f" ({', '.join(dict.fromkeys(self.copies))})" if self.copies else ""
        return f"{layers}{self.outside}{' outside' if layers else ''}, {len(self.copies)} copies{names}"


@dataclass(frozen=True)
class RecordsReport:
    """What looking functions up in the tuning logs came to (`records.log.LookupReport`)."""

    lines: int = 0
    examined: int = 0
    usable: int = 0
    failures: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    missed: tuple[str, ...] = ()
    reasons: int = 0
    unusable: tuple[str, ...] = ()  # records that were found and do not fit their rule


@dataclass(frozen=True)
class LoopsReport:
    """Loops that became one kernel each, by their names, and why others did not."""

    kernels: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left.items())
        count = len(self.kernels) + len(self.left)
        return f"{len(self.kernels)} of {count} became kernels" + (f" ({reasons})" if reasons else "")


@dataclass(frozen=True)
class ScheduleReport:
    """Phase schedule: every function with its rule, and how the rules were chosen."""

    functions: tuple[FunctionReport, ...] = ()
    rules: Mapping[str, int] = field(default_factory=dict)
    stopped: Mapping[str, int] = field(default_factory=dict)  # rules of TVM's that ended with an error
    tuned: int = 0  # functions whose decision is that of a record
    vector_math: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kernels: KernelCount | None = None
    loops: LoopsReport | None = None  # where there are any
    log: RecordsReport | None = None


@dataclass(frozen=True)
class DeviceKernel:
    """One kernel's use of its multiprocessor. What it spills goes through memory: a main kernel has none."""

    name: str = ""
    threads: int = 0  # of a block, at most; 0: the source does not bound them
    registers: int = 0  # of a thread
    spill_store_bytes: int = 0  # of a thread
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0  # of a block, static
    dynamic_shared_bytes: int = 0  # of a block, asked for at launch
    barriers: int = 0


@dataclass(frozen=True)
class DeviceCode:
    """What a library holds for its device, and why."""

    form: str = ""  # "fatbin", or "source": compiled when the library is loaded
    arch: str = ""
    compiler: str = ""  # "nvcc 13.0"; empty for source
    reason: str = ""  # why there is no machine code; empty when there is
    kernels: tuple[DeviceKernel, ...] = ()

    def __str__(self) -> str:
        if self.reason:
            return f"{self.form} for {self.arch}: {self.reason}"
        spilling = sum(1 for kernel in self.kernels if kernel.spill_store_bytes or kernel.spill_load_bytes)
        registers = max((kernel.registers for kernel in self.kernels), default=0)
        return (
            f"{self.form} for {self.arch}, {len(self.kernels)} kernels of at most {registers} registers, "
            f"{spilling or 'none'} with spills"
        )


@dataclass(frozen=True)
class BuildReport:
    """Phase build: sizes of what was made; nothing that another build of the same model would not say."""

    planned_bytes: int | None = None  # of activations and results, memory shared
    unplanned_bytes: int | None = None
    library_bytes: int | None = None
    params: int = 0
    params_bytes: int | None = None
    device: DeviceCode | None = None
    cuda_graph: bool = False
    apart_bytes: int | None = None  # weights that functions beside main store in a form of their own


@dataclass(frozen=True)
class Reports:
    """All phases, under the keys of a manifest's `reports`."""

    import_: Mapping[str, Any] = field(default_factory=dict)  # what an importer has to say
    lift: LiftReport = LiftReport()
    optimise: OptimiseReport = OptimiseReport()
    schedule: ScheduleReport = ScheduleReport()
    build: BuildReport = BuildReport()

    def of_rung(self, schemes: str, tried: Sequence[Loss]) -> Reports:
        """With the rung of schemes that is taken, behind those of `tried`; without one as it is."""
        quantise = self.optimise.quantise
        if not schemes or quantise is None:
            return self
        quantise = replace(quantise, schemes=schemes, tried=tuple(tried))
        return replace(self, optimise=replace(self.optimise, quantise=quantise))


def to_plain(value: object) -> Any:
    """Records as JSON values, without fields that are None."""
    return plain(value, nulls=False)


def read(kind: type[T], value: object) -> T:
    """`value`, of JSON, as a record or other type; what is not as expected counts as not there."""
    try:
        return codec.read(kind, value, form=_SALVAGE)
    except Unfit:
        return kind()
