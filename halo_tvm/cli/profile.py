"""Show where an artifact's time goes, by kernel, operator or layer, beside what the host could do at most."""

from __future__ import annotations

from ..config import ProfileConfig
from ._show import check_writable, print_result

CONFIG = ProfileConfig


def run(config: ProfileConfig) -> int:
    """Trace several runs, and print where their time went."""
    from ._profiling import profile

    check_writable(config.json, config.markdown)
    print_result(profile(config), json_file=config.json, markdown_file=config.markdown)
    return 0
