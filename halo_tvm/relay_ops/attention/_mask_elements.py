"""Each Relax operator's rule for one element of a mask.

A rule takes the reader that follows operands, the call and the index, and gives the element: a number, an integer
expression, a condition, a mask or a leaf; it raises `Unreadable` where no mask is known to use the operator so.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from tvm import ir, relax, sym, tirx

from ._conditions import HIDDEN, All, Leaf, Mask, Not, Unreadable, both, condition, either, hiding, negated, same
from .mathematics import INVISIBLE

if TYPE_CHECKING:
    from .masks import Reader


def _arange(reader: Reader, call: relax.Call, index: list) -> object:
    start, _, step = call.args
    return _prim(start) + index[0] * _prim(step)


def _prim(expr: relax.Expr) -> tirx.PrimExpr:
    return expr.value if hasattr(expr, "value") and not isinstance(expr, tirx.IntImm) else expr


def _reshape(reader: Reader, call: relax.Call, index: list) -> object:
    """The element at the same place in row order, its index in the old shape found among the positions at hand."""
    old, new = list(call.args[0].ty.shape.values), list(call.ty.shape.values)
    kept = [i for i, d in zip(index, new) if not reader.is_one(d)]
    sizes = [d for d in new if not reader.is_one(d)]
    wanted = [d for d in old if not reader.is_one(d)]
    if len(sizes) != len(wanted) or not all(reader.analyzer.can_prove_equal(a, b) for a, b in zip(sizes, wanted)):
        kept = reader.unflattened(reader.flattened(kept, sizes), wanted)
    left = iter(kept)
    return reader.at(call.args[0], [tirx.IntImm("int64", 0) if reader.is_one(d) else next(left) for d in old])


def _permute(reader: Reader, call: relax.Call, index: list) -> object:
    axes = list(range(len(index)))[::-1] if call.attrs.axes is None else [int(a) for a in call.attrs.axes]
    own = [None] * len(axes)
    for position, axis in enumerate(axes):
        own[axis] = index[position]
    return reader.at(call.args[0], own)


def _broadcast(reader: Reader, call: relax.Call, index: list) -> object:
    return reader.operand(call.args[0], index)


def _cast(reader: Reader, call: relax.Call, index: list) -> object:
    value, dtype = reader.at(call.args[0], index), str(call.ty.dtype)
    if dtype == "bool":
        return condition(value)
    if isinstance(value, Mask) and "float" not in dtype:
        raise Unreadable("an addend that is cast to integers")
    if isinstance(value, float) and "float" not in dtype:
        if not math.isfinite(value):
            raise Unreadable(f"{value} cast to integers")
        return int(value)
    if isinstance(value, Leaf):
        old = str(value.tensor.ty.dtype)
        if old != dtype and not reader.is_flag(value.tensor) and not _keeps_what_is_not_zero(old, dtype):
            raise Unreadable(f"a tensor of {old} cast to {dtype}, where what is not 0 may become 0")
    return value


def _keeps_what_is_not_zero(old: str, new: str) -> bool:
    """Whether a cast from `old` to `new`, both dtypes of numbers, makes no number 0 that was not."""
    old_bits, new_bits = (int(re.search(r"\d+", dtype).group()) for dtype in (old, new))
    if "float" in old:
        return "float" in new and new_bits > old_bits
    return "float" in new or new_bits >= old_bits


def _flag(reader: Reader, value: object) -> object:
    """The condition that `value`, a number computed with, is the 0 or the 1 of."""
    if isinstance(value, Leaf) and not reader.is_flag(value.tensor):
        raise Unreadable(f"a tensor of {value.tensor.ty.dtype} computed with as if it were 0 or 1")
    if isinstance(value, int | float) and value not in (0, 1):
        raise Unreadable(f"{value} computed with as if it were 0 or 1")
    return condition(value)


def _take(reader: Reader, call: relax.Call, index: list) -> object:
    data, at = call.args
    axis = int(call.attrs.axis) if call.attrs.axis is not None else 0
    rank = at.ty.ndim
    position = reader.at(at, index[axis : axis + rank])
    if isinstance(position, int):
        position = tirx.IntImm("int64", position)
    if not isinstance(position, ir.Expr):
        raise Unreadable("a gather by positions that are data")
    return reader.at(data, [*index[:axis], position, *index[axis + rank :]])


def _gather_nd(reader: Reader, call: relax.Call, index: list) -> object:
    data, at = call.args
    if int(call.attrs.batch_dims):
        raise Unreadable("a gather in batches")
    depth = int(at.ty.shape.values[-1])
    lead = index[: at.ty.ndim - 1]
    own = [reader.at(at, [*lead, tirx.IntImm("int64", k)]) for k in range(depth)]
    own = [tirx.IntImm("int64", o) if isinstance(o, int) else o for o in own]
    if not all(isinstance(o, ir.Expr) for o in own):
        raise Unreadable("a gather by positions that are data")
    return reader.at(data, [*own, *index[at.ty.ndim - 1 :]])


def _concat(reader: Reader, call: relax.Call, index: list) -> object:
    axis = int(call.attrs.axis)
    axis += len(index) if axis < 0 else 0
    at = index[axis]
    if not isinstance(at, tirx.IntImm):
        raise Unreadable("a concatenation along positions")
    offset = int(at)
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else reader.lookup(call.args[0]).fields
    for part in fields:
        size = part.ty.shape.values[axis]
        if not isinstance(size, tirx.IntImm):
            raise Unreadable("a concatenation of parts of unknown size")
        if offset < int(size):
            return reader.at(part, [*index[:axis], tirx.IntImm("int64", offset), *index[axis + 1 :]])
        offset -= int(size)
    raise Unreadable("an index behind a concatenation")


def _slice(reader: Reader, call: relax.Call, index: list) -> object:
    def numbers(expr: relax.Expr) -> list[tirx.PrimExpr]:
        value = reader.lookup(expr)
        return [_prim(f) for f in value.fields] if isinstance(value, relax.Tuple) else list(value.values)

    axes = [int(a) for a in numbers(call.args[1])]
    begins = numbers(call.args[2])
    steps = numbers(call.args[4]) if len(call.args) > 4 else [tirx.IntImm("int64", 1)] * len(axes)
    own = list(index)
    for axis, begin, step in zip(axes, begins, steps):
        if not sym.Analyzer().can_prove(begin >= 0) or not isinstance(step, tirx.IntImm) or step.value < 1:
            raise Unreadable("a slice from the end")
        own[axis] = index[axis] * step + begin
    return reader.at(call.args[0], own)


def _triangle(lower: bool):
    def rule(reader: Reader, call: relax.Call, index: list) -> object:
        k = _prim(call.args[1]) if len(call.args) > 1 else tirx.IntImm("int64", 0)
        inside = index[-1] <= index[-2] + k if lower else index[-1] >= index[-2] + k
        value = reader.at(call.args[0], index)
        if isinstance(value, float | int) and not isinstance(value, bool) and value <= HIDDEN:
            return Mask(negated(All((inside,))))  # hidden inside, 0 outside
        return both(All((inside,)), _flag(reader, value))

    return rule


def _full(reader: Reader, call: relax.Call, index: list) -> object:
    return reader.at(call.args[1], [])


def _filled(value: int):
    return lambda reader, call, index: (
        float(value) if "float" in str(call.ty.dtype) else (bool(value) if str(call.ty.dtype) == "bool" else value)
    )


def _compare(make):
    def rule(reader: Reader, call: relax.Call, index: list) -> object:
        a, b = (reader.operand(arg, index) for arg in call.args)
        if isinstance(a, int | ir.Expr) and isinstance(b, int | ir.Expr) and not isinstance(a, bool):
            if isinstance(a, int) and isinstance(b, int):
                return bool(make(tirx.IntImm("int64", a), b))
            made = make(tirx.IntImm("int64", a) if isinstance(a, int) else a, b)
            simplified = reader.analyzer.simplify(made)
            return bool(simplified.value) if isinstance(simplified, tirx.IntImm) else All((simplified,))
        raise Unreadable("a comparison of data")

    return rule


def _equal(opposite: bool):
    positions = _compare((lambda a, b: a != b) if opposite else (lambda a, b: a.equal(b)))

    def rule(reader: Reader, call: relax.Call, index: list) -> object:
        a, b = (reader.operand(arg, index) for arg in call.args)
        if all(isinstance(x, bool | int | float) for x in (a, b)):
            return (a != b) if opposite else (a == b)
        if isinstance(a, Leaf | All | Not) and isinstance(b, bool | int | float):
            holds = condition(a) if bool(b) else negated(a)
            is_flag = str(call.args[0].ty.dtype) == "bool"
            if b not in (0, 1) or (b == 1 and not is_flag and isinstance(a, Leaf)):
                raise Unreadable("a comparison of data")
            return negated(holds) if opposite else holds
        return positions(reader, call, index)

    return rule


def _logic(combine):
    return lambda reader, call, index: combine(*(reader.operand(arg, index) for arg in call.args))


def _bitwise(combine):
    """On bits of integers: of 0 and 1 as on conditions, but for ~1, which is not 0."""

    def rule(reader: Reader, call: relax.Call, index: list) -> object:
        if str(call.ty.dtype) != "bool" and combine is negated:
            raise Unreadable("the bits of an integer inverted")
        return combine(*(_flag(reader, reader.operand(arg, index)) for arg in call.args))

    return rule


def _where(reader: Reader, call: relax.Call, index: list) -> object:
    test = reader.operand(call.args[0], index)
    if isinstance(test, bool):
        return reader.operand(call.args[1 if test else 2], index)
    test = condition(test)
    if test == All(()):
        return reader.operand(call.args[1], index)
    if test == Not(All(())):
        return reader.operand(call.args[2], index)
    a, b = (reader.operand(arg, index) for arg in call.args[1:])
    if str(call.ty.dtype) == "bool":
        if b is False:
            return both(test, a)
        if a is False:
            return both(negated(test), b)
        raise Unreadable("a selection of conditions")
    if "float" not in str(call.ty.dtype):
        # x < 0 ? x + n : x, as negative indices are made positive; positions are not negative
        if isinstance(a, ir.Expr | int) and isinstance(b, ir.Expr | int):
            raise Unreadable("a selection of positions that depends on data")
        raise Unreadable("a selection of numbers")
    if isinstance(b, float | int) and b <= HIDDEN:
        return Mask(both(test, _hiding_where(test, a)))
    if isinstance(a, float | int) and a <= HIDDEN:
        return Mask(both(negated(test), _hiding_where(negated(test), b)))
    raise Unreadable("a selection of numbers of which none is large and negative")


def _hiding_where(test: object, addend: object) -> object:
    """`hiding` of an addend that only counts where `test` holds: what is 0 or not as `test` does not or does is 0."""
    if isinstance(addend, Leaf | All | Not) and same(negated(addend), test):
        return All(())
    return hiding(addend)


def _add(reader: Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    if all(isinstance(x, int | ir.Expr) for x in (a, b)):
        return a + b
    return Mask(both(hiding(a), hiding(b)))


def _subtract(reader: Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    if all(isinstance(x, int | ir.Expr) for x in (a, b)):
        return a - b
    if isinstance(a, int | float) and a == 1 and isinstance(b, Leaf | All | Not):
        return negated(_flag(reader, b))
    raise Unreadable("a difference of numbers")


def _multiply(reader: Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    for x, y in ((a, b), (b, a)):
        if isinstance(y, float | int) and not isinstance(y, bool) and y <= HIDDEN and isinstance(x, Leaf | All | Not):
            return Mask(negated(_flag(reader, x)))
        if isinstance(x, Mask) and isinstance(y, All | Leaf):
            # -large * condition: hidden where both hold
            return Mask(either(x.visible, negated(_flag(reader, y))))
    if all(isinstance(x, Leaf | All | Not) for x in (a, b)):
        return both(_flag(reader, a), _flag(reader, b))
    if all(isinstance(x, int | ir.Expr) for x in (a, b)):
        return a * b
    raise Unreadable("a product of numbers")


def _negative(reader: Reader, call: relax.Call, index: list) -> object:
    value = reader.at(call.args[0], index)
    if isinstance(value, int | float | ir.Expr) and not isinstance(value, bool):
        return -value
    raise Unreadable("a negated condition")


def _minimum(reader: Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    return Mask(both(hiding(a), hiding(b)))


def _maximum(reader: Reader, call: relax.Call, index: list) -> object:
    """max(mask, lowest number): what keeps -inf out."""
    a, b = (reader.operand(arg, index) for arg in call.args)
    for x, y in ((a, b), (b, a)):
        if isinstance(y, float) and y <= INVISIBLE:
            return x
    raise Unreadable("a maximum of numbers")


RULES = {
    "relax.arange": _arange,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.permute_dims": _permute,
    "relax.broadcast_to": _broadcast,
    "relax.astype": _cast,
    "relax.take": _take,
    "relax.gather_nd": _gather_nd,
    "relax.concat": _concat,
    "relax.strided_slice": _slice,
    "relax.tril": _triangle(True),
    "relax.triu": _triangle(False),
    "relax.full": _full,
    "relax.zeros": _filled(0),
    "relax.ones": _filled(1),
    "relax.less": _compare(lambda a, b: a < b),
    "relax.less_equal": _compare(lambda a, b: a <= b),
    "relax.greater": _compare(lambda a, b: a > b),
    "relax.greater_equal": _compare(lambda a, b: a >= b),
    "relax.equal": _equal(False),
    "relax.not_equal": _equal(True),
    "relax.logical_and": _logic(both),
    "relax.bitwise_and": _bitwise(both),
    "relax.logical_or": _logic(either),
    "relax.bitwise_or": _bitwise(either),
    "relax.logical_not": _logic(negated),
    "relax.bitwise_not": _bitwise(negated),
    "relax.where": _where,
    "relax.add": _add,
    "relax.subtract": _subtract,
    "relax.multiply": _multiply,
    "relax.negative": _negative,
    "relax.minimum": _minimum,
    "relax.maximum": _maximum,
}
