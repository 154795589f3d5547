"""Symbolic dimensions: which values a function is timed and checked at, and evaluating its shapes there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod

from tvm import ir, tirx

from ..dimensions import itemsize_of
from ..records.record import Size

ROWS = (1, 8, 32, 128, 512)  # values of the varying dimensions, equal weights
CHECKED = (37, 7)  # odd, and beyond any register tile
_UNKNOWN_RANGE = (1, ROWS[-1])
MOST_BYTES = 1 << 28  # of all tensors of a function: several open dimensions at once are no size that a model runs at

Env = Mapping[ir.Var, int]

_BINARY: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
}


def symbols(func: tirx.PrimFunc) -> tuple[ir.Var, ...]:
    """The symbolic dimensions of `func` by first appearance in its parameters; scalar parameters are dimensions."""
    found: dict[ir.Var, None] = {}
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            for dim in param.ty.shape:
                _collect(dim, found)
        else:
            found[param] = None
    return tuple(found)


def symbols_in(expr: ir.Expr) -> tuple[ir.Var, ...]:
    """The symbolic dimensions that `expr` is made of."""
    found: dict[ir.Var, None] = {}
    _collect(expr, found)
    return tuple(found)


def value(expr: ir.Expr, env: Env) -> int:
    """The integer `expr` at `env`; raises `ValueError` for an expression that no shape has."""
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    if isinstance(expr, ir.Var) and expr in env:
        return env[expr]
    if isinstance(expr, tirx.Cast):
        return value(expr.value, env)
    name = type(expr).__name__
    if name in _BINARY:
        return _BINARY[name](value(expr.a, env), value(expr.b, env))
    raise ValueError(f"a shape is made of dimensions and integers, got {expr} ({name})")


def shape_of(param: ir.Var, env: Env) -> tuple[int, ...]:
    """The shape of a buffer parameter at `env`."""
    return tuple(value(dim, env) for dim in param.ty.shape)


def timed_sizes(func: tirx.PrimFunc, ranges: Mapping[str, tuple[int, int]]) -> tuple[Size, ...]:
    """Where `func` is timed: `ROWS` clipped to the declared ranges, as far as its tensors fit `MOST_BYTES`; a static
    function once."""
    return _weighted(_within(func, _assignments(func, ranges, ROWS)))


def checked_sizes(func: tirx.PrimFunc, ranges: Mapping[str, tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Where results are compared, the heavier size first."""
    return tuple(dict.fromkeys(_within(func, _assignments(func, ranges, CHECKED))))


def _assignments(
    func: tirx.PrimFunc, ranges: Mapping[str, tuple[int, int]], rows: tuple[int, ...]
) -> list[tuple[int, ...]]:
    # The dimensions with the widest range vary together (a sequence and its keys); the others, a batch
    # for instance, stay at their smallest value.
    dims = [ranges.get(str(v.name), _UNKNOWN_RANGE) for v in symbols(func)]
    if not dims:
        return [()]
    widest = max(high for _, high in dims)
    return [tuple(max(low, min(m, high)) if high == widest else low for low, high in dims) for m in rows]


def _within(func: tirx.PrimFunc, assignments: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those at which the tensors of `func` fit `MOST_BYTES`, at least the smallest of all."""
    needed = [bytes_at(func, dict(zip(symbols(func), dims))) for dims in assignments]
    fit = [dims for dims, size in zip(assignments, needed) if size <= MOST_BYTES]
    return fit or [assignments[needed.index(min(needed))]]


def bytes_at(func: tirx.PrimFunc, env: Env) -> int:
    """Bytes of the parameters and intermediate tensors of `func` before it is scheduled."""
    root = getattr(func.body, "block", None)
    buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    buffers += list(root.alloc_buffers) if root is not None else []
    return sum(prod(shape_of(b, env)) * itemsize_of(b.ty.dtype) for b in buffers)


def _weighted(assignments: list[tuple[int, ...]]) -> tuple[Size, ...]:
    distinct = list(dict.fromkeys(assignments))
    return tuple(Size(dims, 1 / len(distinct)) for dims in distinct)


def iterations(func: tirx.PrimFunc, env: Env) -> int:
    """How often the stores of `func` run at `env`: what its unscheduled form costs."""
    return _iterations(func.body, dict(env), 1)


def _iterations(node: object, env: dict[ir.Var, int], times: int) -> int:
    if isinstance(node, tirx.For):
        return _iterations(node.body, env, times * max(0, value(node.extent, env)))
    if isinstance(node, tirx.SeqStmt):
        return sum(_iterations(s, env, times) for s in node.seq)
    if isinstance(node, tirx.BufferStore):
        return times
    for field in ("block", "body", "then_case"):
        if hasattr(node, field):
            return _iterations(getattr(node, field), env, times)
    return times


def _collect(expr: ir.Expr, found: dict[ir.Var, None]) -> None:
    if isinstance(expr, ir.Var):
        found[expr] = None
    for field in ("a", "b", "value"):
        child = getattr(expr, field, None)
        if isinstance(child, ir.Expr):
            _collect(child, found)
