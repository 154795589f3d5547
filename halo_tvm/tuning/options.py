"""What a tuning run is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..records.record import Fingerprint
from .measure.lab import LabOptions
from .search.efforts import Effort


@dataclass(frozen=True)
class TuneOptions:
    """Everything a run needs besides tasks and target."""

    model: str  # only a name
    budget_s: float
    effort: Effort
    directory: Path  # records are written here
    read: tuple[Path, ...]  # directories in look-up order
    threads: int
    memory_bytes: int
    l3_bytes: int = 0
    seed: int = 0
    trials: int | None = None
    timeout_s: float = 20.0
    modules: tuple[str, ...] = ()
    vector_math: bool = True
    stages: tuple[str, ...] = ()  # none given: those of the effort
    resume: bool = False
    cold_cache: bool = True
    source: str = ""  # a hash of the model, where it is known

    @property
    def lab(self) -> LabOptions:
        """How the run's lab measures."""
        return LabOptions(
            self.threads,
            self.memory_bytes,
            self.timeout_s,
            self.modules,
            self.vector_math,
            cold_cache=self.cold_cache,
        )

    def deciding(self, machine: Fingerprint) -> dict[str, object]:
        """What must be the same for a run to go on with another; times of two machines are not compared."""
        names = ("seed", "threads", "vector_math", "cold_cache")
        stages = list(self.effort.of_stages(self.stages).stages)
        options = {name: getattr(self, name) for name in names}
        return {"effort": self.effort.name, "stages": stages, "machine": machine.facts()} | options
