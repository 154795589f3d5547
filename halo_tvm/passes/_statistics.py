"""Recognise what an exporter wrote out of sums along an axis: means, variances, softmax and what surrounds them.

Before -> after
    sum(x) / n, n being the number of elements summed                    ->   mean(x)
    max(mean(x * x) - mean(x) * mean(x), 0), or without the max          ->   mean((x - mean(x)) * (x - mean(x)))
    exp(x - max(x)) / sum(exp(x - max(x)))                               ->   nn.softmax(x)
    x * (r * weight), r being an inverse root of every row               ->   x * r * weight, the weight being [n]
    x * r * weight + (bias - mean * (r * weight))                        ->   (x - mean) * r * weight + bias
    max(x, -inf)                                                         ->   x
    1 - erf(-x)                                                          ->   erf(x) + 1
    f(reshape(x)), where the reshape adds or drops axes of size 1 only   ->   reshape(f(x))
        for functions of elements, and reductions that keep their axes
The variance by two passes loses no digits where the mean is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, tirx

from ..dimensions import is_one
from ..relay_ops.operator import number_of, op_name, same_shape, shaped

Value = Callable[[relax.Expr], relax.Expr]
Found = tuple[relax.Expr, str]

_OF_ELEMENTS = frozenset(
    f"relax.{name}"
    for name in "add subtract multiply divide maximum minimum sqrt rsqrt exp negative tanh sigmoid where".split()
)


def statistic_of(call: relax.Call, value: Value) -> Found | None:
    """What `call` is in the words of this file, and its name; None where it is nothing of these."""
    operands = call.args[:1] if op_name(call) == "relax.reshape" else call.args
    if not all(shaped(x.ty) for x in (call, *operands)):
        return None
    for rule in _RULES.get(op_name(call), ()):
        found = rule(call, value)
        if found is not None:
            return found
    return _sunk(call, value) if op_name(call) in _OF_ELEMENTS else None


def _mean(call: relax.Call, value: Value) -> Found | None:
    """sum / n or sum * (1 / n)."""
    total, number = value(call.args[0]), number_of(value(call.args[1]))
    if op_name(total) != "relax.sum" or not number or "float" not in str(call.ty.dtype):
        return None
    if not shaped(total.args[0].ty):
        return None
    shape, axes = total.args[0].ty.shape.values, _axes(total)
    sizes = [shape[a] for a in axes]
    if not all(isinstance(d, tirx.IntImm) for d in sizes):
        return None
    count = math.prod(int(d) for d in sizes)
    factor = 1 / count if op_name(call) == "relax.multiply" else count
    if not math.isclose(number, factor, rel_tol=1e-7):
        return None
    return relax.op.mean(total.args[0], axes, bool(total.attrs.keepdims)), "sum over a count as mean"


def _variance(call: relax.Call, value: Value) -> Found | None:
    """mean(x * x) - mean(x) * mean(x), means that keep their axis."""
    squares, product = value(call.args[0]), value(call.args[1])
    if op_name(squares) != "relax.mean" or not _is_square(product):
        return None
    mean, square = value(product.args[0]), value(squares.args[0])
    if op_name(mean) != "relax.mean" or not _is_square(square) or not square.args[0].same_as(mean.args[0]):
        return None
    if _axes(mean) != _axes(squares) or not (mean.attrs.keepdims and squares.attrs.keepdims):
        return None
    centred = relax.op.subtract(mean.args[0], product.args[0])
    return relax.op.mean(relax.op.multiply(centred, centred), _axes(mean), True), "variance by squares"


def _is_square(x: relax.Expr) -> bool:
    return op_name(x) == "relax.multiply" and x.args[0].same_as(x.args[1])


def _not_below_zero(call: relax.Call, value: Value) -> Found | None:
    """max(mean(c * c), 0) and max(x, -inf)."""
    for x, bound in (call.args, list(call.args)[::-1]):
        number, inner = number_of(value(bound)), value(x)
        if number is None or not same_shape(x.ty.shape.values, call.ty.shape.values):
            continue
        if number == -math.inf:
            return x, "maximum with -inf"
        if number == 0.0 and op_name(inner) == "relax.mean" and _is_square(value(inner.args[0])):
            return x, "maximum of a mean of squares and 0"
    return None


def _softmax(call: relax.Call, value: Value) -> Found | None:
    power, total = value(call.args[0]), value(call.args[1])
    if op_name(power) != "relax.exp" or op_name(total) != "relax.sum" or not total.attrs.keepdims:
        return None
    shifted = value(power.args[0])
    if not total.args[0].same_as(call.args[0]) or op_name(shifted) != "relax.subtract":
        return None
    x, top = shifted.args[0], value(shifted.args[1])
    alone = op_name(top) == "relax.max" and top.args[0].same_as(x) and top.attrs.keepdims
    if not alone or _axes(top) != _axes(total) or len(_axes(top)) != 1:
        return None
    return relax.op.nn.softmax(x, _axes(top)[0]), "decomposed softmax"


def _weighted_root(call: relax.Call, value: Value) -> Found | None:
    """r * weight, where the weight is [1, .., 1, n]."""
    root, weight = call.args
    if op_name(value(root)) != "relax.rsqrt" or not 1 < weight.ty.ndim <= root.ty.ndim:
        return None
    vector = _vector(weight)
    if vector is None or not is_one(root.ty.shape.values[-1]):
        return None
    return relax.op.multiply(root, vector), "weight of a norm as a vector"


def _vector(x: relax.Expr) -> relax.Expr | None:
    """`x` [1, .., 1, n] as [n]; None where it has another shape."""
    *front, last = x.ty.shape.values
    if not all(map(is_one, front)):
        return None
    return relax.op.reshape(x, relax.ShapeExpr([last])) if front else x


def _scaled_row(call: relax.Call, value: Value) -> Found | None:
    """x * (r * weight)."""
    for x, product in (call.args, list(call.args)[::-1]):
        inner = value(product)
        if op_name(inner) != "relax.multiply" or not same_shape(x.ty.shape.values, call.ty.shape.values):
            continue
        root, weight = inner.args
        if not shaped(root.ty):
            continue
        last = root.ty.shape.values[-1] if root.ty.ndim else None
        if op_name(value(root)) == "relax.rsqrt" and is_one(last) and weight.ty.ndim == 1:
            return relax.op.multiply(relax.op.multiply(x, root), weight), "scale of a norm behind its root"
    return None


def _shifted_row(call: relax.Call, value: Value) -> Found | None:
    """x * r * weight + (-mean * (r * weight) + bias)."""
    for scaled, shift in (call.args, list(call.args)[::-1]):
        product, rest = value(scaled), value(shift)
        if op_name(product) != "relax.multiply" or op_name(rest) != "relax.add":
            continue
        row, weight = product.args
        row, moved, bias = value(row), value(rest.args[0]), rest.args[1]
        if op_name(row) != "relax.multiply" or op_name(moved) != "relax.multiply":
            continue
        mean, scale = (value(arg) for arg in moved.args)
        if op_name(mean) != "relax.negative" or op_name(scale) != "relax.multiply":
            continue
        x, root = row.args
        same = scale.args[0].same_as(root) and scale.args[1].same_as(weight)
        centred = _centred(root, x, value(mean.args[0]), value) if same else None
        bias = _vector(bias) if 0 < bias.ty.ndim <= call.ty.ndim else None
        if centred is not None and bias is not None:
            normal = relax.op.multiply(centred, root)
            return relax.op.add(relax.op.multiply(normal, weight), bias), "mean of a norm in front of its root"
    return None


def _centred(root: relax.Expr, x: relax.Expr, mean: relax.Expr, value: Value) -> relax.Expr | None:
    """The difference of `x` from its mean over the axes of `mean`, whose squares `root` is made of."""
    inner = value(root)
    for name in ("relax.rsqrt", "relax.add", "relax.mean"):
        if op_name(inner) != name:
            return None
        inner = value(inner.args[0])
    if not _is_square(inner) or op_name(mean) != "relax.mean" or not mean.args[0].same_as(x):
        return None
    difference = value(inner.args[0])
    if op_name(difference) != "relax.subtract" or not difference.args[0].same_as(x):
        return None
    own = value(difference.args[1])
    alike = op_name(own) == "relax.mean" and own.args[0].same_as(x) and _axes(own) == _axes(mean)
    return inner.args[0] if alike else None


def _erfc(call: relax.Call, value: Value) -> Found | None:
    """1 - erf(-x)."""
    inner = value(call.args[1])
    if number_of(value(call.args[0])) != 1.0 or op_name(inner) != "relax.erf":
        return None
    positive = _negated(inner.args[0], value)
    if positive is None:
        return None
    one = relax.const(1.0, str(call.ty.dtype))
    return relax.op.add(relax.op.erf(positive), one), "erfc as erf"


def _negated(x: relax.Expr, value: Value) -> relax.Expr | None:
    """-x where `x` says that it is negative by a sign of its own or of a factor."""
    inner = value(x)
    if op_name(inner) == "relax.negative":
        return inner.args[0]
    if op_name(inner) not in ("relax.multiply", "relax.divide"):
        return None
    first, second = inner.args
    number = number_of(value(second))
    make = getattr(relax.op, op_name(inner).removeprefix("relax."))
    if number is not None and number < 0:
        return make(first, relax.const(-number, str(x.ty.dtype)))
    positive = _negated(first, value)
    return None if positive is None else make(positive, second)


def _sunk(call: relax.Call, value: Value) -> Found | None:
    """f(reshape(x), y, ...), where y is a number, repeats along axes, or is reshaped like x."""
    whole = call.ty.shape.values
    views = [_view(arg, value) for arg in call.args]
    views = [v if v is not None and same_shape(v.ty.shape.values, whole) else None for v in views]
    source = next((v.args[0].ty.shape.values for v in views if v is not None), None)
    if source is None:
        return None
    inner = []
    for arg, view in zip(call.args, views):
        if view is not None and same_shape(view.args[0].ty.shape.values, source):
            inner.append(view.args[0])
        elif same_shape(arg.ty.shape.values, whole):
            return None
        else:
            inner.append(_aligned(arg, whole, source))
    return relax.op.reshape(relax.Call(call.op, inner, call.attrs), call.ty.shape), "reshape behind its reader"


def _sunk_reduction(call: relax.Call, value: Value) -> Found | None:
    """sum(reshape(x)), and the like that keep their axes."""
    view, axes = _view(call.args[0], value), _axes(call)
    if view is None or not call.attrs.keepdims:
        return None
    places = _places(view.ty.shape.values, view.args[0].ty.shape.values)
    if not all(a in places for a in axes):
        return None
    make = getattr(relax.op, op_name(call).removeprefix("relax."))
    reduced = make(view.args[0], [places[a] for a in axes], True)
    return relax.op.reshape(reduced, call.ty.shape), "reshape behind its reader"


def _view(x: relax.Expr, value: Value) -> Any:
    """The reshape that `x` is, if it only adds or drops axes of size 1; None for anything else."""
    bound = value(x)
    return bound if op_name(bound) == "relax.reshape" and _moves_units(bound) else None


def _places(target: Sequence[ir.Expr], source: Sequence[ir.Expr]) -> dict[int, int]:
    """Axis of more than one element in the shape `target` -> the same axis in `source`."""
    long = [[a for a, d in enumerate(shape) if not is_one(d)] for shape in (target, source)]
    return dict(zip(*long, strict=True))


def _aligned(arg: relax.Expr, target: Sequence[ir.Expr], source: Sequence[ir.Expr]) -> relax.Expr:
    """`arg`, which broadcasts to `target`, as it broadcasts to `source`, the same shape with other axes of size 1."""
    own = list(arg.ty.shape.values)
    front = len(target) - len(own)
    dims: list[ir.Expr] = [tirx.IntImm("int64", 1)] * len(source)
    for there, here in _places(target, source).items():
        if there >= front:
            dims[here] = own[there - front]
    while dims and is_one(dims[0]) and (len(dims) > len(own) or not is_one(own[0])):
        dims = dims[1:]
    return arg if same_shape(dims, own) else relax.op.reshape(arg, relax.ShapeExpr(dims))


def _joined(call: relax.Call, value: Value) -> Found | None:
    """x for reshape(...reshape(x)) of the shape of x."""
    inner = value(call.args[0])
    while op_name(inner) == "relax.reshape":
        x = inner.args[0]
        if shaped(x.ty) and same_shape(x.ty.shape.values, call.ty.shape.values):
            return x, "reshape there and back"
        inner = value(x)
    return None


def _moves_units(reshape: relax.Call) -> bool:
    """Whether a reshape only adds or drops axes of size 1."""
    sides = (reshape.args[0], reshape)
    if not all(shaped(side.ty) for side in sides):
        return False
    before, after = ([d for d in x.ty.shape.values if not is_one(d)] for x in sides)
    return same_shape(before, after)


def _axes(call: relax.Call) -> list[int]:
    rank = call.args[0].ty.ndim
    axes = range(rank) if call.attrs.axis is None else call.attrs.axis
    return sorted(int(a) % rank for a in axes)


_RULES: dict[str, tuple[Callable[[relax.Call, Value], Found | None], ...]] = {
    "relax.add": (_shifted_row,),
    "relax.divide": (_mean, _softmax),
    "relax.multiply": (_mean, _weighted_root, _scaled_row),
    "relax.subtract": (_variance, _erfc),
    "relax.maximum": (_not_below_zero,),
    "relax.reshape": (_joined,),
    **{f"relax.{name}": (_sunk_reduction,) for name in ("sum", "max", "min", "mean")},
}
