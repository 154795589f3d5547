"""Show where an artifact's time goes, kernel by kernel."""

from __future__ import annotations

import statistics
from collections import defaultdict

from ..config import ProfileConfig, parse_sizes
from ._show import check_writable, print_result

CONFIG = ProfileConfig


def run(config: ProfileConfig) -> int:
    """Run several times; per kernel the median of its time per run."""
    from ..report.host import describe_host
    from ..report.schema import KernelTime, ProfileResult
    from ..runtime import load

    check_writable(config.json, config.markdown)
    times: dict[str, list[float]] = defaultdict(list)
    calls: dict[str, int] = {}
    with load(config.artifact, threads=config.threads) as module:
        inputs = module.example_inputs(sizes=parse_sizes(config.shape), seed=config.seed)
        for _ in range(config.rounds):
            for kernel, count, microseconds in module.profile(**inputs):
                times[kernel].append(microseconds)
                calls[kernel] = count
        threads, manifest = module.threads, module.manifest
    functions = manifest.reports.get("schedule", {}).get("functions", ())
    rules = {entry["function"]: entry["rule"] for entry in functions}
    kernels = tuple(KernelTime(k, rules.get(k, ""), calls[k], statistics.median(v)) for k, v in times.items())
    result = ProfileResult(
        model=manifest.name,
        inputs={name: array.shape for name, array in inputs.items()},
        threads=threads,
        rounds=config.rounds,
        total_us=sum(kernel.total_us for kernel in kernels),
        host=describe_host(),
        kernels=kernels,
    )
    print_result(result, json_file=config.json, markdown_file=config.markdown)
    return 0
