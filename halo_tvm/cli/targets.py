"""List every target and its levels, and whether this machine can build and run them."""

from __future__ import annotations

from dataclasses import asdict

from ..config import TargetsConfig
from ..plugins import load_plugins
from ..targets import TARGETS, Target, can_build_here, can_run_here, known_names, read_host
from ._show import print_json, table

CONFIG = TargetsConfig


def run(config: TargetsConfig) -> int:
    """Print one row per level."""
    load_plugins()
    host = read_host()
    rows, notes = [], {}
    for spec in TARGETS.values():
        for isa in spec.isas:
            target = Target(spec, isa, host.cores)
            build, runs = can_build_here(target), can_run_here(target, host)
            rows.append((target, build, runs))
            for answer in (build, runs):
                if answer.reason:
                    notes.setdefault(answer.reason, target.name)
    if config.json:
        print_json(
            [
                {
                    "target": t.name,
                    "key": t.key,
                    "description": t.spec.description,
                    "rules": list(t.spec.rules),
                    "can_build": b.ok,
                    "build_note": b.reason,
                    "can_run": r.ok,
                    "run_note": r.reason,
                    **({"gpu": asdict(t.isa.gpu)} if t.isa.gpu else {}),
                }
                for t, b, r in rows
            ]
        )
        return 0
    mark = {True: "yes", False: "no"}
    print(
        table(
            ("target", "builds here", "runs here", "key of tuning logs", "description"),
            [(t.name, mark[b.ok], mark[r.ok], t.key, t.spec.description) for t, b, r in rows],
        )
    )
    print(
        "\n`cpu` is the largest level of this host that is meant for --precision. Every name --target takes: "
        + ", ".join(known_names())
        + "; names of CPUs, like znver4 or graviton3, for what `cpu` is on them; "
        + "and TVM's own JSON and tags, like nvidia/nvidia-a100"
    )
    for reason, name in notes.items():
        print(f"  {name}: {reason}")
    return 0
