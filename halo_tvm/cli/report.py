"""Write one file on an artifact, or on two side by side: time, memory, accuracy, kernels, fusion and schedules.

Inputs are artifact directories (before, after), results written with --json, or both.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..config import ReportConfig
from ._show import check_writable, write_text

CONFIG = ReportConfig


def run(config: ReportConfig) -> int:
    """Measure what is to be measured, and write the file."""
    from ..report import html, markdown, schema
    from ..text import one_line
    from ._reporting import report_of

    check_writable(config.output)
    result = report_of(config)
    render = {
        ".html": html.render,
        ".md": markdown.render,
        ".json": lambda r: json.dumps(schema.to_json(r), indent=2) + "\n",
    }[Path(config.output).suffix]
    write_text(config.output, render(result))
    print(f"wrote {config.output}: {one_line(result.title)}")
    return 0
