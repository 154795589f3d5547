"""Orders: stable, NaN behind all numbers."""

from __future__ import annotations

from tvm import relax

from ...meaning.builder import expr_dtype
from ...meaning.selection import first_in_order
from .._primitive import Primitive
from .._registry import converter
from .._values import Value


@converter("sort")
def sort(c: Primitive) -> list[Value]:
    """All operands in the order of the first `num_keys`, which break each other's ties."""
    axis, keys = int(c.params["dimension"]), int(c.params["num_keys"])
    parts = [c.x(i) for i in range(len(c.values))]
    for place in reversed(range(keys)):
        key = c.cast(parts[place], "int8") if expr_dtype(parts[place]) == "bool" else parts[place]
        order = c.emit(relax.op.argsort(key, axis, False, "int64"))
        parts = [_taken(c, part, order, axis) for part in parts]
    return list(parts)


def _taken(c: Primitive, x: relax.Expr, order: relax.Expr, axis: int) -> relax.Expr:
    return c.emit(relax.op.gather_elements(x, order, axis))


@converter("top_k", "approx_top_k")
def top_k(c: Primitive) -> list[Value]:
    """The largest k and their places; the first of equal ones first."""
    axis = int(c.params.get("axis", c.params.get("reduction_dimension", -1))) % c.rank()
    largest = bool(c.params.get("is_max_k", True))
    k = c.walker.dims.dim(c.params["k"])
    x = c.x()
    key = c.cast(x, "int8") if expr_dtype(x) == "bool" else x
    values, places = first_in_order(c, key, k, axis, largest=largest)
    return [c.cast(values, expr_dtype(x)), c.cast(places, str(c.eqn.outvars[1].aval.dtype))]
