"""Numbers become integers of a known grid in one block: bounds, and the addition of a number that rounds.

Before -> after
    uint8(min(max(round(x) + z, 0), 255))   ->   uint8(bits(min(max(x, -z), 255 - z) + 1.5 * 2^23) + z)
Serves
    signed and unsigned integers of 8 and 16 bits, with zero points and bounds that are known numbers
Leaves alone
    zero points that a run computes; GPUs
Numerics
    the same integers, ties to the even one; infinities are the ends of the range, NaN becomes its least integer, as in
    onnxruntime
Between 2^23 and 2^24 there are whole numbers only, so that the sum is rounded to one, whose last bits are the integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import ir, relax, te, tirx

from ..relay_ops.operator import number_of, op_name, same_places
from ..tir_schedules.code.vector_math import ROUND  # 1.5 * 2^23, whose last 16 bits are 0
from ._kernels import Kernel, with_kernels
from .graph_pass import Context, Pass, Report, bindings

_KERNEL = "round_to_grid"
_LARGEST = 1 << 17  # of bounds, far from where that ends
_Value = Callable[[relax.Expr], relax.Expr]


@dataclass(frozen=True)
class RoundToGrid(Pass):
    """Ways from float32 to known grids of integers become one block each."""

    name = "round_to_grid"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        if context.target.spec.gpu:
            return mod, {"rounded": 0}
        values: dict[relax.Var, relax.Expr] = {}
        kernels = {}
        for binding in bindings(mod["main"]):
            if op_name(binding.value) == "relax.astype":
                found = _grid_of(binding.value, lambda e: values.get(e, e) if isinstance(e, relax.Var) else e)
                if found is not None:
                    grid, x = found
                    kernels[binding.var] = Kernel(grid.rounded, (x,), _KERNEL)
            values[binding.var] = binding.value
        mod, count = with_kernels(mod, kernels)
        return mod, {"rounded": count}


@dataclass(frozen=True)
class _Grid:
    """The integers from `low` to `high` of type `dtype`, whose `zero` stands for 0."""

    dtype: str
    low: float
    high: float
    zero: float

    def is_exact(self) -> bool:
        """Whether all its numbers are whole, and few enough."""
        numbers = (self.low, self.high, self.zero)
        return all(v.is_integer() and abs(v) <= _LARGEST for v in numbers) and self.low <= self.high

    def rounded(self, x: te.Tensor) -> te.Tensor:
        """The integers of `x`."""
        low, high = (tirx.const(bound - self.zero, "float32") for bound in (self.low, self.high))

        def integer(*i: ir.Expr) -> ir.Expr:
            inside = tirx.min(tirx.max(x[i], low), high)  # the second of two where they do not compare
            whole = tirx.reinterpret("int32", inside + tirx.const(ROUND, "float32"))
            return (whole + tirx.const(int(self.zero), "int32") if self.zero else whole).astype(self.dtype)

        return te.compute(x.shape, integer, name=_KERNEL)


def _grid_of(call: relax.Call, value: _Value) -> tuple[_Grid, relax.Expr] | None:
    """The grid that `call` of `astype` rounds to, and what it rounds."""
    dtype, at = str(call.attrs.dtype), call.args[0]
    if dtype not in ("int8", "uint8", "int16", "uint16") or str(at.ty.dtype) != "float32":
        return None
    numbers = []
    for name in ("relax.minimum", "relax.maximum", "relax.add"):
        found = value(at)
        if op_name(found) == name and (number := number_of(value(found.args[1]))) is not None:
            numbers.append(number)
            at = found.args[0]
        elif name == "relax.add":
            numbers.append(0.0)
        else:
            return None
    if op_name(value(at)) != "relax.round":
        return None
    high, low, zero = numbers
    grid, x = _Grid(dtype, low, high, zero), value(at).args[0]
    return (grid, x) if grid.is_exact() and same_places(x.ty, call.ty) else None
