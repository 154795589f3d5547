"""From a model to tuning records: tasks, search, measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing TVM takes seconds; the command line reads the tables here without it
    from ..config import TuneConfig
    from ..report.tuned import TuneResult


def tune_model(config: TuneConfig) -> TuneResult:
    """Measure a model's functions within a budget and commit what is faster; see `model.tune_model`."""
    from .model import tune_model

    return tune_model(config)
