"""Parts of tensors as lifts read them: slices of the last axis, and the fields of a tuple."""

from __future__ import annotations

from tvm import relax, tirx

from .operator import Match, op_name


def fields_of(match: Match, expr: relax.Expr) -> list[relax.Expr]:
    value = match.value(expr)
    return list(value.fields) if isinstance(value, relax.Tuple) else []


def slice_of(match: Match, part: relax.Expr, x: relax.Expr) -> tuple[int, int, int] | None:
    """(begin, end, step) when `part` is a slice of the last axis of `x`; end is one behind the last element."""
    value, d, last = match.value(part), int(x.ty.shape.values[-1]), x.ty.ndim - 1
    if isinstance(value, relax.TupleGetItem):
        split = match.value(value.tuple_value)
        halves = op_name(split) == "relax.split" and split.args[0].same_as(x) and int(split.attrs.axis) in (-1, last)
        size = int(part.ty.shape.values[-1]) if halves else 0
        return (value.index * size, (value.index + 1) * size, 1) if halves and 2 * size == d else None
    if op_name(value) != "relax.strided_slice" or not value.args[0].same_as(x):
        return None
    axes, begins, ends, *steps = ([_int(v) for v in _numbers(match, a)] for a in value.args[1:])
    step = steps[0][0] if steps else 1
    if len(axes) != 1 or axes[0] not in (-1, last) or None in (begins[0], ends[0], step) or step < 1:
        return None
    begin, end = (v + d if v < 0 else min(v, d) for v in (begins[0], ends[0]))
    return begin, begin + -(-(end - begin) // step) * step - step + 1, step  # the end behind the last element taken


def _numbers(match: Match, expr: relax.Expr) -> list[object]:
    value = match.value(expr)
    return list(value.fields) if isinstance(value, relax.Tuple) else list(value.values)


def _int(expr: object) -> int | None:
    expr = expr.value if hasattr(expr, "value") and not isinstance(expr, tirx.IntImm) else expr
    return int(expr) if isinstance(expr, int | tirx.IntImm) else None
