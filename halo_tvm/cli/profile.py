"""Show where an artifact's time goes, kernel by kernel."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

from ..config import ProfileConfig, parse_sizes
from ._show import STANDARD_OUTPUT, check_writable, print_json, table, write_text

CONFIG = ProfileConfig


def run(config: ProfileConfig) -> int:
    """Run several times; per kernel the median of its time per run."""
    from ..runtime import load

    check_writable(config.json)
    times: dict[str, list[float]] = defaultdict(list)
    calls: dict[str, int] = {}
    with load(config.artifact, threads=config.threads) as module:
        for _ in range(config.rounds):
            for kernel, count, microseconds in module.profile(sizes=parse_sizes(config.shape) or None, seed=config.seed):
                times[kernel].append(microseconds)
                calls[kernel] = count
        threads, name = module.threads, module.manifest.name
    kernels = sorted(((k, calls[k], statistics.median(v)) for k, v in times.items()), key=lambda row: -row[2])
    total = sum(row[2] for row in kernels)
    found = {
        "model": name, "threads": threads, "rounds": config.rounds, "total_us": total,
        "kernels": [{"kernel": k, "calls": c, "total_us": us} for k, c, us in kernels],
    }  # fmt: skip
    if config.json == STANDARD_OUTPUT:
        print_json(found)
        return 0
    if config.json:
        write_text(config.json, json.dumps(found, indent=2) + "\n")
    print(table(("us per run", "share", "calls", "us per call", "kernel"), [
        (f"{us:.1f}", f"{us / total:.1%}", c, f"{us / c:.1f}", k) for k, c, us in kernels
    ]))  # fmt: skip
    print(f"\n{total:.0f} us per run in {len(kernels)} kernels, {threads} threads, median of {config.rounds} runs")
    return 0
