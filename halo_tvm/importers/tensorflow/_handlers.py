"""What is written otherwise than tf2onnx does: operators that it leaves in the graph, or writes as something else."""

from __future__ import annotations

from typing import Any

from . import _diagonals, _elementary, _fake_quantised, _resizing, _segments, _spectra
from ._replaced import compatible


def handlers() -> dict[str, tuple[Any, list[Any]]]:
    """As tf2onnx's `custom_op_handlers` takes them."""
    modules = (_elementary, _segments, _diagonals, _resizing, _fake_quantised, _spectra)
    tables = [module.HANDLERS for module in modules]
    return {name: (compatible(handler), []) for table in tables for name, handler in table.items()}
