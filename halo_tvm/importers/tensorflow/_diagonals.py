"""Triangles and diagonals of matrices, whose sizes may be open. tf2onnx writes branches over the sizes.

MatrixBandPart       Trilu, once for each side that is not kept whole
MatrixDiag, Diag     a column or a row where the places say so
MatrixDiagPart, DiagPart   one element of each row
MatrixSetDiag        Where

Of these one diagonal at a known place; tf2onnx writes several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._replaced import Handler, Replaced

_END = 1 << 30


def _band(place: Replaced) -> str:
    """x where -lower <= column - row <= upper, 0 elsewhere; a negative number keeps a side whole."""
    out, lower, upper = place.inputs
    for limit, keeps_upper in ((lower, 1), (upper, 0)):
        known = place.known(limit)
        if known is None:
            raise ValueError(f"expected known limits of MatrixBandPart, found {limit} computed")
        if known >= 0:
            diagonal = place.const(-int(known) if keeps_upper else int(known))
            out = place.emit("Trilu", out, diagonal, upper=keeps_upper)
    return out


def _diagonal(place: Replaced, number: int) -> int | None:
    """Which one, where input `number`, left out by the oldest version, says so; None of several or an open one."""
    if len(place.inputs) <= number:
        return 0
    known = place.known(place.inputs[number])
    if known is None or len(set(known.reshape(-1).tolist())) != 1:
        return None
    return int(known.reshape(-1)[0])


def _size(place: Replaced, tensor: str, axis: int) -> str:
    """[1], of a dimension counted from the end."""
    shape, rank = place.shape(tensor), place.rank(tensor)
    if shape is not None and shape[axis] >= 0:
        return place.const([shape[axis]])
    return place.sizes(tensor, rank + axis, rank + axis + 1)


def _range(place: Replaced, count: str) -> str:
    """0 .. count - 1; `count` is [1]."""
    return place.emit("Range", place.const(0), place.emit("Squeeze", count, place.const([0])), place.const(1))


def _is_diagonal(place: Replaced, rows: str, columns: str, k: int) -> str:
    """[rows, columns]: whether column - row is k."""
    down = place.emit("Unsqueeze", place.emit("Add", _range(place, rows), place.const(k)), place.const([1]))
    return place.emit("Equal", _range(place, columns), down)


def _matrix(place: Replaced) -> str | None:
    """The diagonal as a column, or as a row, of a matrix as large as it needs; square if no size is asked for."""
    diagonal = place.inputs[0]
    k = _diagonal(place, 1)
    if k is None or len(place.inputs) > 1 and _given(place, 1).size == 2:
        return None  # the limits of a band, for which the diagonals have a dimension of their own
    count = _size(place, diagonal, -1)
    more = place.emit("Add", count, place.const([abs(k)]))
    rows, columns = (count, more) if k >= 0 else (more, count)
    fill = place.inputs[4] if len(place.inputs) > 4 else place.like(0, diagonal)
    spread = place.emit("Unsqueeze", diagonal, place.const([-1 if k >= 0 else -2]))
    out = place.emit("Where", _is_diagonal(place, rows, columns, k), spread, fill)
    wanted = [_asked(place, 2), _asked(place, 3)]
    if not any(wanted):
        wanted = [more, more]
    if k == 0 and wanted == [more, more]:
        return out
    missing = [place.emit("Sub", w, f) if w else place.const([0]) for w, f in zip(wanted, (rows, columns), strict=True)]
    front = place.const([0] * (2 * place.rank(diagonal)))  # and behind of all but the last two
    pads = place.emit("Concat", front, *missing, axis=0)
    return place.emit("Pad", out, pads, place.emit("Reshape", fill, place.const([], np.int64)))


def _given(place: Replaced, number: int) -> NDArray[Any]:
    known = place.known(place.inputs[number])
    if known is None:
        raise ValueError(f"expected input {number} of {place.node.type} to be known, found it computed")
    return known


def _asked(place: Replaced, number: int) -> str:
    """How many rows or columns input `number` asks for, [1]; "" where it is -1 or left out."""
    if len(place.inputs) <= number:
        return ""
    known = place.known(place.inputs[number])
    if known is not None and (known < 0).all():
        return ""
    return place.emit("Reshape", place.cast(place.inputs[number], np.int64), place.const([1]))


def _of_vector(place: Replaced) -> str | None:
    return _matrix(place) if place.rank(place.inputs[0]) == 1 else None


def _of_matrix(place: Replaced) -> str | None:
    return _part(place) if place.rank(place.inputs[0]) == 2 else None


def _part(place: Replaced) -> str | None:
    x = place.inputs[0]
    k = _diagonal(place, 1)
    if k is None:
        return None
    top, left = max(-k, 0), max(k, 0)
    begin, end, axes = place.const([top, left]), place.const([_END, _END]), place.const([-2, -1])
    corner = place.emit("Slice", x, begin, end, axes)
    count = place.emit("Min", _size(place, corner, -2), _size(place, corner, -1))
    rank = place.rank(x)
    corner = place.emit("Slice", corner, place.const([0]), count, place.const([-2]))
    column = place.emit("Unsqueeze", _range(place, count), place.const([1]))
    outer = [place.sizes(x, 0, rank - 2)] if rank > 2 else []
    shape = place.emit("Concat", *outer, count, place.const([1]), axis=0)
    found = place.emit("GatherElements", corner, place.emit("Expand", column, shape), axis=rank - 1)
    return place.emit("Squeeze", found, place.const([-1]))


def _with_diagonal(place: Replaced) -> str | None:
    """The diagonal as a row that is as long as those of the matrix."""
    x, diagonal = place.inputs[:2]
    k = _diagonal(place, 2)
    if k is None:
        return None
    left, rank = max(k, 0), place.rank(diagonal)
    rows, columns = _size(place, x, -2), _size(place, x, -1)
    right = place.emit("Sub", columns, place.emit("Add", _size(place, diagonal, -1), place.const([left])))
    front = place.const([*[0] * (rank - 1), left, *[0] * (rank - 1)])
    row = place.emit("Pad", diagonal, place.emit("Concat", front, right, axis=0))
    spread = place.emit("Unsqueeze", row, place.const([-2]))
    return place.emit("Where", _is_diagonal(place, rows, columns, k), spread, x)


HANDLERS: dict[str, Handler] = {
    "MatrixBandPart": _band,
    "Diag": _of_vector,
    "DiagPart": _of_matrix,
    **{f"MatrixDiag{version}": _matrix for version in ("", "V2", "V3")},
    **{f"MatrixDiagPart{version}": _part for version in ("", "V2", "V3")},
    **{f"MatrixSetDiag{version}": _with_diagonal for version in ("", "V2", "V3")},
}
