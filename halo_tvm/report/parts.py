"""Records of one test, stage or candidate, of which results hold many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """The machine class and the versions a number belongs to."""

    cpu: str  # architecture, vendor, family and model
    isa: tuple[str, ...]  # vector extensions that decide speed
    cores: int  # that the process may use
    memory_gib: float
    python: str
    packages: Mapping[str, str]


@dataclass(frozen=True)
class TokenSpeed:
    """One test of a language model: `prompt` tokens read at once, or `generated` said one by one, behind `depth`."""

    prompt: int
    generated: int
    depth: int  # tokens in the caches when it begins
    threads: int
    tokens_per_s: float  # mean over the repetitions
    deviation: float  # standard, of tokens_per_s
    seconds: tuple[float, ...]  # of every repetition
    read_seconds: tuple[float, ...] = ()  # of reading as many bytes as a step does, in the same rounds

    @property
    def test(self) -> str:
        """Its name: pp512, tg128, tg128 @ d2048."""
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.generated}"
        return f"{name} @ d{self.depth}" if self.depth else name


@dataclass(frozen=True)
class TokenPeer:
    """An engine beside ours: what it ran, and its seconds of each of our tests, in their order, in the same rounds."""

    engine: str
    numbers: str  # of its weights: F32, Q8_0, ...
    size_mib: float | None = None  # of its model file
    version: str = ""
    seconds: tuple[tuple[float, ...], ...] = ()
    failure: str | None = None
    note: str = ""


@dataclass(frozen=True)
class TaskStage:
    """What one stage of the search did for one task; speed-ups are over the default, before the confirmation."""

    stage: str
    tried: int
    failed: int
    seconds: float
    before: float  # best speed-up when the stage began
    after: float


@dataclass(frozen=True)
class BuiltCandidate:
    """A decision that was built and not measured; the maxima are over the kernels of a GPU's code, 0 on a CPU."""

    rank: int  # as the rule's own model orders them
    decision: Mapping[str, object]
    predicted_us: float | None  # by that model: no measurement
    failure: str = ""
    registers: int = 0  # of a thread
    spill_bytes: int = 0  # of a thread
    shared_bytes: int = 0  # of a block
    build_s: float = 0.0
    source_only: str = ""  # why its library holds the device's source, which no compiler has seen, and no code


@dataclass(frozen=True)
class Skipped:
    """A function with nothing to tune, and why."""

    readable: str
    count: int
    reason: str


@dataclass(frozen=True)
class StageTotal:
    """What one stage contributed over all tasks."""

    stage: str
    measured: int
    failed: int
    winners: int  # tasks whose committed decision it found
    saved_us: float
    seconds: float


@dataclass(frozen=True)
class TunedModel:
    """One of several models: its part of the run, or why it has none."""

    model: str
    tasks: int = 0
    shared: int = 0  # of those, with another model
    improved: int = 0
    before_us: float = 0.0  # in its measured tasks, over their call sites in this model
    after_us: float = 0.0
    speedup: float | None = None  # predicted, for the time it spends in those tasks; None: none was measured
    failure: str = ""
    exit_code: int = 0
