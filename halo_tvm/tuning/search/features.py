"""What the learned model sees of a decision and its task: numbers by name.

Rows of this run know the task itself; rows of the log know what a record says of it. What is not known is
missing (NaN), which trees can live with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from ...records.record import Record, Size

Row = dict[str, float]

_LARGEST = 1e30  # integers of a log may be too large for a float
_EXTENTS = 6  # of the integers that tell members of a family apart: the largest distinct ones


class Table:
    """Rows as a matrix, whose columns are asked for by name."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        self._made: dict[tuple[str, ...], np.ndarray] = {}

    def matrix(self, names: tuple[str, ...]) -> np.ndarray:
        """float32 [rows, names]. An absent choice of a text is 0, anything else absent is NaN."""
        if names not in self._made:
            # A saved model and its correction have names of their own; older ones are not asked for again.
            self._made = dict(list(self._made.items())[-1:])
            self._made[names] = matrix(self.rows, names)
        return self._made[names]


def matrix(rows: Sequence[Row], names: Sequence[str]) -> np.ndarray:
    """float32 [rows, names]; see `Table.matrix`."""
    absent = [0.0 if "=" in name else math.nan for name in names]
    made = [[row.get(name, none) for name, none in zip(names, absent)] for row in rows]
    return np.array(made, dtype=np.float32).reshape(len(rows), len(names))


def of_decision(fields: Mapping[str, object]) -> Row:
    """Numbers by their logarithm, truth values as they are, one feature per value of a text; tuples by position."""
    row: Row = {}
    for name, value in fields.items():
        _add(row, f"decision.{name}", value)
    return row


def of_record(record: Record) -> Row:
    """The decision of a record, and what it says of its task."""
    facts = of_task(
        record.readable,
        record.extents,
        record.sizes,
        [median(row) if row else 0.0 for row in record.default_us],
        record.target,
    )
    return {**of_decision(record.decision), **facts}


def of_task(
    readable: str,
    extents: Sequence[int],
    sizes: Sequence[Size],
    default_us: Sequence[float],
    target: Mapping[str, object],
    *,
    flops: float = 0.0,
    size_bytes: float = 0.0,
    lanes: int = 0,
) -> Row:
    """Facts about a task that may change which decision is best; zeros are not known.

    `target` holds the facts of a fingerprint; `flops` and `size_bytes` are weighted over the sizes.
    """
    row: Row = {"task.epilogue": float(readable.count(" + "))}
    for at, extent in enumerate(sorted({abs(e) for e in extents}, reverse=True)[:_EXTENTS]):
        row[f"task.extent{at}"] = math.log2(1 + extent)
    weights = [size.weight for size in sizes]
    _mean(row, "task.rows", [max(size.dims, default=0) for size in sizes], weights)
    _mean(row, "task.default_us", default_us, weights)
    _logarithm(row, "task.flops", flops)
    _logarithm(row, "task.bytes", size_bytes)
    _logarithm(row, "target.lanes", lanes)
    for name in ("cores", "l1_bytes", "l2_bytes", "l3_bytes"):
        value = target.get(name)
        _logarithm(row, f"target.{name}", min(value, _LARGEST) if isinstance(value, (int, float)) else 0.0)
    isas = target.get("isas")
    if isinstance(isas, (list, tuple)) and target.get("isa") in isas:
        row["target.isa"] = float(list(isas).index(target["isa"]))
    return row


def _add(row: Row, name: str, value: object) -> None:
    if isinstance(value, bool):
        row[name] = float(value)
    elif isinstance(value, (int, float)):
        size = math.log2(1 + min(abs(value), _LARGEST))
        row[name] = -size if value < 0 else size
    elif isinstance(value, str):
        row[f"{name}={value}"] = 1.0
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            _add(row, f"{name}.{at}", item)


def _mean(row: Row, name: str, values: Sequence[float], weights: Sequence[float]) -> None:
    """The weighted mean of the logarithms of the positive values."""
    known = [(w, math.log2(v)) for w, v in zip(weights, values) if v > 0 and w > 0]
    if known:
        row[name] = sum(w * v for w, v in known) / sum(w for w, _ in known)


def _logarithm(row: Row, name: str, value: float) -> None:
    if 0 < value < math.inf:
        row[name] = math.log2(value)
