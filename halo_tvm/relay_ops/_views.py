"""Chains of operators that move elements and compute nothing, compared by what they do to positions.

Exporters reach one arrangement of heads by many chains of reshape, transpose and broadcast. Instead of a pattern per
chain, a chain is run on an array of positions, small sizes standing for symbolic dimensions: such operators do the
same at every size, so that two arrangements which agree at two sets of sizes are one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import relax
from tvm.relax.analysis import tir_vars_in_type

from ..dimensions import size_of
from .operator import op_name

Lookup = Callable[[relax.Expr], relax.Expr]  # a variable -> the value it is bound to; anything else -> itself
_SIZES = ((3, 5, 7, 11, 13, 17), (2, 7, 3, 5, 19, 11))  # of symbolic dimensions, in the order they are met
_MOST = 1 << 22  # elements of an array of positions
_LARGEST = 1 << 20  # size of a symbolic dimension
_LONGEST = 24


class NoView(Exception):
    """An expression that is no chain of views, or too large to be run."""


@dataclass
class Probe:
    """One choice of sizes for the symbolic dimensions of an expression."""

    choice: int
    sizes: dict[str, int] = field(default_factory=dict)

    def shape(self, expr: relax.Expr) -> tuple[int, ...]:
        """The sizes of a tensor. `NoView` where one of them is below 1: an array without elements agrees with any."""
        new = {}
        for var in tir_vars_in_type(expr.ty):
            if var.name not in self.sizes:
                numbers = _SIZES[self.choice]
                new[var.name] = self.sizes[var.name] = numbers[len(self.sizes) % len(numbers)]
        while min(found := self._found(expr), default=1) < 1:
            # As frames of a sound, of which a window takes hundreds of samples; what others have is theirs.
            new = {name: 2 * size + 1 for name, size in new.items()}
            if not new or max(new.values()) > _LARGEST:
                raise NoView("sizes below 1")
            self.sizes |= new
            if math.prod(self._found(expr)) > _MOST:  # grown, it may be far larger than a probe usually is
                raise NoView("too many elements")
        return found

    def _found(self, expr: relax.Expr) -> tuple[int, ...]:
        return tuple(size_of(dim, self.sizes) for dim in expr.ty.shape.values)


def probes() -> list[Probe]:
    return [Probe(choice) for choice in range(len(_SIZES))]


def chain_of(expr: relax.Expr, lookup: Lookup) -> list[relax.Expr]:
    """`expr`, what it is a view of, what that is a view of, and so on; the last is no view."""
    chain = [expr]
    while len(chain) < _LONGEST:
        value = lookup(chain[-1])
        if op_name(value) not in _VIEWS:
            break
        if not isinstance(value.args[0].ty.shape, relax.ShapeExpr) or not isinstance(
            chain[-1].ty.shape, relax.ShapeExpr
        ):
            break
        chain.append(value.args[0])
    return chain


def positions(chain: Sequence[relax.Expr], base: int, lookup: Lookup, probe: Probe) -> list[np.ndarray]:
    """Of `chain[0]` to `chain[base]`: which element of `chain[base]` stands at each position."""
    shape = probe.shape(chain[base])
    if int(np.prod(shape, dtype=np.int64)) > _MOST:
        raise NoView("too many elements")
    array = np.arange(int(np.prod(shape))).reshape(shape)
    arrays = [array]
    for expr in reversed(chain[:base]):
        array = applied(lookup(expr), array, probe.shape(expr))
        if array.size > _MOST:
            raise NoView("too many elements")
        arrays.append(array)
    return arrays[::-1]


def is_view(name: str) -> bool:
    """Whether the operator `name` moves elements and computes nothing."""
    return name in _VIEWS


def applied(call: relax.Call, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What a view makes of `array`; `NoView` where the sizes of a probe do not fit it, or are below 0."""
    try:
        return _VIEWS[call.op.name](call, array, shape)
    except ValueError as reason:
        raise NoView(str(reason)) from reason


def bases(chain: Sequence[relax.Expr]) -> Iterator[int]:
    """Indices into a chain, the deepest first."""
    return iter(range(len(chain) - 1, -1, -1))


def _permuted(call: relax.Call, x: np.ndarray, _shape: tuple[int, ...]) -> np.ndarray:
    return np.transpose(x, None if call.attrs.axes is None else [int(a) for a in call.attrs.axes])


def _reshaped(_call: relax.Call, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return x.reshape(shape)


def _broadcast(_call: relax.Call, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(x, shape)


def _repeated(call: relax.Call, x: np.ndarray, _shape: tuple[int, ...]) -> np.ndarray:
    return (
        np.repeat(x, int(call.attrs.repeats), int(call.attrs.axis))
        if call.attrs.axis is not None
        else x.repeat(int(call.attrs.repeats))
    )


_VIEWS: dict[str, Callable[[relax.Call, np.ndarray, tuple[int, ...]], np.ndarray]] = {
    "relax.permute_dims": _permuted,
    "relax.reshape": _reshaped,
    "relax.expand_dims": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.flatten": _reshaped,
    "relax.broadcast_to": _broadcast,
    "relax.repeat": _repeated,
}
