"""Tables of a rotary embedding, found behind the operands that cosine and sine have become.

Exporters spread one number per pair over the two members of the pair, by concatenating a tensor with itself or by
repeating its elements, before or behind the cosine. Element-wise functions commute with that, so an operand is followed
through both kinds of operators to the smallest tensor that it is made of: one number per position and pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import ir, relax, tirx

from ..dimensions import is_one, size_of
from ..errors import Rejected
from ._views import NoView, Probe, applied, is_view, probes
from .operator import Match, number_of, op_name, same_dimension

_MAPS = ("relax.cos", "relax.sin", "relax.negative")
_LONGEST = 24


@dataclass(frozen=True)
class Table:
    """One number for each of `lead` * `length` positions and each pair; `heads_first` when x is [b, h, s, d]."""

    value: relax.Expr  # [lead * length, d / 2]
    lead: ir.Expr
    length: ir.Expr
    heads_first: bool


def table_of(match: Match, operand: relax.Expr, x: relax.Expr, interleaved: bool) -> Table:
    """The table that `operand`, a factor of x or of its rotation, spreads over x; `Rejected` when it is none."""
    lead, length, heads_first = _position_axes(operand, list(x.ty.shape.values))
    width = int(x.ty.shape.values[3])
    rows = lead * length if not is_one(lead) else length
    if isinstance(operand, ir.GenericConst) or isinstance(match.value(operand), ir.GenericConst):
        pairs = _halved(match.value(operand).value.numpy(), width, interleaved)
        return Table(relax.const(pairs.reshape(-1, width // 2)), lead, length, heads_first)
    path, maps = [operand], {}
    while len(path) < _LONGEST:
        step = _step(match, path[-1])
        if step is None:
            break
        inner, function = step
        if function is not None:
            maps[len(path) - 1] = function
        path.append(inner)
    for base in range(len(path) - 1, 0, -1):
        if _spreads(match, path[: base + 1], maps, (lead, length, width), interleaved):
            value = relax.op.reshape(path[base], [rows, width // 2])
            for index in range(base - 1, -1, -1):
                value = maps[index](value) if index in maps else value
            return Table(value, lead, length, heads_first)
    constant = match.value(path[-1])
    if (
        isinstance(constant, ir.GenericConst)
        and not maps
        and all(isinstance(d, tirx.IntImm) for d in operand.ty.shape.values)
    ):
        data = constant.value.numpy().reshape(-1)[_positions(match, path, maps, Probe(0))[0]]
        return Table(relax.const(_halved(data, width, interleaved).reshape(-1, width // 2)), lead, length, heads_first)
    raise Rejected("the tables do not give one number to both members of a pair")


def _position_axes(operand: relax.Expr, shape: list[ir.Expr]) -> tuple[ir.Expr, ir.Expr, bool]:
    """Sizes of the batch and position axes of an operand that broadcasts to x, and whether heads come first in x."""
    if not isinstance(operand.ty.shape, relax.ShapeExpr) or not 2 <= operand.ty.ndim <= 4:
        raise Rejected(f"a table must have rank 2 to 4 and a known shape, got {operand.ty}")
    dims = list(operand.ty.shape.values)
    dims = [tirx.IntImm("int64", 1)] * (4 - len(dims)) + dims
    fits = same_dimension(dims[3], shape[3]) and (is_one(dims[0]) or same_dimension(dims[0], shape[0]))
    if fits and is_one(dims[1]) and same_dimension(dims[2], shape[2]):
        return dims[0], dims[2], True
    if fits and is_one(dims[2]) and same_dimension(dims[1], shape[1]):
        return dims[0], dims[1], False
    raise Rejected(f"a table must follow the positions of x {shape}, got {list(operand.ty.shape.values)}")


def _step(match: Match, expr: relax.Expr) -> tuple[relax.Expr, Callable[[relax.Expr], relax.Expr] | None] | None:
    """What `expr` is a view or a function of, and that function."""
    value = match.value(expr)
    name = op_name(value)
    if name in _MAPS:
        return value.args[0], getattr(relax.op, name.removeprefix("relax."))
    if name == "relax.multiply":
        number = number_of(match.value(value.args[1]))
        factor = None if number is None else relax.const(number, str(value.ty.dtype))
        return None if factor is None else (value.args[0], lambda x: relax.op.multiply(x, factor))
    if name in ("relax.concat", "relax.stack"):
        fields = match.value(value.args[0])
        parts = list(fields.fields) if isinstance(fields, relax.Tuple) else []
        # The same view is often written once for each member of a pair.
        values = [match.value(part) for part in parts]
        equal = parts and all(tvm_ffi.structural_equal(value, values[0]) for value in values)
        return (parts[0], None) if equal else None
    if is_view(name) and isinstance(value.args[0].ty.shape, relax.ShapeExpr):
        return value.args[0], None
    return None


def _spreads(match: Match, path: list, maps: dict, sizes: tuple, interleaved: bool) -> bool:
    """Whether path[0] is path[-1], read as [lead * length, d / 2], with every number at both members of its pair."""
    lead, length, width = sizes
    pair = np.arange(width) // 2 if interleaved else np.arange(width) % (width // 2)
    for probe in probes():
        try:
            arrays = _positions(match, path, maps, probe)
        except NoView:
            return False
        rows = size_of(lead, probe.sizes) * size_of(length, probe.sizes)
        if arrays[-1].size != rows * width // 2 or arrays[0].size != rows * width:
            return False
        if not (arrays[0].reshape(rows, width) == np.arange(rows)[:, None] * (width // 2) + pair).all():
            return False
    return True


def _positions(match: Match, path: list, maps: dict, probe: Probe) -> list[np.ndarray]:
    """Which element of path[-1] stands at each position of every tensor of the path."""
    shape = probe.shape(path[-1])
    array = np.arange(int(np.prod(shape))).reshape(shape)
    arrays = [array]
    for index in range(len(path) - 2, -1, -1):
        value, shape = match.value(path[index]), probe.shape(path[index])
        if index not in maps:
            if value.op.name in ("relax.concat", "relax.stack"):
                join = np.concatenate if value.op.name == "relax.concat" else np.stack
                array = join([array] * len(match.value(value.args[0]).fields), axis=int(value.attrs.axis))
            else:
                array = applied(value, array, shape)
        arrays.append(array)
    return arrays[::-1]


def _halved(data: np.ndarray, width: int, interleaved: bool) -> np.ndarray:
    """One number per pair of a constant that has two."""
    first, second = (
        (data[..., 0::2], data[..., 1::2]) if interleaved else (data[..., : width // 2], data[..., width // 2 :])
    )
    if not np.array_equal(first, second):
        raise Rejected("the constant tables differ between the members of a pair")
    return np.ascontiguousarray(first, dtype=np.float32)
