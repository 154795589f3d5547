"""What products take of a weight is a weight of its own, so that they are recognised as linears.

Before -> after
    w' = strided_slice(w, 0, 0, n);  y = x @ permute_dims(w')   ->   y = x @ permute_dims(w''),  w'' made by a recipe
Serves
    parts, views and orders of weights that nothing but products and additions reads: queries beside joined keys and
    values of cross attention, chunks of a joined projection
Leaves alone
    a weight whose two axes a product reads in the other order, and all that other operators read: lifts look for both
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops.operator import op_name
from .graph_pass import Context, Pass, Report, bindings
from .hoist_weights import hoisted

_VIEWS = ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.permute_dims")


@dataclass(frozen=True)
class HoistParts(Pass):
    """Weights of products that are taken in parts."""

    name = "hoist_parts"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        read = _read_by_products(mod["main"])
        return hoisted(mod, context, lambda binding: binding.var in read and _moves(binding) and not _turned(binding))


def _read_by_products(func: relax.Function) -> set[relax.Var]:
    """The variables that products read as weights or additions as vectors, themselves or moved, and nothing else."""
    read: set[relax.Var] = set()
    others: set[relax.Var] = set(relax.analysis.free_vars(func.body.body))
    for binding in reversed(list(bindings(func))):  # whose readers have all been seen
        taken = set(_taken(binding, moved=binding.var in read and binding.var not in others))
        read |= taken
        others |= set(relax.analysis.free_vars(binding.value)) - taken
    return read - others


def _taken(binding: relax.VarBinding, *, moved: bool) -> Iterator[relax.Var]:
    """The operands that `binding` reads as weights, or moves where its result is read as one (`moved`)."""
    name = op_name(binding.value)
    args = list(getattr(binding.value, "args", ()))
    if name == "relax.matmul":
        candidates = [args[1]] if args[1].ty.ndim == 2 else []
    elif name == "relax.add":
        candidates = [arg for arg in args if arg.ty.ndim == 1]
    else:
        candidates = [args[0]] if moved and _moves(binding) else []
    yield from (arg for arg in candidates if isinstance(arg, relax.Var))


def _moves(binding: relax.VarBinding) -> bool:
    """Whether a binding takes a part of a tensor, or orders its axes anew: views that are vectors are left to norms."""
    name = op_name(binding.value)
    return name == "relax.strided_slice" or (name in _VIEWS and binding.var.ty.ndim > 1)


def _turned(binding: relax.VarBinding) -> bool:
    """Whether a binding swaps the two axes of a matrix, which the product's lift reads as a layout."""
    return op_name(binding.value) == "relax.permute_dims" and binding.var.ty.ndim == 2
