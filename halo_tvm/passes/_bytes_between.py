"""A sum of two products is added up where the first is made, and reads the second as the bytes that it was rounded to.

Before -> after
    s = f(q);  y = p + s   ->   the same, q an output of its block
where q are bytes that only f reads, element by element, and p and s come from products
Without it the function of the second product writes s, which is four times as long. An output of its block is not fused
with what reads it: f becomes a part of the function that adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ..relay_ops.operator import op_name, same_places
from ._cast_operands import kept_apart
from ._pointwise import BYTES
from .graph_pass import bindings, users_of

_ELEMENTWISE, _PRODUCT = (0, 1), 4  # TVM's OpPatternKind: kElemWise and kBroadcast, kOutEWiseFusable


def keep_bytes(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, whose functions have patterns, with the bytes in front of such sums apart from what reads them."""
    if not any(str(getattr(b.var.ty, "dtype", "")) in BYTES for b in bindings(mod["main"])):
        return mod
    chains = _Chains(mod)
    return kept_apart(mod, {q for sum_ in chains.sums() if (q := chains.later_bytes(sum_)) is not None})


@dataclass(frozen=True)
class _End:
    """Where a chain of element-wise functions begins: the number of its product, and the last bytes on the way."""

    number: int
    rounded: relax.Var | None


class _Chains:
    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._calls: dict[relax.Var, relax.Call] = {}
        self._numbers: dict[relax.Var, int] = {}
        self._users = users_of(mod["main"])
        for number, binding in enumerate(bindings(mod["main"])):
            if op_name(binding.value) == "relax.call_tir":
                self._calls[binding.var], self._numbers[binding.var] = binding.value, number

    def sums(self) -> list[relax.Var]:
        """Element by element results of two tensors of their shape that are computed."""
        return [var for var in self._calls if self._pattern(var) in _ELEMENTWISE and len(self._made(var)) == 2]

    def later_bytes(self, var: relax.Var) -> relax.Var | None:
        """The bytes in front of the sum `var` that come from the later one of two products."""
        one, other = (self._end(operand) for operand in self._made(var))
        if one is None or other is None:
            return None
        return (one if one.number > other.number else other).rounded

    def _end(self, var: relax.Var) -> _End | None:
        """None where anything else reads what is between the product and `var`, or there is none."""
        rounded = None
        while len(self._users.get(var, ())) == 1:
            if self._pattern(var) == _PRODUCT:
                return _End(self._numbers[var], rounded)
            if rounded is None and str(var.ty.dtype) in BYTES:
                rounded = var
            made = self._made(var)
            if self._pattern(var) not in _ELEMENTWISE or len(made) != 1:
                return None
            var = made[0]
        return None

    def _made(self, var: relax.Var) -> list[relax.Var]:
        """What `var` is made of and has its shape, where that is computed."""
        fields = self._calls[var].args[1].fields
        return [arg for arg in fields if arg in self._calls and same_places(arg.ty, var.ty)]

    def _pattern(self, var: relax.Var) -> int | None:
        function = self._mod[self._calls[var].args[0]]
        return int(function.attrs["op_pattern"]) if isinstance(function, tirx.PrimFunc) else None
