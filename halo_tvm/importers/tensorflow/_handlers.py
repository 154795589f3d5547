"""What is written otherwise than tf2onnx does: operators that it leaves in the graph, or writes as something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _colours, _diagonals, _elementary, _fake_quantised, _patches, _resizing, _segments, _spectra
from ._replaced import compatible
from ._tables import table_handlers


def handlers(tables: Mapping[bytes, tuple[Any, Any]]) -> dict[str, tuple[Any, list[Any]]]:
    """As tf2onnx's `custom_op_handlers` takes them; `tables` as `table_handlers`."""
    modules = (_elementary, _segments, _diagonals, _resizing, _fake_quantised, _spectra, _colours, _patches)
    found = [*(module.HANDLERS for module in modules), table_handlers(tables)]
    return {name: (compatible(handler), []) for handlers in found for name, handler in handlers.items()}
