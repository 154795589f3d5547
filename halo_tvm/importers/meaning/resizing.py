"""Resizing: every mode, any axes, sizes known or symbolic.

Interpolation is separable: one axis after the other, each by tables [taps, size] of its own, which neighbours an
element is made of and their shares. They are computed in float64; of known sizes they are constants, else the model
computes them. Whether two axes are one kernel is for fusion to say: where channels lie last they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import ir, relax, te, tirx

from ...relay_ops.operator import INJECTIVE, OPAQUE
from .builder import Builder, expr_dtype, expr_shape
from .constant import Constant
from .sizes import Dim, prim

TRANSFORMS = tuple(
    "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_crop_and_resize".split()
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# A number in float64, or one for each element of a table: known, or an expression of the model.
_Number = float | np.ndarray | ir.Expr
_WIDE = "float64"
_MOVES = {"op_pattern": INJECTIVE}  # which TVM cannot see behind a table
_APART = {"op_pattern": OPAQUE}  # read many times, a table is not computed where it is read
_MOST_PLACES = 1 << 16  # of an axis that a product in float32 is tried for
_REACH = {"nearest": 1, "linear": 1, "cubic": 2}  # neighbours on each side
_MOST_TAPS = 16  # neighbours that one expression has; antialiasing may take many more, which a loop adds


@dataclass(frozen=True)
class Way:
    """How elements are found and weighed; the same for all axes."""

    mode: str  # nearest, linear, cubic
    transform: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0
    single: bool = False  # places of the nearest are products in float32, as torch has them


@dataclass(frozen=True)
class Axis:
    """One resized axis; `scale` is None where it is the quotient of symbolic sizes.

    `roi`: beginning and end of what tf_crop_and_resize takes, as shares of the axis.
    `nearest`: of two neighbours which, where that is not the same for all axes.
    """

    axis: int
    scale: float | None
    roi: tuple[float, float] = (0.0, 1.0)
    nearest: str = ""


def resized(builder: Builder, x: relax.Expr, table: Sequence[tuple[Axis, Dim]], way: Way) -> relax.Expr:
    """`x` with every axis of `table` brought to its size."""
    builder.refuse_unless(
        way.mode in ("nearest", "linear", "cubic"), f"expected mode nearest, linear or cubic, found {way.mode}"
    )
    builder.refuse_unless(not (way.antialias and way.mode == "nearest"), "expected no antialias with mode nearest")
    shape, dtype = expr_shape(x), expr_dtype(x)
    crops = way.transform == "tf_crop_and_resize"
    todo = []
    for axis, size in table:
        same = builder.sizes.is_equal(size, shape[axis.axis]) and (axis.scale is None or math.isclose(axis.scale, 1.0))
        if same and not (crops and axis.roi != (0.0, 1.0)):
            continue
        todo.append((axis, size))
    if not todo:
        return x
    if way.mode == "nearest" and not crops:
        return _nearest(builder, x, todo, way)
    wide = "float64" if dtype == "float64" else "float32"
    outside = way.extrapolation if crops else None
    # What becomes smaller goes first; else the innermost axis does, which gathers, while there is least of it.
    order = sorted(todo, key=lambda item: (not _shrinks(*item, shape), -item[0].axis))
    for axis, size in order:
        table = _Table.of(builder, axis, shape[axis.axis], size, way, wide)
        x = _interpolated(builder, x, table, wide, dtype if axis is order[-1][0] else wide, outside)
    return x


def _nearest(builder: Builder, x: relax.Expr, todo: Sequence[tuple[Axis, Dim]], way: Way) -> relax.Expr:
    """One move: every element from its nearest source."""
    limits = expr_shape(x)
    factors = [_whole_factor(axis, way) for axis, _ in todo]

    def place(o: _Number, axis: Axis, limit: _Number, size: _Number) -> _Number:
        return _clip(_rounded(_source(o, axis, limit, size, way)[0], axis.nearest or way.nearest), limit)

    found = [
        _computed(builder, lambda o, *sizes, axis=axis: place(o, axis, *sizes), (limits[axis.axis], size), "int32")
        for (axis, size), factor in zip(todo, factors)
        if factor is None
    ]

    def compute(x: te.Tensor, *rest: te.Tensor | Dim) -> te.Tensor:
        places, sizes = rest[: len(found)], rest[len(found) :]
        shape = list(x.shape)
        for (axis, _), size in zip(todo, sizes):
            shape[axis.axis] = prim(size)

        def element(*index: ir.Expr) -> ir.Expr:
            at, left = list(index), iter(places)
            for (axis, _), factor in zip(todo, factors):
                o, last = index[axis.axis], x.shape[axis.axis] - 1
                if factor is None:
                    at[axis.axis] = next(left)[o].astype("int64")
                else:
                    at[axis.axis] = tirx.min(tirx.floordiv(o, factor), last)
            return x[tuple(at)]

        return te.compute(shape, element, name="nearest")

    return builder.te(compute, x, *found, *[size for _, size in todo], name="resize", primfunc_attrs=_MOVES)


def _whole_factor(axis: Axis, way: Way) -> int | None:
    """n where the source of o is o // n, whatever the sizes."""
    if axis.scale is None or axis.scale < 1 or axis.scale != int(axis.scale):
        return None
    by_floor = way.transform == "asymmetric" and way.nearest == "floor"
    by_round = way.transform == "half_pixel" and way.nearest.startswith("round")
    factor = int(axis.scale)
    return factor if (by_floor or by_round) and not (way.single and _is_moved(factor, by_round)) else None


def _is_moved(factor: int, centred: bool) -> bool:
    """Whether a product in float32 is another element than o // factor for some o, as for a factor of 41."""
    o = np.arange(_MOST_PLACES)
    place = (o + (0.5 if centred else 0.0)).astype(np.float32) * np.float32(1.0 / factor)
    return bool((np.floor(place) != o // factor).any())


@dataclass(frozen=True)
class _Table:
    """What the elements of one axis are made of.

    places: [taps, size], the neighbours; where antialiasing meets open sizes, the sizes of a run say how many
    shares: [taps, size], that of each
    outside: [size], whether the place of an element is outside of the image, where that matters
    """

    axis: int
    places: relax.Expr
    shares: relax.Expr
    outside: relax.Expr | None

    @classmethod
    def of(cls, builder: Builder, axis: Axis, limit: Dim, size: Dim, way: Way, wide: str) -> _Table:
        sizes, taps = (limit, size), partial(_taps, axis, way)

        def parts(o: _Number, tap: _Number, count: _Number, length: _Number, size: _Number) -> tuple[_Number, _Number]:
            """(where neighbour `tap` of `count` of element o is, its share before all shares are made one)."""
            source, _ = _source(o, axis, length, size, way)
            low = _ceil(source) - 1.0  # the left neighbour: what is left of the place is in 0 < rest <= 1
            offset = tap - (count / 2.0 - 1.0)
            at, share = low + offset, _weight(source - low, offset, _scale(axis, length, size), way)
            return at, _where(_both(at >= 0.0, at < length), share, 0.0) if way.exclude_outside else share

        def place(o: _Number, tap: _Number, count: _Number, length: _Number, size: _Number) -> _Number:
            return _clip(parts(o, tap, count, length, size)[0], length)

        def share(*numbers: _Number) -> _Number:
            return parts(*numbers)[1]

        outside = None
        if way.transform == "tf_crop_and_resize":
            outside = _computed(builder, lambda o, *s: _where(_source(o, axis, *s, way)[1], 1.0, 0.0), sizes, "int8")
        return cls(
            axis.axis,
            _computed(builder, place, sizes, "int32", taps),
            _computed(builder, share, sizes, wide, taps, of_one=way.exclude_outside or way.antialias),
            outside,
        )


def _computed(
    builder: Builder,
    function: Callable,
    sizes: tuple[Dim, Dim],
    dtype: str,
    taps: Callable[[Dim, Dim], int | ir.Expr] | None = None,
    *,
    of_one: bool = False,
) -> relax.Expr:
    """[size] of function(element, length, size), or [taps, size] of function(element, tap, taps, length, size).

    All numbers are in float64, the result in `dtype`.
    sizes: of the axis before and after; where both are known the table is a constant.
    taps: their number, of these sizes
    of_one: the taps of every element are brought to a sum of one
    """
    length, size = sizes
    if isinstance(length, int) and isinstance(size, int):
        count = [taps(length, size)] if taps else []
        grid = np.indices((*count, size)).astype(_WIDE)[::-1]
        with np.errstate(all="ignore"):  # of an axis without elements
            values = function(*grid, *map(float, (*count, length, size))) + np.zeros(grid.shape[1:])
            values = values / _nonzero(values.sum(0)) if of_one else values
            return builder.weight(Constant.of(values.astype(dtype)))

    def compute(length: Dim, size: Dim) -> te.Tensor:
        count = [taps(length, size)] if taps else []
        shape = [*count, prim(size)]

        def element(*index: ir.Expr) -> ir.Expr:
            return function(*map(_in_float64, (*index[::-1], *count, prim(length), prim(size))))

        if not of_one:
            return te.compute(shape, lambda *index: element(*index).astype(dtype), name="table")
        raw, k = te.compute(shape, element, name="raw"), te.reduce_axis((0, shape[0]), "k")
        sums = te.compute([prim(size)], lambda o: te.sum(raw[k, o], axis=k), name="sums")
        return te.compute(shape, lambda t, o: (raw[t, o] / _nonzero(sums[o])).astype(dtype), name="table")

    return builder.te(compute, length, size, name="resize_table", primfunc_attrs=_APART)


def _in_float64(number: int | ir.Expr) -> _Number:
    return float(number) if isinstance(number, int) else number.astype(_WIDE)


def _nonzero(whole: _Number) -> _Number:
    return _where(whole == 0.0, 1.0, whole)


def _interpolated(
    builder: Builder, x: relax.Expr, table: _Table, wide: str, dtype: str, extrapolation: float | None
) -> relax.Expr:
    """`x` along the axis of `table` made of its neighbours, computed in `wide`, as `dtype`."""
    count = expr_shape(table.places)[0]
    at_once = isinstance(count, int) and count <= _MOST_TAPS

    def compute(x: te.Tensor, places: te.Tensor, shares: te.Tensor, *outside: te.Tensor) -> te.Tensor:
        shape, axis = list(x.shape), table.axis
        shape[axis] = places.shape[1]

        def share_of(index: Sequence[ir.Expr], tap: ir.Expr | int) -> ir.Expr:
            place = places[tap, index[axis]].astype("int64")
            return x[(*index[:axis], place, *index[axis + 1 :])].astype(wide) * shares[tap, index[axis]]

        def finished(index: Sequence[ir.Expr], value: ir.Expr) -> ir.Expr:
            if outside:
                value = tirx.Select(outside[0][index[axis]] != 0, tirx.const(extrapolation, wide), value)
            return value.astype(dtype)

        if at_once:
            taps = range(1, int(count))
            return te.compute(
                shape,
                lambda *i: finished(i, sum((share_of(i, tap) for tap in taps), start=share_of(i, 0))),
                name="interpolated",
            )
        k = te.reduce_axis((0, places.shape[0]), "k")
        sums = te.compute(shape, lambda *i: te.sum(share_of(i, k), axis=k), name="interpolated")
        plain = dtype == wide and not outside
        return sums if plain else te.compute(shape, lambda *i: finished(i, sums[i]), name="resized")

    given = [e for e in (table.places, table.shares, table.outside) if e is not None]
    return builder.te(compute, x, *given, name="resize", primfunc_attrs=_MOVES if at_once else {})


def _shrinks(axis: Axis, size: Dim, shape: Sequence[Dim]) -> bool:
    known = axis.scale is not None and axis.scale < 1
    return known or isinstance(size, int) and isinstance(shape[axis.axis], int) and size < shape[axis.axis]


def _source(o: _Number, axis: Axis, length: _Number, size: _Number, way: Way) -> tuple[_Number, _Number | bool]:
    """(the place in the input that output `o` comes from, whether it is outside), in float64."""
    scale = _scale(axis, length, size)
    width = scale * length if axis.scale is not None else size
    match way.transform:
        case "asymmetric" if way.single:
            return _single(o * _single(1.0 / scale)), False
        case "half_pixel" if way.single:
            return _single((o + 0.5) * _single(1.0 / scale)) - 0.5, False
        case "asymmetric":
            return o / scale, False
        case "half_pixel":
            return (o + 0.5) / scale - 0.5, False
        case "pytorch_half_pixel":
            return _where(width == 1.0, -0.5, (o + 0.5) / scale - 0.5), False
        case "half_pixel_symmetric":
            shift = length / 2.0 * (1.0 - size / width)
            return shift + (o + 0.5) / scale - 0.5, False
        case "align_corners":
            return _where(width == 1.0, 0.0, o * (length - 1.0) / _maximum(width - 1.0, 1e-30)), False
    start, end = axis.roi
    span = (end - start) * (length - 1.0)
    place = _where(width == 1.0, span / 2.0, o * span / _maximum(width - 1.0, 1e-30))
    place = place + start * (length - 1.0)
    return place, _either(place < 0.0, place > length - 1.0)


def _scale(axis: Axis, length: _Number, size: _Number) -> _Number:
    return axis.scale if axis.scale is not None else size / length


def _taps(axis: Axis, way: Way, length: Dim, size: Dim) -> int | ir.Expr:
    """How many neighbours an element is made of, half of them on each side: antialiasing reaches further to shrink."""
    reach = _REACH[way.mode]
    if not way.antialias:
        return 2 * reach
    if axis.scale is not None:
        return 2 * math.ceil(reach / min(axis.scale, 1.0))
    return 2 * tirx.max(tirx.ceildiv(prim(length) * reach, tirx.max(prim(size), 1)), reach)


def _weight(rest: _Number, offset: _Number, scale: _Number, way: Way) -> _Number:
    """The share of the element `offset` behind the left neighbour of a place that is `rest` behind it."""
    distance = _maximum(offset - rest, rest - offset)
    if way.antialias:
        distance = distance * _minimum(scale, 1.0)
    if way.mode == "nearest":
        take_right = {
            "round_prefer_floor": rest > 0.5,
            "round_prefer_ceil": rest >= 0.5,
            "floor": rest >= 1.0,
            "ceil": rest > 0.0,
        }[way.nearest]
        return _where(take_right, offset, 1.0 - offset)
    if way.mode == "linear":
        return _maximum(1.0 - distance, 0.0)
    a = way.cubic
    near = (((a + 2) * distance - (a + 3)) * distance) * distance + 1.0
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return _where(distance <= 1.0, near, _where(distance < 2.0, far, 0.0))


def _rounded(place: _Number, mode: str) -> _Number:
    match mode:
        case "round_prefer_floor":
            return _ceil(place - 0.5)
        case "round_prefer_ceil":
            return _floor(place + 0.5)
        case "floor":
            return _floor(place)
    return _ceil(place)


def _clip(index: _Number, limit: _Number) -> _Number:
    return _maximum(_minimum(index, limit - 1.0), 0.0)


def _where(condition: object, then: _Number, other: _Number) -> _Number:
    if isinstance(condition, bool | np.bool_ | np.ndarray):
        return np.where(condition, then, other)
    return tirx.Select(condition, _expression(then), _expression(other))


def _maximum(a: _Number, b: _Number) -> _Number:
    return np.maximum(a, b) if _is_known(a, b) else tirx.max(_expression(a), _expression(b))


def _minimum(a: _Number, b: _Number) -> _Number:
    return np.minimum(a, b) if _is_known(a, b) else tirx.min(_expression(a), _expression(b))


def _ceil(a: _Number) -> _Number:
    return np.ceil(a) if _is_known(a) else te.ceil(a)


def _floor(a: _Number) -> _Number:
    return np.floor(a) if _is_known(a) else te.floor(a)


def _single(a: _Number) -> _Number:
    """`a` rounded to float32."""
    return np.float64(np.float32(a)) if _is_known(a) else a.astype("float32").astype(_WIDE)


def _both(a: object, b: object) -> object:
    return np.logical_and(a, b) if isinstance(a, np.ndarray) else tirx.all(a, b)


def _either(a: object, b: object) -> object:
    return np.logical_or(a, b) if isinstance(a, np.ndarray) else tirx.any(a, b)


def _is_known(*values: _Number) -> bool:
    return not any(isinstance(v, ir.Expr) for v in values)


def _expression(a: _Number) -> ir.Expr:
    return tirx.const(float(a), _WIDE) if isinstance(a, float) else a
