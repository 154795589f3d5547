"""What a mask means: the expression of one element, read as conditions on query and key positions.

    causality     j <= i + c        a window      j > i + c - w        padding      mask[b, j]
An exporter may spell these by ranges, triangles, comparisons, gathers, products with large negative numbers and
selections. `read_bias` follows the element [b, h, i, j] of an additive mask back through such operators; what it
cannot read stays a bias.

Comparisons, tensors of bool and casts of both are conditions, and 0 or 1 where they are computed with. So is an int32
or int64 input of the model, by the contract of such inputs: an integer mask counts as 0 or not 0, in `1 - mask` and
`mask * large`, too. Any other number is a condition only where it is compared with 0 or cast to bool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, sym, tirx

from ...dimensions import text_of
from .._views import Lookup
from ._conditions import HIDDEN, All, Leaf, Mask, Not, Unreadable, core, hiding, negated
from ._mask_elements import RULES
from .signature import MASK_DTYPES

_DEEPEST = 64


@dataclass(frozen=True)
class Meaning:
    """A mask in the terms of `halo.attention`."""

    causal: bool
    window: int
    key_masks: tuple[relax.Expr, ...]  # [b, t] each; 0 in any of them hides the key


def read_bias(
    bias: relax.Expr, scores: Sequence[tirx.PrimExpr], lookup: Lookup, is_input: Callable[[relax.Expr], bool]
) -> Meaning:
    """The meaning of an additive mask that broadcasts to `scores` [b, h, s, t]; `Unreadable` says what is not known."""
    reader = Reader(lookup, scores, is_input)
    dims = bias.ty.shape.values
    index = [
        tirx.IntImm("int64", 0) if reader.is_one(dim) else var
        for dim, var in zip(dims, reader.index[len(reader.index) - len(dims) :])
    ]
    return reader.meaning(hiding(reader.at(bias, index)))


class Reader:
    """Follows elements of tensors back to the positions b, h, i and j, and says what the conditions found mean."""

    def __init__(self, lookup: Lookup, scores: Sequence[tirx.PrimExpr], is_input: Callable[[relax.Expr], bool]) -> None:
        self.lookup = lookup
        self._is_input = is_input
        self.analyzer = sym.Analyzer()
        self._scores = list(scores)
        self.index = [tirx.Var(name, "int64") for name in ("b", "h", "i", "j")]
        for var, extent in zip(self.index, scores):
            self.analyzer.bind(var, ir.Range(0, extent))
        self._depth = 0

    def is_one(self, dim: tirx.PrimExpr) -> bool:
        return isinstance(dim, tirx.IntImm) and dim.value == 1

    def is_flag(self, tensor: relax.Expr) -> bool:
        """Whether the elements of `tensor`, which is read no further, are 0 or 1, an input's by contract."""
        dtype = str(tensor.ty.dtype)
        return dtype == "bool" or (dtype in ("int32", "int64") and self._is_input(tensor))

    # One element.

    def at(self, expr: relax.Expr, index: Sequence[tirx.PrimExpr]) -> object:
        """The element of `expr` at `index`: a number, an integer expression, a condition, a mask or a leaf."""
        value = self.lookup(expr)
        if isinstance(value, ir.GenericConst):
            return self._constant(value, index)
        if not (isinstance(value, relax.Call) and isinstance(value.op, ir.Op)):
            return Leaf(expr, tuple(self.analyzer.simplify(i) for i in index))
        rule = RULES.get(value.op.name)
        if rule is None:
            if value.op.name == "relax.call_tir":
                raise Unreadable(f"the kernel {value.args[0].name_hint}")
            return Leaf(expr, tuple(self.analyzer.simplify(i) for i in index))
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable("the mask is made of too many operators")
        # However it is made: one condition for each key hides that key.
        of_keys = str(value.ty.dtype) == "bool" and self._of_keys(expr, index)
        try:
            read = rule(self, value, list(index))
            alien = of_keys and any(not self._of_keys(leaf.tensor, leaf.index) for leaf in _leaves(read))
            return Leaf(expr, tuple(index)) if alien else read
        except Unreadable:
            if of_keys:
                return Leaf(expr, tuple(index))
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
            if not np.isin(data, (0, 1)).all():
                raise Unreadable("a constant of other integers than 0 and 1")
            return self._band(data != 0, row, column)
        hidden = data <= HIDDEN
        if not (hidden | (data == 0)).all():
            raise Unreadable("a constant of other numbers than 0 and large negative ones")
        return Mask(self._band(~hidden, row, column))

    def _band(self, holds: np.ndarray, row: tirx.PrimExpr, column: tirx.PrimExpr) -> object:
        distance = np.arange(holds.shape[1])[None] - np.arange(holds.shape[0])[:, None]
        for opposite in (False, True):
            inside = holds != opposite
            low, high = (int(f(distance[inside])) for f in (np.min, np.max))
            if np.array_equal(inside, (distance >= low) & (distance <= high)):
                parts = [column - row <= high] if high < distance.max() else []
                parts += [column - row >= low] if low > distance.min() else []
                return negated(All(tuple(parts))) if opposite else All(tuple(parts))
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

    def meaning(self, visible: object) -> Meaning:
        parts = list(visible.parts) if isinstance(visible, All) else [visible]
        causal, window = False, 0
        key_masks: list[tuple[relax.Expr, bool]] = []  # tensors, and whether what is not 0 hides
        flat: list[object] = []
        while parts:
            part = parts.pop()
            if isinstance(part, All):
                parts.extend(part.parts)
            elif isinstance(part, Not):
                opposite = self._opposite(core(part.part))
                (parts if isinstance(opposite, All) else flat).append(opposite)
            else:
                flat.append(part)
        shift = self.analyzer.simplify(self._scores[3] - self._scores[2])
        for part in flat:
            hides = isinstance(part, Not)
            leaf = part.part if hides else part
            if isinstance(leaf, Leaf):
                self._check_key_mask(leaf)
                if not any(leaf.tensor.same_as(other) and hides == how for other, how in key_masks):
                    key_masks.append((leaf.tensor, hides))
                continue
            part = self.analyzer.simplify(part)
            if isinstance(part, tirx.IntImm) and part.value:
                continue
            low, high = self._bounds(part)
            if high is not None:  # j - i <= high
                if not self.analyzer.can_prove_equal(high, shift):
                    raise Unreadable(f"keys up to {text_of(high)} behind the query, expected up to {text_of(shift)}")
                causal = True
            if low is not None:  # j - i >= low
                width = self.analyzer.simplify(shift - low + 1)
                if not isinstance(width, tirx.IntImm) or width.value < 1 or window not in (0, width.value):
                    raise Unreadable(f"a window of {text_of(width)} keys")
                window = int(width.value)
        return Meaning(causal, window, tuple(self._key_mask(*mask) for mask in key_masks))

    def _opposite(self, part: object) -> object:
        if isinstance(part, Not):
            return part.part
        if isinstance(part, Leaf):
            return Not(part)
        if isinstance(part, ir.Expr):
            return self.analyzer.simplify(tirx.Not(part))
        raise Unreadable("the opposite of a condition")

    def _check_key_mask(self, leaf: Leaf) -> None:
        if self._of_keys(leaf.tensor, leaf.index):
            return
        dims = leaf.tensor.ty.shape.values
        at_key = len(leaf.index) == 2 and self.analyzer.can_prove_equal(leaf.index[1], self.index[3])
        if at_key and self.analyzer.can_prove_equal(leaf.index[0], self.index[0]):
            sizes = f"{list(dims)}, expected {[self._scores[0], self._scores[3]]}"
            raise Unreadable(f"a padding mask of another batch size or length: {sizes}")
        raise Unreadable(f"a tensor read at {list(leaf.index)}, expected [batch, key]")

    def _key_mask(self, tensor: relax.Expr, hides: bool) -> relax.Expr:
        """A tensor that `_of_keys` accepts as [b, t]; `hides`: what is not 0 in it hides the key."""
        dims = [d for d in tensor.ty.shape.values if not self.is_one(d)]
        batch, keys = self._scores[0], self._scores[3]
        whole = len(dims) == 2 or self.is_one(batch)
        dtype, as_it_is = str(tensor.ty.dtype), tensor.ty.ndim == 2 and whole
        if hides:
            is_bool = dtype == "bool"
            tensor = relax.op.logical_not(tensor) if is_bool else relax.op.equal(tensor, relax.const(0, dtype))
        elif dtype != "bool" and not (as_it_is and dtype in MASK_DTYPES):
            tensor = relax.op.not_equal(tensor, relax.const(0, dtype))
        if not as_it_is:
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


def _leaves(value: object) -> list[Leaf]:
    if isinstance(value, All):
        return [leaf for part in value.parts for leaf in _leaves(part)]
    return _leaves(value.part) if isinstance(value, Not) else [value] if isinstance(value, Leaf) else []


def _mentions(expr: tirx.PrimExpr, variables: Sequence[tirx.Var]) -> bool:
    import tvm_ffi

    found = False

    def visit(var: tirx.Var) -> None:
        nonlocal found
        found = found or any(var.same_as(v) for v in variables)

    tvm_ffi.structural_walk(expr, (tirx.Var, visit))
    return found
