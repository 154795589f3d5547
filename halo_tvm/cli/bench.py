"""Time an artifact, interleaved with other engines that each run in a process of their own; time a language model."""

from __future__ import annotations

from ..config import BenchConfig
from ._show import check_writable, print_result

CONFIG = BenchConfig


def run(config: BenchConfig) -> int:
    """Measure, and print the comparison."""
    from ..peers.benchmark import benchmark
    from ..peers.tokens import token_speeds

    check_writable(config.json, config.markdown)
    result = token_speeds(config) if config.speaks else benchmark(config)
    print_result(result, json_file=config.json, markdown_file=config.markdown)
    return 0
