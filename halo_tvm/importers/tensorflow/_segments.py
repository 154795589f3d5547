"""Sums and other reductions over rows with one number: scattered into as many rows as there are numbers.

UnsortedSegment*     a negative number drops its row; a number without rows gives what the reduction begins with
Segment*             as many results as the last number says, which is found at run time; 0 where there are no rows
SparseSegment*       the same of rows that are gathered before
DenseBincount, Bincount   how often each number occurs, or the sum of what is given with it

tf2onnx sorts the numbers out by Unique, which has as many results as a run finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._replaced import Handler, Replaced

_REDUCTIONS = {"Sum": "add", "Prod": "mul", "Max": "max", "Min": "min"}


def _beginning(kind: str, dtype: np.dtype[Any]) -> object:
    """What changes nothing: TensorFlow takes the least finite number for a maximum."""
    if kind in ("Sum", "Prod"):
        return int(kind == "Prod")
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return limits.min if kind == "Max" else limits.max


def _scattered(place: Replaced, data: str, rows: str, count: str, kind: str) -> str:
    """`data` [..., *t] reduced into [count, *t] by `rows` [...]; rows outside 0 .. count - 1 are dropped.

    One row more than wanted takes what is dropped.
    """
    count, rank = place.cast(count, np.int64), place.rank(rows)
    rows = place.cast(rows, np.int64)
    is_row = place.emit("Less", rows, place.const(0))
    rows = place.emit("Where", is_row, count, place.emit("Min", rows, count))
    more = place.emit("Unsqueeze", place.emit("Add", count, place.const(1)), place.const([0]))
    inner = place.emit("Slice", place.emit("Shape", data), place.const([rank]), place.const([1 << 30]))
    begin = place.const(_beginning(kind, place.dtype(data)), place.dtype(data))
    filled = place.emit("Expand", begin, place.emit("Concat", more, inner, axis=0))
    places = place.emit("Unsqueeze", rows, place.const([-1]))
    reduced = place.emit("ScatterND", filled, places, data, reduction=_REDUCTIONS[kind])
    return _first(place, reduced, count)


def _first(place: Replaced, tensor: str, count: str, axis: int = 0) -> str:
    end = place.emit("Unsqueeze", count, place.const([0]))
    return place.emit("Slice", tensor, place.const([0]), end, place.const([axis]))


def _unsorted(kind: str) -> Handler:
    def write(place: Replaced) -> str:
        data, rows, count = place.inputs
        return _scattered(place, data, rows, count, kind)

    return write


def _segments(kind: str, gathers: bool) -> Handler:
    """`kind`: a reduction, or Mean or SqrtN, sums over how many rows there are and over the root of it."""

    def write(place: Replaced) -> str:
        data, *others = place.inputs
        if gathers:
            data = place.emit("Gather", data, others.pop(0), axis=0)
        rows = others[0]
        if len(others) == 2:
            count = others[1]
        else:
            last = place.emit("Slice", place.cast(rows, np.int64), place.const([-1]), place.const([1 << 30]))
            count = place.emit("Add", place.emit("Squeeze", last, place.const([0])), place.const(1))
        if kind in ("Sum", "Prod"):
            return _scattered(place, data, rows, count, kind)
        ones = place.emit("Expand", place.like(1, data), place.emit("Shape", rows))
        sizes = _scattered(place, ones, rows, count, "Sum")
        if (rank := place.rank(data)) > 1:
            sizes = place.emit("Unsqueeze", sizes, place.const(list(range(1, rank))))
        if kind in ("Max", "Min"):
            found = _scattered(place, data, rows, count, kind)
            empty = place.emit("Equal", sizes, place.like(0, sizes))
            return place.emit("Where", empty, place.like(0, data), found)
        divisor = place.emit("Max", sizes, place.like(1, sizes))
        if kind == "SqrtN":
            divisor = place.emit("Sqrt", divisor)
        return place.emit("Div", _scattered(place, data, rows, count, "Sum"), divisor)

    return write


def _count_by(binary: Callable[[Replaced], bool]) -> Handler:
    """How often each number below `size` occurs in the last dimension, or whether it does."""

    def write(place: Replaced) -> str:
        numbers, size, weights = place.inputs
        if place.node.type == "Bincount":
            numbers = place.emit("Reshape", numbers, place.const([-1]))
        rank, size = place.rank(numbers), place.cast(size, np.int64)
        dtype = place.dtype(place.node.output[0])
        numbers = place.cast(numbers, np.int64)
        shape = place.emit("Shape", numbers)
        if place.shape(weights) == [0] or binary(place):
            weights = place.emit("Expand", place.const(1, dtype), shape)
        elif place.node.type == "Bincount":
            weights = place.emit("Reshape", weights, place.const([-1]))
        numbers = place.emit("Min", numbers, size)  # those beyond are dropped with the last
        more = place.emit("Unsqueeze", place.emit("Add", size, place.const(1)), place.const([0]))
        outer = place.emit("Slice", shape, place.const([0]), place.const([rank - 1]))
        filled = place.emit("Expand", place.const(0, dtype), place.emit("Concat", outer, more, axis=0))
        reduction = {} if binary(place) else {"reduction": "add"}
        counted = place.emit("ScatterElements", filled, numbers, weights, axis=rank - 1, **reduction)
        return _first(place, counted, size, rank - 1)

    return write


HANDLERS: dict[str, Handler] = {
    **{f"UnsortedSegment{kind}": _unsorted(kind) for kind in _REDUCTIONS},
    **{f"Segment{kind}": _segments(kind, False) for kind in (*_REDUCTIONS, "Mean")},
    **{f"SparseSegment{kind}": _segments(kind, True) for kind in ("Sum", "Mean", "SqrtN")},
    **{f"SparseSegment{kind}WithNumSegments": _segments(kind, True) for kind in ("Sum", "Mean", "SqrtN")},
    "DenseBincount": _count_by(lambda place: bool(place.attr("binary_output"))),
    "Bincount": _count_by(lambda place: False),
}
