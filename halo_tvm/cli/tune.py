"""Measure a model's functions within a time budget and keep what was learned in a tuning log."""

from __future__ import annotations

from ..config import TuneConfig
from ._show import check_writable, print_result

CONFIG = TuneConfig


def run(config: TuneConfig) -> int:
    """Tune, and print what changed."""
    from ..tuning import tune_model
    from ..tuning.reported import as_report

    check_writable(config.json)
    print_result(as_report(tune_model(config)), json_file=config.json)
    return 0
