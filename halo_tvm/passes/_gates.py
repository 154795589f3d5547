"""A gate and what it gates, computed by one linear: which linears those are, and how wide their halves must be.

Before -> after
    g = linear(x, wg);  u = linear(x, wu);  h = silu(g) * u
        ->   y = linear(x, [wg | wu]);  g = y[..., :n];  u = y[..., n:];  h = silu(g) * u
The arithmetic may be any that works element by element, as long as nothing else reads what lies in between: `fuse`
then makes it the stages behind the one product.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..errors import Declined
from ..relay_ops.operator import attrs_of, op_name, operator_of
from ..tir_schedules.products.packing import pack_shape
from ._pointwise import BINARY, UNARY
from .graph_pass import Context, bindings, same_type, users_of
from .pack_weights import FP32, format_of

_RULE = "gemm"  # puts stages behind the halves of a product


def gate_pairs(func: relax.Function) -> list[tuple[relax.VarBinding, relax.VarBinding]]:
    """Linears of one input and of as many columns whose results meet in element-wise arithmetic, and nowhere else."""
    found, users = bindings(func), users_of(func)
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, binding in enumerate(found):
        operator = operator_of(binding.value)
        if operator is not None and operator.name == "linear":
            attrs = attrs_of(binding.value)
            alike.setdefault((binding.value.args[0], attrs["n"]), []).append(index)
    pairs = []
    for indices in alike.values():
        while len(indices) > 1:
            first = indices.pop(0)
            other = next((i for i in indices if _meet(first, i, found, users)), None)
            if other is not None:
                indices.remove(other)
                pairs.append((found[first], found[other]))
    return pairs


def _meet(
    first: int,
    second: int,
    found: list[relax.VarBinding],
    users: Mapping[relax.Var, frozenset[relax.Var | None]],
) -> bool:
    """Whether all that reads the two values, and what is made of them, comes together in one value."""
    inside: set[relax.Var | None] = {found[first].var, found[second].var}
    made = found[first].var.ty
    for binding in found[first + 1 :]:
        if inside.isdisjoint(relax.analysis.free_vars(binding.value)):
            continue
        if op_name(binding.value) not in UNARY | BINARY or not same_type(binding.var.ty, made):
            return False
        inside.add(binding.var)
        if all(users.get(var, frozenset()) <= inside for var in inside - {binding.var}):
            return True
    return False


def half_width(first: relax.VarBinding, context: Context) -> int:
    """Columns that each half takes: whole panels of the packed weight; `Declined` where no kernel takes halves."""
    if _RULE not in context.target.spec.rules:
        raise Declined(f"{context.target.spec.name} has no rule that puts stages behind the halves of a product")
    n, k = int(first.var.ty.shape.values[-1]), int(first.value.args[0].ty.shape.values[-1])
    integers = context.precision in ("int8", "int4")
    dtype = (FP32 if integers else format_of(k, context)).dtype
    kc, nr = pack_shape(k, 2 * n, context.target, dtype)
    if kc != k and not integers:
        raise Declined(f"a weight of {k} rows is read in chunks of {kc}: sums of both halves have no place to wait")
    width: int = -(-n // nr) * nr
    if pack_shape(k, 2 * width, context.target, dtype)[1] != nr:
        raise Declined(f"halves of {n} columns are no whole number of panels")
    return width
