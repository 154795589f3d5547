"""Compare an artifact's outputs with its reference; exit code 3 when they differ by more than the tolerance."""

from __future__ import annotations

import json

from ..config import ValidateConfig
from ..errors import ValidationFailed
from ._show import STANDARD_OUTPUT, check_writable, print_json, table, write_text

CONFIG = ValidateConfig


def run(config: ValidateConfig) -> int:
    """Compare, and print one row per output and case."""
    from ..runtime.validation import validate_artifact

    check_writable(config.json)
    try:
        report = validate_artifact(config.artifact, reference=config.reference, threads=config.threads)
    except ValidationFailed as failure:
        report = getattr(failure, "report", None)
        if report:
            _show(report, config)
        raise
    _show(report, config)
    return 0


def _show(report: dict[str, object], config: ValidateConfig) -> None:
    if config.json == STANDARD_OUTPUT:
        print_json(report)
        return
    if config.json:
        write_text(config.json, json.dumps(report, indent=2) + "\n")
    print(table(("case", "output", "passed", "max abs error", "bound", "relative L2", "top-1", "bound from"), [
        (row["case"], row["output"], "yes" if row["passed"] else "NO", _number(row["max_abs_error"]), _number(row["bound"]),
         _number(row["relative_l2"]), "" if row["top1"] is None else f"{row['top1']:.4f}", row["bound_from"])
        for row in report["outputs"]
    ]))  # fmt: skip
    print(f"\n{'passed' if report['passed'] else 'FAILED'}: {len(report['outputs'])} outputs in {report['cases']} cases")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
