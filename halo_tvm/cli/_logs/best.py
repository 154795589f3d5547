"""Per workload the record that `compile` would use, and why that one."""

from __future__ import annotations

from ...config import LogsConfig
from ...lookup import fingerprint_of
from ...plugins import load_plugins
from ...records.best import choices
from ...records.home import log_dirs
from ...targets import resolve
from ...tir_schedules import RULES
from .._show import print_json, table
from ._words import decision, no_names, wanted


def run(config: LogsConfig) -> int:
    """Print one row per workload of the logs."""
    no_names(config)
    load_plugins()
    target = resolve(config.target)
    versions = {name: rule.version for name, rule in RULES.items()}
    found = [
        c
        for c in choices(log_dirs(config.log), fingerprint_of(target), versions)
        if wanted(config, c.workload, c.readable, c.rule)
    ]
    if config.json:
        print_json({"target": target.key, "cores": target.cores, "workloads": [c.to_plain() for c in found]})
    elif found:
        print(f"for {target.key} with {target.cores} cores")
        print(
            table(
                ("rule", "speed-up", "decision", "reason", "directory", "workload"),
                [
                    (
                        c.rule,
                        f"at least {c.record.speedup_low:.3f}" if c.record else "-",
                        decision(c.record) if c.record else "-",
                        c.reason,
                        c.directory or "-",
                        c.readable,
                    )
                    for c in found
                ],
            )
        )
    else:
        print(
            f"no records for {target.key} in {', '.join(map(str, log_dirs(config.log)))}: `halo-tvm tune` makes some; "
            "those of another precision may be for another level, which --target names"
        )
    return 0
