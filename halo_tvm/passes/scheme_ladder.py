"""The schemes that a precision may take, from the cheapest to the dearest: what a model loses decides among them.

Cheap is what a step reads: bits a weight. Groups of 64 and 128 are no rungs: at eight bits they save less than a
twentieth, a loss of quality (0.0076 for 0.0050 nats of SmolLM2-135M) that nobody sees in the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..phase_reports import Loss

_NAMING = ("scheme", "mixed", "narrowing")  # options of `quantise` that say which schemes


@dataclass(frozen=True)
class Rung:
    """The schemes of a model's weights where no option names others."""

    linears: str
    head: str
    narrowing: str = ""  # of weights that are deeper than wide, as down projections are; empty: as the others

    def __str__(self) -> str:
        return f"{self.linears}, narrowing {self.narrowing}" if self.narrowing else self.linears


_COLUMNS = Rung("w8a8", "w8a8")
_BYTES = Rung("w8g32a8g32", "w8g32a8g32")
_HALVES = Rung("w4g32m", "w8g32a8g32")
_SAFER_HALVES = Rung("w4g32m", "w8g32a8g32", narrowing="w8g32a8g32")


def usual(precision: str, appends: bool) -> Rung:
    """What is taken unmeasured; `appends`: the model appends to caches, it reads a weight for a few rows at a time."""
    if precision == "int4":
        return _HALVES
    return _BYTES if appends else _COLUMNS


def ladder(precision: str, appends: bool) -> tuple[Rung, ...]:
    """The rungs from the cheapest on; none for a precision that has no schemes.

    For a few rows `w8a8` reads as many bytes as groups do, and its steps are no faster: there it is no rung.
    """
    if precision == "int8":
        return (_BYTES,) if appends else (_COLUMNS, _BYTES)
    return (_HALVES, _SAFER_HALVES) if precision == "int4" else ()


def rungs_to_try(precision: str, appends: bool, options: Mapping[str, object]) -> tuple[Rung | None, ...]:
    """The rungs that a measured model is tried on; None, the usual one, where `options` of `quantise` name schemes."""
    rungs = ladder(precision, appends)
    named = any(options.get(name) for name in _NAMING)
    return (None,) if named or len(rungs) < 2 else rungs


def loss_of(rung: Rung | None, report: Mapping[str, object] | None) -> Loss | None:
    """What was lost on a text that a dearer rung may keep; None where validation failed for another reason."""
    text = (report or {}).get("text")
    if rung is None or report is None or not isinstance(text, Mapping):
        return None
    if not all(row["passed"] for row in report["outputs"]):  # type: ignore[attr-defined]
        return None
    found = {key: float(text[key]) for key in ("divergence", "behind_caches") if text.get(key) is not None}
    most = max(found.values())
    return Loss(str(rung), most if math.isfinite(most) else None, float(text["bound"]))
