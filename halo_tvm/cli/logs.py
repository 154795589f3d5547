"""Tuning records: where they are, what they say, whether they are whole; merging and exporting them.

list                one row per log and target: records, trials, failures, unreadable lines, size
show [KEY]          the records, of one target key only when one is given (--workload, --rule, --trials)
best                per workload the record that `compile` would use, and why (--target, --workload, --rule)
merge SRC...        add the lines of other logs, directories or files, to the log given by --log; those it
                    has are not added twice, those that do not verify are refused and named
verify [DIR...]     examine every line of every file; exit code 3 when something is damaged
export DIR          write the winners, without timestamps and sorted, where they beat what is in DIR
"""

from __future__ import annotations

import importlib

from ..config import LogsConfig

CONFIG = LogsConfig

_FILES = {"list": "list_logs"}  # others are named like their action


def run(config: LogsConfig) -> int:
    """Run the action."""
    action = importlib.import_module(f"._logs.{_FILES.get(config.action, config.action)}", __package__)
    return action.run(config)
