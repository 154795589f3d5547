"""What became of the graphs that torch.compile handed over, and the warning where torch runs one instead."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from ...phase_reports import Reports


class EagerFallback(UserWarning):
    """A graph, or its gradients, runs in torch instead; said once per graph and reason."""


@dataclass
class GraphReport:
    """One graph that torch.compile handed over."""

    number: int
    operators: int
    compiled: int = 0  # programs: one serves all sizes, unless sizes had to be fixed
    tuned: int = 0  # functions of these that took their schedule from a tuning record
    functions: int = 0
    seconds: float = 0.0  # spent on compiling
    calls: int = 0
    eager_calls: int = 0  # of these, how many torch ran
    refreshed: int = 0  # how often changed weights were read again
    reasons: list[str] = field(default_factory=list)  # why torch ran any, each reason once
    notes: list[str] = field(default_factory=list)  # what else a reader should know, each note once

    def __str__(self) -> str:
        done = "not compiled"
        if self.compiled:
            programs = f"{self.compiled} program{'s' * (self.compiled > 1)}"
            done = f"{programs} in {self.seconds:.1f} s, {self.tuned} of {self.functions} functions from records"
        text = (
            f"graph {self.number}: {self.operators} operators, {done}, {self.calls} calls, {self.eager_calls} in torch"
        )
        return "\n".join([text, *(f"    {said}" for said in (*self.reasons, *self.notes))])

    def add(self, reports: Reports, seconds: float) -> None:
        """Count a program that was compiled, by the reports of its phases."""
        self.compiled += 1
        self.seconds += seconds
        self.functions += len(reports.schedule.functions)
        self.tuned += reports.schedule.tuned

    def fell_back(self, reason: str) -> None:
        """Count a call that torch runs; the first one for this reason warns."""
        self.eager_calls += 1
        self._once(self.reasons, reason, f"graph {self.number} runs in torch, not in halo_tvm: {reason}")

    def warn(self, note: str) -> None:
        """Say `note` once."""
        self._once(self.notes, note, f"graph {self.number}: {note}")

    def note(self, note: str) -> None:
        """Keep `note` for whoever prints the report."""
        if note not in self.notes:
            self.notes.append(note)

    def _once(self, known: list[str], said: str, text: str) -> None:
        if said not in known:
            known.append(said)
            warnings.warn(text, EagerFallback, stacklevel=2)


_REPORTS: list[GraphReport] = []


class Report(tuple[GraphReport, ...]):
    """All graphs so far, in order; printed one after another."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no graph was compiled"


def report() -> Report:
    """What `torch.compile(..., backend="halo_tvm")` compiled in this process, and what it left to torch."""
    return Report(_REPORTS)


def opened(operators: int) -> GraphReport:
    """The report of the next graph, of so many operators."""
    _REPORTS.append(GraphReport(len(_REPORTS), operators))
    return _REPORTS[-1]
