"""What is a function of one byte alone is looked up.

Before -> after
    r = uint8(f(q)), q a tensor of bytes, f element by element with single numbers   ->   r = table[q], 256 bytes
Serves
    chains of arithmetic, bounds, rounding, exponentials, error functions and activations; several paths from q to r,
    as x * sigmoid(x) has them
Leaves alone
    what costs less than to look it up; results that are no bytes; what reads weights or other tensors, too
A quantised file rounds behind every operator, so that a GELU is five ways to a grid and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, te

from ..relay_ops.operator import op_name, same_places
from ..relay_ops.parts.activation import ACTIVATIONS, erf, sigmoid
from ._kernels import Kernel, with_kernels
from ._pointwise import BYTES
from .graph_pass import Context, Pass, Report, bindings

_TYPES = (*BYTES, "int16", "uint16", "int32", "float32")  # on the way
_KERNEL = "byte_table"
_LEAST = 16  # operations of what a table replaces: it is read element by element
_SEVERAL = 10  # operations that an exponential or a function of that kind counts for


@dataclass(frozen=True)
class ByteTables(Pass):
    """Functions from bytes to bytes become tables."""

    name = "byte_tables"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        if context.target.spec.gpu:
            return mod, {"tables": 0}
        kernels = {
            var: Kernel(_looked_up, (found.source, relax.const(found.values, found.values.dtype.name)), _KERNEL)
            for var, found in _tables(mod["main"]).items()
        }
        mod, count = with_kernels(mod, kernels)
        return mod, {"tables": count}


@dataclass(frozen=True)
class _OfByte:
    """A tensor that is a function of the bytes of `source`."""

    source: relax.Var
    values: np.ndarray  # of each byte, by its bits
    steps: frozenset[relax.Var]  # what is computed on the way


def _tables(func: relax.Function) -> dict[relax.Var, _OfByte]:
    """The tensors of `func` to look up."""
    known: dict[relax.Var, _OfByte] = {}
    numbers: dict[relax.Var, np.ndarray] = {}
    operations: dict[relax.Var, int] = {}
    found: dict[relax.Var, _OfByte] = {}
    with np.errstate(all="ignore"):
        for binding in bindings(func):
            function, var = _function_of(binding.value), binding.var
            if function is None or str(var.ty.dtype) not in _TYPES:
                continue
            operands = [_operand(arg, numbers, known) for arg in binding.value.args]
            if all(isinstance(operand, np.ndarray) for operand in operands):
                numbers[var] = function.of(operands, var)
                continue
            made = _made(binding, function, operands)
            if made is None:
                continue
            known[var], operations[var] = made, function.operations
            if made.values.dtype.name in BYTES and sum(operations[step] for step in made.steps) >= _LEAST:
                found[var] = made
    return found


def _operand(
    arg: relax.Expr, numbers: Mapping[relax.Var, np.ndarray], known: Mapping[relax.Var, _OfByte]
) -> np.ndarray | _OfByte | None:
    """A single number, or what `arg` is of a byte; None where it is neither."""
    if isinstance(arg, ir.GenericConst):
        return arg.value.numpy().reshape(()) if all(size == 1 for size in arg.value.shape) else None
    if not isinstance(arg, relax.Var):
        return None
    return numbers.get(arg) if arg in numbers else known.get(arg) or _byte(arg)


def _made(
    binding: relax.VarBinding, function: _Function, operands: Sequence[np.ndarray | _OfByte | None]
) -> _OfByte | None:
    """What `binding` is of a byte; None where it is no function of one byte alone."""
    parts = [operand for operand in operands if isinstance(operand, _OfByte)]
    if not parts or any(operand is None for operand in operands):
        return None
    source = parts[0].source
    if any(not part.source.same_as(source) for part in parts) or not same_places(source.ty, binding.var.ty):
        return None
    values = function.of([o.values if isinstance(o, _OfByte) else o for o in operands], binding.var)
    return _OfByte(source, values, frozenset({binding.var}).union(*(part.steps for part in parts)))


def _byte(arg: relax.Expr) -> _OfByte | None:
    if not isinstance(arg, relax.Var) or str(getattr(arg.ty, "dtype", "")) not in BYTES:
        return None
    return _OfByte(arg, np.arange(256, dtype=np.uint8).view(str(arg.ty.dtype)), frozenset())


@dataclass(frozen=True)
class _Function:
    """An operator, element by element."""

    values: Callable[..., np.ndarray]
    operations: int = 1

    def of(self, operands: Sequence[Any], var: relax.Var) -> np.ndarray:
        """Its results for `var`."""
        return np.asarray(self.values(*operands)).astype(str(var.ty.dtype))


def _as_integer(x: np.ndarray, dtype: str) -> np.ndarray:
    """As kernels do on x86: by way of 32 bits (`_casts`), of which what lies beyond them or is none is the least."""
    if x.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        x = np.where((x >= -(2.0**31)) & (x < 2.0**31), x, -(2.0**31)).astype(np.int32)
    return x.astype(dtype)


_FUNCTIONS = {
    "relax.add": _Function(np.add),
    "relax.subtract": _Function(np.subtract),
    "relax.multiply": _Function(np.multiply),
    "relax.divide": _Function(np.divide, 3),
    "relax.maximum": _Function(np.maximum),
    "relax.minimum": _Function(np.minimum),
    "relax.round": _Function(np.rint),
    "relax.negative": _Function(np.negative),
    "relax.abs": _Function(np.abs),
    "relax.sqrt": _Function(np.sqrt, 3),
    "relax.exp": _Function(np.exp, _SEVERAL),
    "relax.tanh": _Function(np.tanh, _SEVERAL),
    "relax.erf": _Function(erf, _SEVERAL),
    "relax.sigmoid": _Function(sigmoid, _SEVERAL),
    **{a.op: _Function(a.numpy, 1 if name == "relu" else _SEVERAL) for name, a in ACTIVATIONS.items() if a.op},
}


def _function_of(value: relax.Expr) -> _Function | None:
    name = op_name(value)
    if name == "relax.astype":
        dtype = str(value.attrs.dtype)
        return _Function(lambda x: _as_integer(x, dtype))
    if name == "relax.divide" and str(value.ty.dtype) != "float32":
        return None  # of integers, which has rules of its own
    return _FUNCTIONS.get(name)


def _looked_up(q: te.Tensor, table: te.Tensor) -> te.Tensor:
    return te.compute(q.shape, lambda *i: table[q[i].astype("uint8").astype("int32")], name=_KERNEL)
