"""What a mask means: the expression of one element, read as conditions on query and key positions.

    causality     j <= i + c        a window      j > i + c - w        padding      mask[b, j]
An exporter may spell these by ranges, triangles, comparisons, gathers, products with large negative numbers and
selections. `read_bias` follows the element [b, h, i, j] of an additive mask back through such operators; what it
cannot read stays a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, sym, tirx

from .._views import Lookup
from .mathematics import INVISIBLE

_HIDDEN = -1e9  # an addend at or below it hides a key, as exporters write it (-10000 is too weak to be one)
_DEEPEST = 64


class Unreadable(Exception):
    """An operator, or a combination of conditions, that no mask is known to use."""


@dataclass(frozen=True)
class Meaning:
    """A mask in the terms of `halo.attention`."""

    causal: bool
    window: int
    key_masks: tuple[relax.Expr, ...]  # [b, t] each; 0 in any of them hides the key


@dataclass(frozen=True)
class _Leaf:
    """One element of a tensor that is read no further; equal when tensor and index are."""

    tensor: relax.Expr
    index: tuple[tirx.PrimExpr, ...]


@dataclass(frozen=True)
class _All:
    """Conjunction of comparisons of positions (boolean expressions) and of tensors whose element must not be 0."""

    parts: tuple[object, ...]


@dataclass(frozen=True)
class _Not:
    part: object


@dataclass(frozen=True)
class _Mask:
    """An addend that is 0 where `visible` holds and hides the key elsewhere."""

    visible: object


def read_bias(bias: relax.Expr, scores: Sequence[tirx.PrimExpr], lookup: Lookup) -> Meaning:
    """The meaning of an additive mask that broadcasts to `scores` [b, h, s, t]; `Unreadable` says what is not known."""
    reader = _Reader(lookup, scores)
    dims = bias.ty.shape.values
    index = [
        tirx.IntImm("int64", 0) if reader.is_one(dim) else var
        for dim, var in zip(dims, reader.index[len(reader.index) - len(dims) :])
    ]
    return reader.meaning(reader.hiding(reader.at(bias, index)))


class _Reader:
    def __init__(self, lookup: Lookup, scores: Sequence[tirx.PrimExpr]) -> None:
        self._lookup = lookup
        self.analyzer = sym.Analyzer()
        self._scores = list(scores)
        self.index = [tirx.Var(name, "int64") for name in ("b", "h", "i", "j")]
        for var, extent in zip(self.index, scores):
            self.analyzer.bind(var, ir.Range(0, extent))
        self._depth = 0

    def is_one(self, dim: tirx.PrimExpr) -> bool:
        return isinstance(dim, tirx.IntImm) and dim.value == 1

    # One element.

    def at(self, expr: relax.Expr, index: Sequence[tirx.PrimExpr]) -> object:
        """The element of `expr` at `index`: a number, an integer expression, a condition, a mask or a leaf."""
        value = self._lookup(expr)
        if isinstance(value, ir.GenericConst):
            return self._constant(value, index)
        if not (isinstance(value, relax.Call) and isinstance(value.op, ir.Op)):
            return _Leaf(expr, tuple(self.analyzer.simplify(i) for i in index))
        rule = _RULES.get(value.op.name)
        if rule is None:
            if value.op.name == "relax.call_tir":
                raise Unreadable(f"the kernel {value.args[0].name_hint}")
            return _Leaf(expr, tuple(self.analyzer.simplify(i) for i in index))
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable("the mask is made of too many operators")
        # However it is made: one condition for each key hides that key.
        of_keys = str(value.ty.dtype) == "bool" and self._of_keys(expr, index)
        try:
            read = rule(self, value, list(index))
            alien = of_keys and any(not self._of_keys(leaf.tensor, leaf.index) for leaf in _leaves(read))
            return _Leaf(expr, tuple(index)) if alien else read
        except Unreadable:
            if of_keys:
                return _Leaf(expr, tuple(index))
            raise
        finally:
            self._depth -= 1

    def _of_keys(self, tensor: relax.Expr, index: Sequence[tirx.PrimExpr]) -> bool:
        """Whether `tensor`, read at `index`, has one element for each key, of each batch or of all."""
        if not isinstance(tensor.ty.shape, relax.ShapeExpr):
            return False
        found = [(i, d) for i, d in zip(index, tensor.ty.shape.values) if not self.is_one(d)]
        wanted = [(self.index[0], self._scores[0]), (self.index[3], self._scores[3])]
        same = self.analyzer.can_prove_equal
        return any(
            len(found) == len(w) and all(same(a, c) and same(b, d) for (a, b), (c, d) in zip(found, w))
            for w in (wanted, wanted[1:])
        )

    def operand(self, expr: relax.Expr, index: Sequence[tirx.PrimExpr]) -> object:
        """The element of a broadcasting operand at the index of the result."""
        if not isinstance(expr.ty.shape, relax.ShapeExpr):
            raise Unreadable("a part of the mask has no known shape")
        dims = expr.ty.shape.values
        own = list(index)[len(index) - len(dims) :]
        return self.at(expr, [tirx.IntImm("int64", 0) if self.is_one(d) else i for d, i in zip(dims, own)])

    def _constant(self, value: ir.GenericConst, index: Sequence[tirx.PrimExpr]) -> object:
        data = value.value.numpy()
        if data.size == 0:
            raise Unreadable("an empty constant")
        first = data.reshape(-1)[0]
        if data.size == 1 or (data == first).all():
            return bool(first) if data.dtype == bool else (int(first) if data.dtype.kind in "iu" else float(first))
        axes = [axis for axis, size in enumerate(data.shape) if size > 1]
        if len(axes) == 2:
            return self._matrix(data.reshape([data.shape[axis] for axis in axes]), *(index[axis] for axis in axes))
        if data.dtype.kind in "iu" and (np.array(data.shape) > 1).sum() == 1:
            axis = int(np.argmax(data.shape))
            if np.array_equal(data.reshape(-1), np.arange(data.size)):
                return index[axis]
        raise Unreadable(f"a constant of shape {list(data.shape)}")

    def _matrix(self, data: np.ndarray, row: tirx.PrimExpr, column: tirx.PrimExpr) -> object:
        """A constant of rows and columns whose diagonals are either all 0 or all not."""
        if data.dtype.kind in "biu":
            return self._band(data != 0, row, column)
        hidden = data <= _HIDDEN
        if not (hidden | (data == 0)).all():
            raise Unreadable("a constant of other numbers than 0 and large negative ones")
        return _Mask(self._band(~hidden, row, column))

    def _band(self, holds: np.ndarray, row: tirx.PrimExpr, column: tirx.PrimExpr) -> object:
        distance = np.arange(holds.shape[1])[None] - np.arange(holds.shape[0])[:, None]
        for negated in (False, True):
            inside = holds != negated
            low, high = (int(f(distance[inside])) for f in (np.min, np.max))
            if np.array_equal(inside, (distance >= low) & (distance <= high)):
                parts = [column - row <= high] if high < distance.max() else []
                parts += [column - row >= low] if low > distance.min() else []
                return self.negated(_All(tuple(parts))) if negated else _All(tuple(parts))
        raise Unreadable("a constant that is neither causality nor a window")

    def flattened(self, index: Sequence[tirx.PrimExpr], sizes: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
        """The position in row order."""
        flat = tirx.IntImm("int64", 0)
        for at, size in zip(index, sizes):
            flat = flat * size + at
        return self.analyzer.simplify(flat)

    def unflattened(self, flat: tirx.PrimExpr, sizes: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
        """The index behind a position in row order, each part of it one of b, h, i, j or 0."""
        found = []
        for axis in range(len(sizes) - 1):
            stride = tirx.IntImm("int64", 1)
            for size in sizes[axis + 1 :]:
                stride = stride * size
            for part in (*self.index, tirx.IntImm("int64", 0)):
                rest = self.analyzer.simplify(flat - part * stride)
                if self.analyzer.can_prove(rest >= 0) and self.analyzer.can_prove(rest < stride):
                    found.append(part)
                    flat = rest
                    break
            else:
                raise Unreadable("a reshape that mixes axes")
        return [*found, flat]

    # Conditions.

    def condition(self, value: object) -> object:
        """`value` as a condition: what is not 0 holds."""
        if isinstance(value, bool | int | float):
            return _All(()) if value else _Not(_All(()))
        if isinstance(value, _All | _Not):
            return value
        if isinstance(value, _Leaf):
            return _All((value,))
        if isinstance(value, tirx.PrimExpr | ir.Expr) and str(value.dtype) == "bool":
            return _All((value,))
        raise Unreadable("a number that stands for a condition")

    def negated(self, value: object) -> object:
        value = self.condition(value)
        if isinstance(value, _Not):
            return value.part
        if isinstance(value, _All) and len(value.parts) == 1 and isinstance(value.parts[0], _Not):
            return value.parts[0].part
        return _Not(value)

    def both(self, a: object, b: object) -> object:
        a, b = self.condition(a), self.condition(b)
        left = a.parts if isinstance(a, _All) else (a,)
        right = b.parts if isinstance(b, _All) else (b,)
        return _All((*left, *right))

    def either(self, a: object, b: object) -> object:
        a, b = self.condition(a), self.condition(b)
        if _All(()) in (a, b):
            return _All(())
        if a == _Not(_All(())):
            return b
        if b == _Not(_All(())):
            return a
        if isinstance(a, _Not) and isinstance(b, _Not):
            return _Not(self.both(a.part, b.part))
        raise Unreadable("alternatives of conditions")

    def hiding(self, value: object) -> object:
        """The condition under which the addend `value` is 0; elsewhere it hides the key."""
        if isinstance(value, _Mask):
            return value.visible
        if isinstance(value, int | float) and not isinstance(value, bool):
            if value == 0:
                return _All(())
            if value <= _HIDDEN:
                return _Not(_All(()))
        raise Unreadable("an addend that is neither 0 nor large and negative")

    def meaning(self, visible: object) -> Meaning:
        parts = list(visible.parts) if isinstance(visible, _All) else [visible]
        causal, window, key_masks = False, 0, []
        flat: list[object] = []
        while parts:
            part = parts.pop()
            if isinstance(part, _All):
                parts.extend(part.parts)
            elif isinstance(part, _Not):
                flat.append(self._opposite(part.part))
            else:
                flat.append(part)
        shift = self.analyzer.simplify(self._scores[3] - self._scores[2])
        for part in flat:
            if isinstance(part, _Leaf):
                if not any(part.tensor.same_as(other) for other in key_masks):
                    key_masks.append(part.tensor)
                    self._check_key_mask(part)
                continue
            part = self.analyzer.simplify(part)
            if isinstance(part, tirx.IntImm) and part.value:
                continue
            low, high = self._bounds(part)
            if high is not None:  # j - i <= high
                if not self.analyzer.can_prove_equal(high, shift):
                    raise Unreadable(f"keys up to {_shown(high)} behind the query, expected up to {_shown(shift)}")
                causal = True
            if low is not None:  # j - i >= low
                width = self.analyzer.simplify(shift - low + 1)
                if not isinstance(width, tirx.IntImm) or width.value < 1 or window not in (0, width.value):
                    raise Unreadable(f"a window of {_shown(width)} keys")
                window = int(width.value)
        return Meaning(causal, window, tuple(self._key_mask(tensor) for tensor in key_masks))

    def _opposite(self, part: object) -> object:
        if isinstance(part, _All) and len(part.parts) == 1:
            part = part.parts[0]
        if isinstance(part, _Not):
            return part.part
        if isinstance(part, ir.Expr):
            return self.analyzer.simplify(tirx.Not(part))
        raise Unreadable("the opposite of a condition")

    def _check_key_mask(self, leaf: _Leaf) -> None:
        if self._of_keys(leaf.tensor, leaf.index):
            return
        dims = leaf.tensor.ty.shape.values
        at_key = len(leaf.index) == 2 and self.analyzer.can_prove_equal(leaf.index[1], self.index[3])
        if at_key and self.analyzer.can_prove_equal(leaf.index[0], self.index[0]):
            sizes = f"{list(dims)}, expected {[self._scores[0], self._scores[3]]}"
            raise Unreadable(f"a padding mask of another batch size or length: {sizes}")
        raise Unreadable(f"a tensor read at {list(leaf.index)}, expected [batch, key]")

    def _key_mask(self, tensor: relax.Expr) -> relax.Expr:
        """A tensor that `_of_keys` accepts as [b, t]."""
        dims = [d for d in tensor.ty.shape.values if not self.is_one(d)]
        batch, keys = self._scores[0], self._scores[3]
        whole = len(dims) == 2 or self.is_one(batch)
        if tensor.ty.ndim != 2 or not whole:
            dtype = str(tensor.ty.dtype)
            tensor = tensor if dtype == "bool" else relax.op.not_equal(tensor, relax.const(0, dtype))
            tensor = relax.op.reshape(tensor, [batch if whole else 1, keys])
        return tensor if whole else relax.op.broadcast_to(tensor, [batch, keys])

    def _bounds(self, part: tirx.PrimExpr) -> tuple[tirx.PrimExpr | None, tirx.PrimExpr | None]:
        """A comparison as bounds of j - i, both included."""
        i, j = self.index[2], self.index[3]
        kinds = {tirx.LE: (0, 0), tirx.LT: (-1, 0), tirx.GE: (0, 1), tirx.GT: (1, 1)}
        for kind, (step, lower) in kinds.items():
            if isinstance(part, kind):
                # a - b <= 0 with a - b = sign * (j - i) + rest
                difference = self.analyzer.simplify(part.a - part.b)
                for sign in (1, -1):
                    rest = self.analyzer.simplify(difference - sign * (j - i))
                    if not _mentions(rest, (i, j, self.index[0], self.index[1])):
                        bound = self.analyzer.simplify(step - rest if sign == 1 else rest - step)
                        upper = (sign == 1) != bool(lower)
                        return (None, bound) if upper else (bound, None)
        raise Unreadable(f"the condition {part}")


def _shown(size: tirx.PrimExpr) -> str:
    return str(int(size)) if isinstance(size, tirx.IntImm) else str(size)


def _leaves(value: object) -> list[_Leaf]:
    if isinstance(value, _All):
        return [leaf for part in value.parts for leaf in _leaves(part)]
    return _leaves(value.part) if isinstance(value, _Not) else [value] if isinstance(value, _Leaf) else []


def _mentions(expr: tirx.PrimExpr, variables: Sequence[tirx.Var]) -> bool:
    import tvm_ffi

    found = False

    def visit(var: tirx.Var) -> None:
        nonlocal found
        found = found or any(var.same_as(v) for v in variables)

    tvm_ffi.structural_walk(expr, (tirx.Var, visit))
    return found


# Operators.


def _arange(reader: _Reader, call: relax.Call, index: list) -> object:
    start, _, step = call.args
    return _prim(start) + index[0] * _prim(step)


def _prim(expr: relax.Expr) -> tirx.PrimExpr:
    return expr.value if hasattr(expr, "value") and not isinstance(expr, tirx.IntImm) else expr


def _reshape(reader: _Reader, call: relax.Call, index: list) -> object:
    """The element at the same place in row order, its index in the old shape found among the positions at hand."""
    old, new = list(call.args[0].ty.shape.values), list(call.ty.shape.values)
    kept = [i for i, d in zip(index, new) if not reader.is_one(d)]
    sizes = [d for d in new if not reader.is_one(d)]
    wanted = [d for d in old if not reader.is_one(d)]
    if len(sizes) != len(wanted) or not all(reader.analyzer.can_prove_equal(a, b) for a, b in zip(sizes, wanted)):
        kept = reader.unflattened(reader.flattened(kept, sizes), wanted)
    left = iter(kept)
    return reader.at(call.args[0], [tirx.IntImm("int64", 0) if reader.is_one(d) else next(left) for d in old])


def _permute(reader: _Reader, call: relax.Call, index: list) -> object:
    axes = list(range(len(index)))[::-1] if call.attrs.axes is None else [int(a) for a in call.attrs.axes]
    own = [None] * len(axes)
    for position, axis in enumerate(axes):
        own[axis] = index[position]
    return reader.at(call.args[0], own)


def _broadcast(reader: _Reader, call: relax.Call, index: list) -> object:
    return reader.operand(call.args[0], index)


def _cast(reader: _Reader, call: relax.Call, index: list) -> object:
    value = reader.at(call.args[0], index)
    if str(call.ty.dtype) == "bool":
        return reader.condition(value)
    return value


def _take(reader: _Reader, call: relax.Call, index: list) -> object:
    data, at = call.args
    axis = int(call.attrs.axis) if call.attrs.axis is not None else 0
    rank = at.ty.ndim
    position = reader.at(at, index[axis : axis + rank])
    if isinstance(position, int):
        position = tirx.IntImm("int64", position)
    if not isinstance(position, ir.Expr):
        raise Unreadable("a gather by positions that are data")
    return reader.at(data, [*index[:axis], position, *index[axis + rank :]])


def _gather_nd(reader: _Reader, call: relax.Call, index: list) -> object:
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


def _concat(reader: _Reader, call: relax.Call, index: list) -> object:
    axis = int(call.attrs.axis)
    axis += len(index) if axis < 0 else 0
    at = index[axis]
    if not isinstance(at, tirx.IntImm):
        raise Unreadable("a concatenation along positions")
    offset = int(at)
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else reader._lookup(call.args[0]).fields
    for part in fields:
        size = part.ty.shape.values[axis]
        if not isinstance(size, tirx.IntImm):
            raise Unreadable("a concatenation of parts of unknown size")
        if offset < int(size):
            return reader.at(part, [*index[:axis], tirx.IntImm("int64", offset), *index[axis + 1 :]])
        offset -= int(size)
    raise Unreadable("an index behind a concatenation")


def _slice(reader: _Reader, call: relax.Call, index: list) -> object:
    def numbers(expr: relax.Expr) -> list[tirx.PrimExpr]:
        value = reader._lookup(expr)
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
    def rule(reader: _Reader, call: relax.Call, index: list) -> object:
        k = _prim(call.args[1]) if len(call.args) > 1 else tirx.IntImm("int64", 0)
        inside = index[-1] <= index[-2] + k if lower else index[-1] >= index[-2] + k
        value = reader.at(call.args[0], index)
        if isinstance(value, float | int) and not isinstance(value, bool) and value <= _HIDDEN:
            return _Mask(reader.negated(_All((inside,))))  # hidden inside, 0 outside
        return reader.both(_All((inside,)), value)

    return rule


def _full(reader: _Reader, call: relax.Call, index: list) -> object:
    return reader.at(call.args[1], [])


def _filled(value: int):
    return lambda reader, call, index: (
        float(value) if "float" in str(call.ty.dtype) else (bool(value) if str(call.ty.dtype) == "bool" else value)
    )


def _compare(make):
    def rule(reader: _Reader, call: relax.Call, index: list) -> object:
        a, b = (reader.operand(arg, index) for arg in call.args)
        if isinstance(a, int | ir.Expr) and isinstance(b, int | ir.Expr) and not isinstance(a, bool):
            if isinstance(a, int) and isinstance(b, int):
                return bool(make(tirx.IntImm("int64", a), b))
            made = make(tirx.IntImm("int64", a) if isinstance(a, int) else a, b)
            simplified = reader.analyzer.simplify(made)
            return bool(simplified.value) if isinstance(simplified, tirx.IntImm) else _All((simplified,))
        raise Unreadable("a comparison of data")

    return rule


def _equal(negated: bool):
    positions = _compare((lambda a, b: a != b) if negated else (lambda a, b: a.equal(b)))

    def rule(reader: _Reader, call: relax.Call, index: list) -> object:
        a, b = (reader.operand(arg, index) for arg in call.args)
        if all(isinstance(x, bool | int | float) for x in (a, b)):
            return (a != b) if negated else (a == b)
        if isinstance(a, _Leaf | _All | _Not) and isinstance(b, bool | int | float):
            holds = reader.condition(a) if bool(b) else reader.negated(a)
            is_flag = str(call.args[0].ty.dtype) == "bool"
            if b not in (0, 1) or (b == 1 and not is_flag and isinstance(a, _Leaf)):
                raise Unreadable("a comparison of data")
            return reader.negated(holds) if negated else holds
        return positions(reader, call, index)

    return rule


def _logic(combine):
    return lambda reader, call, index: combine(reader, *(reader.operand(arg, index) for arg in call.args))


def _where(reader: _Reader, call: relax.Call, index: list) -> object:
    test = reader.operand(call.args[0], index)
    if isinstance(test, bool):
        return reader.operand(call.args[1 if test else 2], index)
    test = reader.condition(test)
    if test == _All(()):
        return reader.operand(call.args[1], index)
    if test == _Not(_All(())):
        return reader.operand(call.args[2], index)
    a, b = (reader.operand(arg, index) for arg in call.args[1:])
    if str(call.ty.dtype) == "bool":
        if b is False:
            return reader.both(test, a)
        if a is False:
            return reader.both(reader.negated(test), b)
        raise Unreadable("a selection of conditions")
    if "float" not in str(call.ty.dtype):
        # x < 0 ? x + n : x, as negative indices are made positive; positions are not negative
        if isinstance(a, ir.Expr | int) and isinstance(b, ir.Expr | int):
            raise Unreadable("a selection of positions that depends on data")
        raise Unreadable("a selection of numbers")
    if isinstance(b, float | int) and b <= _HIDDEN:
        return _Mask(reader.both(test, reader.hiding(a)))
    if isinstance(a, float | int) and a <= _HIDDEN:
        return _Mask(reader.both(reader.negated(test), reader.hiding(b)))
    raise Unreadable("a selection of numbers of which none is large and negative")


def _add(reader: _Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    if all(isinstance(x, int | ir.Expr) for x in (a, b)):
        return a + b
    return _Mask(reader.both(reader.hiding(a), reader.hiding(b)))


def _subtract(reader: _Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    if all(isinstance(x, int | ir.Expr) for x in (a, b)):
        return a - b
    if isinstance(a, int | float) and a == 1 and isinstance(b, _Leaf | _All | _Not):
        return reader.negated(b)
    raise Unreadable("a difference of numbers")


def _multiply(reader: _Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    for x, y in ((a, b), (b, a)):
        if (
            isinstance(y, float | int)
            and not isinstance(y, bool)
            and y <= _HIDDEN
            and isinstance(x, _Leaf | _All | _Not)
        ):
            return _Mask(reader.negated(x))
        if isinstance(x, _Mask) and isinstance(y, _All | _Leaf):
            # -large * condition: hidden where both hold
            return _Mask(reader.either(x.visible, reader.negated(y)))
    if all(isinstance(x, _Leaf | _All | _Not) for x in (a, b)):
        return reader.both(a, b)
    if all(isinstance(x, int | ir.Expr) for x in (a, b)):
        return a * b
    raise Unreadable("a product of numbers")


def _negative(reader: _Reader, call: relax.Call, index: list) -> object:
    value = reader.at(call.args[0], index)
    if isinstance(value, int | float | ir.Expr) and not isinstance(value, bool):
        return -value
    raise Unreadable("a negated condition")


def _minimum(reader: _Reader, call: relax.Call, index: list) -> object:
    a, b = (reader.operand(arg, index) for arg in call.args)
    return _Mask(reader.both(reader.hiding(a), reader.hiding(b)))


def _maximum(reader: _Reader, call: relax.Call, index: list) -> object:
    """max(mask, lowest number): what keeps -inf out."""
    a, b = (reader.operand(arg, index) for arg in call.args)
    for x, y in ((a, b), (b, a)):
        if isinstance(y, float) and y <= INVISIBLE:
            return x
    raise Unreadable("a maximum of numbers")


_RULES = {
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
    "relax.logical_and": _logic(lambda reader, a, b: reader.both(a, b)),
    "relax.bitwise_and": _logic(lambda reader, a, b: reader.both(a, b)),
    "relax.logical_or": _logic(lambda reader, a, b: reader.either(a, b)),
    "relax.bitwise_or": _logic(lambda reader, a, b: reader.either(a, b)),
    "relax.logical_not": _logic(lambda reader, a: reader.negated(a)),
    "relax.bitwise_not": _logic(lambda reader, a: reader.negated(a)),
    "relax.where": _where,
    "relax.add": _add,
    "relax.subtract": _subtract,
    "relax.multiply": _multiply,
    "relax.negative": _negative,
    "relax.minimum": _minimum,
    "relax.maximum": _maximum,
}
