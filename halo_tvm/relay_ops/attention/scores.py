"""What stands between the product of queries and keys and the softmax: scales, a soft cap, addends and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm_ffi
from tvm import ir, relax, sym, tirx

from ... import _compat
from ...dimensions import product
from ...errors import Rejected
from ..operator import RESHAPES, Match, number_of, op_name, same_dimension

_NEVER_SEEN = -1e9  # a constant at or below it hides a key
# What stands for a lower number: the operator takes it for a score, so that a row where all keys have it gets the mean
# of their values, as softmax gives it. Beside a key that is seen its weight is 0.
_LEAST = -1e29
_LONGEST = 24
_PRODUCTS = ("relax.matmul", "relax.halo.matmul")


@dataclass(frozen=True)
class Addend:
    """A tensor added to scores of the shape `scores`, to which `dims` broadcasts."""

    value: relax.Expr
    dims: tuple[ir.Expr, ...]
    dtype: str
    scores: tuple[ir.Expr, ...]


@dataclass
class Scores:
    """softmax(softcap(scale * dots) + the sum of `addends`)."""

    dots: relax.Call
    scale: float = 1.0
    softcap: float = 0.0
    addends: list[Addend] = field(default_factory=list)


def scores_of(match: Match, expr: relax.Expr, inside: set, cleared: Sequence[relax.Expr]) -> Scores:
    """Follow the scores back to the product of queries and keys; `inside` collects the variables on the way.

    Where one of the tests in `cleared` holds, weights are set to 0 behind the softmax.
    """
    open_tests = list(cleared)
    found = Scores(dots=None)
    matrix = expr.ty.shape.values[-2:]
    for _ in range(_LONGEST):
        value = match.value(expr)
        inside.add(expr)
        name = op_name(value)
        if not all(same_dimension(a, b) for a, b in zip(expr.ty.shape.values[-2:], matrix)):
            raise Rejected("the scores are rearranged between their product and the softmax")
        if name in _PRODUCTS:
            _before(not open_tests, "weights that are set to 0 where their scores are not replaced")
            found.dots = value
            return found
        if name in ("relax.astype", *RESHAPES):
            expr = value.args[0]
        elif name == "relax.add":
            side = 0 if _leads_to_product(match, value.args[0]) else 1
            _before(not found.softcap and found.scale == 1.0, "a bias under a scale")
            other = value.args[1 - side]
            found.addends.append(_addend(other, other.ty, value))
            expr = value.args[side]
        elif name == "relax.where":
            side = 1 if _leads_to_product(match, value.args[1]) else 2
            other = number_of(match.value(value.args[3 - side]))
            if other is None or other > _NEVER_SEEN:
                raise Rejected("scores are replaced by something else than a large negative number")
            _before(not found.softcap and found.scale == 1.0, "a mask under a scale")
            other = max(other, _LEAST) if math.isfinite(other) else other
            same = next((test for test in open_tests if _same(match, test, value.args[0])), None)
            if same is not None and side == 2:
                open_tests.remove(same)
                other = -math.inf  # a row without a key is 0
            hidden = [relax.const(np.float32(0)), relax.const(np.float32(other))]
            mask = relax.op.where(value.args[0], *(hidden if side == 1 else hidden[::-1]))
            found.addends.append(_addend(mask, value.args[0].ty, value, "float32"))
            expr = value.args[side]
        elif name in ("relax.multiply", "relax.divide"):
            expr, factor = factor_of(match, value)
            found.scale *= factor
        elif name == "relax.tanh":
            # cap * tanh(x / cap): the factor met before is the cap, the one behind its inverse
            if found.softcap or found.scale == 1.0:
                raise Rejected("a tanh of scores that is no soft cap")
            found.softcap = found.scale
            expr = value.args[0]
        else:
            raise Rejected(
                f"the scores are no product of queries and keys ({name.removeprefix('relax.') or 'an input'})"
            )
    raise Rejected("too many operators between the product of queries and keys and the softmax")


def _same(match: Match, a: relax.Expr, b: relax.Expr) -> bool:
    """Whether two tests are one: the same variable, or the same operator of the same ones."""
    a, b = match.value(a), match.value(b)
    return a.same_as(b) or tvm_ffi.structural_equal(a, b)


def _addend(value: relax.Expr, ty: relax.TensorType, total: relax.Call, dtype: str | None = None) -> Addend:
    if not all(isinstance(t.shape, relax.ShapeExpr) for t in (ty, total.ty)):
        raise Rejected(f"the bias must be of known shape, got {ty}")
    return Addend(value, tuple(ty.shape.values), dtype or str(ty.dtype), tuple(total.ty.shape.values))


def _before(holds: bool, what: str) -> None:
    if not holds:
        raise Rejected(f"{what} cannot be expressed")


def _leads_to_product(match: Match, expr: relax.Expr) -> bool:
    for _ in range(_LONGEST):
        value = match.value(expr)
        name = op_name(value)
        if name in _PRODUCTS:
            return True
        if name in ("relax.astype", "relax.tanh", *RESHAPES):
            expr = value.args[0]
        elif name in ("relax.multiply", "relax.divide"):
            side = 1 if number_of(match.value(value.args[0])) is not None else 0
            expr = value.args[side]
        elif name in ("relax.add", "relax.where"):
            return any(_leads_to_product(match, a) for a in value.args[-2:])
        else:
            return False
    return False


def factor_of(match: Match, call: relax.Call) -> tuple[relax.Expr, float]:
    """The operand of a product or quotient with a constant, and the factor."""
    left, right = (number_of(match.value(a)) for a in call.args)
    is_product = op_name(call) == "relax.multiply"
    number = right if right is not None else (left if is_product else None)
    if number is None:
        raise Rejected("the scale must be a scalar constant")
    if not math.isfinite(number) or number == 0.0:
        raise Rejected(f"the scale must be finite and not zero, got {number}")
    operand = call.args[0] if right is not None else call.args[1]
    return operand, number if is_product else 1.0 / number


def unscaled(match: Match, expr: relax.Expr) -> tuple[relax.Expr, float]:
    """An operand without the constants that scale it, also behind views, and their product."""
    value = match.value(expr)
    if op_name(value) in ("relax.permute_dims", *RESHAPES):
        inner, factor = unscaled(match, value.args[0])
        if inner.same_as(value.args[0]):
            return expr, 1.0
        view = relax.Call(value.op, [inner, *value.args[1:]], value.attrs, value.ty_args)
        _compat.set_type(view, value.ty)
        return view, factor
    if op_name(value) in ("relax.multiply", "relax.divide"):
        constants = [number_of(match.value(a)) for a in value.args]
        if constants[1] is not None or (constants[0] is not None and op_name(value) == "relax.multiply"):
            inner, factor = factor_of(match, value)
            rest, more = unscaled(match, inner)
            return rest, factor * more
    return expr, 1.0


def bias_of(addends: Sequence[Addend], shape: Sequence[ir.Expr]) -> relax.Expr | None:
    """The sum of the addends as one tensor [1|b, 1|h, 1|s, t] in float32; `shape` is [b, h, s, t]."""
    total = None
    for addend in addends:
        bias = _broadcast(addend, shape)
        total = bias if total is None else relax.op.add(total, bias)
    return total


def _broadcast(addend: Addend, shape: Sequence[ir.Expr]) -> relax.Expr:
    """An addend as [1|b, 1|h, 1|s, t]; leading axes are added or joined, a last axis of 1 is repeated."""
    if addend.dtype != "float32":
        raise Rejected(f"the bias must be float32, got {addend.dtype}")
    prove = sym.Analyzer().can_prove_equal
    one = tirx.IntImm("int64", 1)
    dims = [*([one] * (len(addend.scores) - len(addend.dims))), *addend.dims]
    fits = len(dims) == len(addend.scores) and all(prove(a, one) or prove(a, b) for a, b in zip(dims, addend.scores))
    if not fits:
        raise Rejected(f"the bias {list(addend.dims)} must broadcast to the scores {list(addend.scores)}")
    lead, whole = dims[:-2], list(addend.scores[:-2])
    joined, value = _leading(lead, whole, shape[:2], prove), addend.value
    for index, (parts, sizes) in enumerate(joined):
        if not all(prove(p, one) for p in parts) and not all(prove(p, s) for p, s in zip(parts, sizes)):
            start = 0 if index == 0 else len(joined[0][0])
            if len(dims) != len(addend.dims):
                value = relax.op.reshape(value, dims)
            dims = [*dims[:start], *sizes, *dims[start + len(sizes) :]]
            value = relax.op.broadcast_to(value, dims)
            addend = Addend(value, tuple(dims), addend.dtype, addend.scores)
            return _broadcast(addend, shape)
    merged = [one if all(prove(p, one) for p in parts) else shape[k] for k, (parts, _) in enumerate(joined)]
    final = [*merged, *dims[-2:]]
    if len(final) != len(addend.dims) or not all(prove(a, b) for a, b in zip(final, addend.dims)):
        value = relax.op.reshape(value, final)
    return value if prove(final[3], shape[3]) else relax.op.broadcast_to(value, [*final[:3], shape[3]])


def _leading(lead: list, whole: list, wanted: Sequence[ir.Expr], prove) -> list[tuple[list, list]]:
    """The leading axes of an addend, and of the scores it is added to, split into those of batch and of heads."""
    for split in range(len(whole) + 1):
        sizes = [product(whole[:split]), product(whole[split:])]
        if all(prove(a, b) for a, b in zip(sizes, wanted)):
            return [(lead[:split], whole[:split]), (lead[split:], whole[split:])]
    if len(whole) == 1 and prove(whole[0], wanted[0] * wanted[1]):  # one axis for both
        one = tirx.IntImm("int64", 1)
        parts = [one, one] if prove(lead[0], one) else list(wanted)
        return [([parts[0]], [wanted[0]]), ([parts[1]], [wanted[1]])]
    raise Rejected(f"the scores {whole} do not split into batch and heads {list(wanted)}")
