"""Functions of one or two elements that tf2onnx leaves in the graph, or writes as something else than they mean.

FloorDiv, FloorMod   of integers rounded down; tf2onnx divides towards zero
Select, SelectV2     Where; tf2onnx writes condition * a + (1 - condition) * b, where a NaN of one side reaches all
Erfc                 of large numbers to its own last digits
Expm1, Log1p         without the cancellation of their names: to the last digits of small numbers
Xlogy, Xlog1py, Xdivy, MulNoNan   0 where one factor is 0, whatever the other is
LeftShift, RightShift   of signed integers, too, by less than their width; tf2onnx takes them for unsigned ones
Mean                 of integers by a sum that their type may not hold
TruncateMod, L2Loss, OneHot   by what ONNX has; a negative number is nowhere hot, where ONNX counts from the end
Bucketize, LowerBound, UpperBound, InTopKV2   how many elements are less
"""

from __future__ import annotations

import numpy as np

from ._replaced import Handler, Replaced


def _floor_divide(place: Replaced) -> str:
    x, y = place.inputs
    if place.dtype(x).kind == "f":
        return place.emit("Floor", place.emit("Div", x, y))
    if _is_of_sizes(place, x) and _is_of_sizes(
        place, y
    ):  # far from the lowest number, where the difference would overflow
        return place.emit("Div", place.emit("Sub", x, place.emit("Mod", x, y)), y)
    return place.beyond("FloorDiv", x, y)


def _is_of_sizes(place: Replaced, tensor: str) -> bool:
    """Whether `tensor` is computed from sizes and constants only, as the importer knows how to follow."""
    seen: set[str] = set()
    todo = [tensor]
    while todo:
        made = place.context.get_node_by_output(todo.pop())
        if made is None or made.type == "Placeholder" or len(seen) > 100:
            return False
        if made.name not in seen and made.type not in ("Shape", "Size") and not made.is_const():
            seen.add(made.name)
            todo += [i for i in made.input if i]
            if not made.input:
                return False
    return True


def _floor_modulo(place: Replaced) -> str:
    """With the sign of the divisor, which floats of ONNX have only by hand."""
    x, y = place.inputs
    if place.dtype(x).kind != "f":
        return place.emit("Mod", x, y)
    rest, zero = place.emit("Mod", x, y, fmod=1), place.like(0, x)
    differ = place.emit("Xor", place.emit("Less", rest, zero), place.emit("Less", y, zero))
    moved = place.emit("And", differ, place.emit("Not", place.emit("Equal", rest, zero)))
    return place.emit("Where", moved, place.emit("Add", rest, y), rest)


def _truncated_modulo(place: Replaced) -> str:
    return place.emit("Mod", *place.inputs, fmod=1)


def _shift(place: Replaced) -> str:
    """To the right with copies of the sign: ONNX shifts unsigned numbers only."""
    x, by = place.inputs
    dtype, is_left = place.dtype(x), place.node.type == "LeftShift"
    limits = place.like(0, by), place.like(8 * dtype.itemsize - 1, by)
    unsigned = np.dtype(f"u{dtype.name.removeprefix('u')}")
    by = place.cast(place.emit("Min", place.emit("Max", by, limits[0]), limits[1]), unsigned)
    if is_left or dtype == unsigned:
        direction = "LEFT" if is_left else "RIGHT"
        return place.cast(place.emit("BitShift", place.cast(x, unsigned), by, direction=direction), dtype)
    negative = place.emit("Less", x, place.like(0, x))
    size = place.cast(place.emit("Where", negative, place.emit("BitwiseNot", x), x), unsigned)
    moved = place.cast(place.emit("BitShift", size, by, direction="RIGHT"), dtype)
    return place.emit("Where", negative, place.emit("BitwiseNot", moved), moved)


def _mean(place: Replaced) -> str | None:
    x, axes = place.inputs
    dtype = place.dtype(x)
    if dtype.kind not in "iu" or dtype.itemsize == 8:
        return None
    axes = place.emit("Reshape", place.cast(axes, np.int64), place.const([-1]))
    kept = int(bool(place.attr("keep_dims")))
    wide = place.cast(x, np.int64)
    return place.cast(place.emit("ReduceMean", wide, axes, keepdims=kept, noop_with_empty_axes=1), dtype)


def _select(place: Replaced) -> str:
    """A vector of conditions chooses rows in Select, whose operands have one rank otherwise."""
    condition, *values = place.inputs
    if place.node.type == "Select" and place.rank(condition) == 1 and (rank := place.rank(values[0])) > 1:
        condition = place.emit("Reshape", condition, place.const([-1] + [1] * (rank - 1)))
    return place.emit("Where", condition, *values)


def _beyond(place: Replaced) -> str:
    """An operator of our own domain with the same name."""
    return place.beyond(place.node.type, *place.inputs)


def _unless_zero(place: Replaced, factor: str, value: str) -> str:
    zero = place.like(0, factor)
    return place.emit("Where", place.emit("Equal", factor, zero), zero, value)


def _xlogy(place: Replaced) -> str:
    x, y = place.inputs
    return _unless_zero(place, x, place.emit("Mul", x, place.emit("Log", y)))


def _xlog1py(place: Replaced) -> str:
    x, y = place.inputs
    return _unless_zero(place, x, place.emit("Mul", x, place.beyond("Log1p", y)))


def _xdivy(place: Replaced) -> str:
    x, y = place.inputs
    return _unless_zero(place, x, place.emit("Div", x, y))


def _multiply_no_nan(place: Replaced) -> str:
    """0 where the second factor is."""
    x, y = place.inputs
    return _unless_zero(place, y, place.emit("Mul", x, y))


def _l2_loss(place: Replaced) -> str:
    (x,) = place.inputs
    return place.emit("Mul", place.emit("ReduceSumSquare", x, keepdims=0), place.like(0.5, x))


def _bucketize(place: Replaced) -> str:
    """How many boundaries, which ascend, are at most the element."""
    (x,) = place.inputs
    boundaries = place.attr("boundaries") or []
    wide = place.cast(x, np.float64 if place.dtype(x) == np.float64 else np.float32)
    column = place.emit("Unsqueeze", wide, place.const([-1]))
    reached = place.emit("LessOrEqual", place.const(boundaries, place.dtype(wide)), column)
    return place.emit("ReduceSum", place.cast(reached, np.int32), place.const([-1]), keepdims=0)


def _bound(place: Replaced) -> str:
    """How many of a sorted row [r, n] are below each value [r, m], or at most it."""
    ordered, values = place.inputs
    comparison = "Less" if place.node.type == "LowerBound" else "LessOrEqual"
    row, column = (
        place.emit("Unsqueeze", ordered, place.const([-2])),
        place.emit("Unsqueeze", values, place.const([-1])),
    )
    below = place.cast(place.emit(comparison, row, column), place.dtype(place.node.output[0]))
    return place.emit("ReduceSum", below, place.const([-1]), keepdims=0)


def _in_top_k(place: Replaced) -> str:
    """Whether fewer than k of a row [r, n] are greater than the one that is meant [r]."""
    x, target, k = place.inputs
    column = place.emit("Unsqueeze", place.cast(target, np.int64), place.const([-1]))
    meant = place.emit("GatherElements", x, column, axis=1)
    greater = place.cast(place.emit("Greater", x, meant), np.int64)
    count = place.emit("ReduceSum", greater, place.const([-1]), keepdims=0)
    finite = place.emit("Equal", place.emit("Sub", meant, meant), place.like(0, x))
    return place.emit(
        "And", place.emit("Less", count, place.cast(k, np.int64)), place.emit("Squeeze", finite, place.const([-1]))
    )


def _one_hot(place: Replaced) -> str:
    numbers, depth, on, off = place.inputs
    axis, numbers, depth = place.attr("axis"), place.cast(numbers, np.int64), place.cast(depth, np.int64)
    shown = place.emit("Where", place.emit("Less", numbers, place.const(0)), depth, numbers)
    values = [place.emit("Reshape", value, place.const([1])) for value in (off, on)]
    depth = place.emit("Reshape", depth, place.const([1]))
    return place.emit("OneHot", shown, depth, place.emit("Concat", *values, axis=0), axis=axis)


HANDLERS: dict[str, Handler] = {
    "FloorDiv": _floor_divide,
    "FloorMod": _floor_modulo,
    "TruncateMod": _truncated_modulo,
    "LeftShift": _shift,
    "RightShift": _shift,
    "Mean": _mean,
    "Select": _select,
    "SelectV2": _select,
    **dict.fromkeys(("Expm1", "Log1p", "Lgamma", "Digamma", "Erfc", "Erfinv", "NextAfter"), _beyond),
    "Xlogy": _xlogy,
    "Xlog1py": _xlog1py,
    "Xdivy": _xdivy,
    "MulNoNan": _multiply_no_nan,
    "L2Loss": _l2_loss,
    "Bucketize": _bucketize,
    "LowerBound": _bound,
    "UpperBound": _bound,
    "InTopKV2": _in_top_k,
    "OneHot": _one_hot,
}
