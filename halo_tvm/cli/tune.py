"""Measure the functions of models within a time budget and keep what was learned in a tuning log.

With several models every shared function is tuned once, one that fails never stops the others, and the
exit code is that of the worst: 5 before 4, 2 and 1.
"""

from __future__ import annotations

from dataclasses import replace

from ..config import TuneConfig
from ..interrupts import termination_as_interrupt
from ._show import check_writable, print_result

CONFIG = TuneConfig


def run(config: TuneConfig) -> int:
    """Tune, and print what changed."""
    from ..tuning import tune_model
    from ..tuning.result import next_steps

    check_writable(config.json)
    with termination_as_interrupt():
        result = tune_model(config)
        following = replace(result, notes=(*result.notes, *next_steps(result, config)))
        print_result(following, json_file=config.json)
        if result.interrupted:  # what was done till then is told; the command ends as every interrupted one
            raise KeyboardInterrupt
    return result.exit_code
