"""Spellings of `halo.attention`: a product of a softmax, followed back to the heads it is made of.

The pattern is only the root, a matrix product. What exporters put between it and the softmax, and between that and the
product of queries and keys (scales, masks, casts, guards against rows without a key, and any chain of reshape,
transpose and broadcast), is followed in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard

from ...errors import NoMatch, Rejected
from ..operator import Lift, Match, attrs_of, number_of, op_name, require_float, same_dimension
from .masks import Unreadable, read_bias
from .operands import HEADS_FIRST, check_rank, heads_of, with_one_batch
from .scores import bias_of, scores_of, unscaled

Call = Callable[..., relax.Expr]


def attention_lifts(call: Call) -> Sequence[Lift]:
    """The product of a softmax and values; then masks of the operator that have a name. `call` makes the operator."""
    product = is_op("relax.matmul")(wildcard(), wildcard())
    masked = is_op("relax.halo.attention")(*(wildcard() for _ in range(4)))
    return (
        Lift("attention.softmax", product, lambda m: _found(m, m[product], call), benefit=20),
        Lift("attention.mask", masked, lambda m: _named_mask(m, m[masked], call), benefit=19),
    )


def _found(match: Match, product: relax.Call, call: Call) -> relax.Expr:
    """The attention; what is refused is said of the softmax, which is there only as long as it is not lifted."""
    inside = {match.variables.get(product)}
    weights, cleared = _weights(match, product.args[0], inside)
    try:
        return _lifted(match, product, weights, cleared, inside, call)
    except Rejected as reason:
        reason.at = match.variables.get(weights)
        raise


def _lifted(
    match: Match, product: relax.Call, weights: relax.Call, cleared: list[relax.Expr], inside: set, call: Call
) -> relax.Expr:
    _check_weights(match, product, weights)
    scores = scores_of(match, weights.args[0], inside, cleared)
    for what in (weights, scores.dots):
        match.require_unread("a product of the attention", what, inside)
    q, q_scale = unscaled(match, scores.dots.args[0])
    k, k_scale = unscaled(match, scores.dots.args[1])
    v = product.args[1]
    require_float(q, k, v, weights, out_dtype=product.ty.dtype)
    check_rank(product.ty, q, k, v)
    scale = scores.scale * q_scale * k_scale
    ty, operands = with_one_batch(product.ty, q, k, v)
    heads = heads_of(match, *operands, ty)
    bias = bias_of(scores.addends, (heads.batch, tirx.IntImm("int64", heads.count), heads.rows, heads.keys))
    out = call(
        heads.q,
        heads.k,
        heads.v,
        *([bias] if bias is not None else []),
        num_heads=heads.count,
        num_kv_heads=heads.kv_count,
        head_dim=heads.width,
        scale=scale,
        softcap=scores.softcap or None,
        has_bias=True if bias is not None else None,
    )
    if product.ty.ndim > 4:  # back to the axes that were one batch, in front of the transposition: it joins the next
        *outer, count, rows, width = product.ty.shape.values
        out = relax.op.reshape(out, [*outer, rows, count, width])
        return relax.op.permute_dims(out, [*range(len(outer)), *(product.ty.ndim + a for a in (-2, -3, -1))])
    out = relax.op.permute_dims(out, list(HEADS_FIRST))
    return out if product.ty.ndim == 4 else relax.op.reshape(out, product.ty.shape)


def _weights(match: Match, expr: relax.Expr, inside: set) -> tuple[relax.Call, list[relax.Expr]]:
    """The softmax behind casts, reshapes and the guard that turns NaN (a row without a key) into 0.

    With the tests that set weights to 0 behind it. `inside` collects the variables that the attention replaces.
    `NoMatch` when there is no softmax.
    """
    value, cleared = match.value(expr), []
    inside.add(expr)
    while op_name(value) in ("relax.astype", "relax.where", "relax.reshape", "relax.expand_dims", "relax.squeeze"):
        if op_name(value) == "relax.where":
            test, zero, rest = value.args
            guard = match.value(test)
            guarded = op_name(guard) == "relax.isnan" and match.value(guard.args[0]).same_as(match.value(rest))
            if number_of(match.value(zero)) != 0.0:
                raise NoMatch("the weights are selected by something else than a guard against NaN")
            if guarded:
                inside.add(test)
            else:
                cleared.append(test)
            expr = rest
        else:
            expr = value.args[0]
        inside.add(expr)
        value = match.value(expr)
    if op_name(value) != "relax.nn.softmax":
        raise NoMatch("no softmax")
    return value, cleared


def _check_weights(match: Match, product: relax.Call, weights: relax.Call) -> None:
    axis, rank = int(weights.attrs.axis), weights.ty.ndim
    if axis not in (-1, rank - 1):
        raise Rejected(f"the softmax must run over the last axis, got axis {axis} of {rank}")
    kept = [
        x.ty.shape.values[-2:] if isinstance(x.ty.shape, relax.ShapeExpr) else () for x in (product.args[0], weights)
    ]
    if len(kept[0]) != 2 or len(kept[1]) != 2 or not all(same_dimension(a, b) for a, b in zip(*kept)):
        raise Rejected("the weights are rearranged behind the softmax")


def _named_mask(match: Match, attention: relax.Call, call: Call) -> relax.Expr:
    """An attention whose bias is causality, a window or padding -> the same without the bias."""
    attention = match.value(attention)
    attrs = attrs_of(attention)
    if not attrs.get("has_bias") or attrs.get("has_key_mask") or attrs.get("packed") or attrs.get("window"):
        raise NoMatch("the fourth operand is no bias")
    q, k, v, bias = attention.args
    scores = (
        q.ty.shape.values[0],
        tirx.IntImm("int64", attrs["num_heads"]),
        q.ty.shape.values[1],
        k.ty.shape.values[1],
    )
    kept = {key: value for key, value in attrs.items() if key != "has_bias"}
    rest, key_masks, reasons = [], [], []
    for term in _terms(match, bias):
        try:
            meaning = read_bias(term, scores, match.value, match.is_input)
            if meaning.window and kept.get("window", meaning.window) != meaning.window:
                raise Unreadable("a second window")
        except Unreadable as reason:
            rest.append(term)
            reasons.append(str(reason))
            continue
        kept["causal"] = bool(kept.get("causal")) or meaning.causal or None
        kept["window"] = meaning.window or kept.get("window")
        key_masks += [m for m in meaning.key_masks if not any(m.same_as(other) for other in key_masks)]
    if reasons and (kept.get("window"), kept.get("causal"), key_masks) == (None, attrs.get("causal"), []):
        raise Rejected(f"the mask stays a bias: {reasons[0]}")
    extra = [_both(key_masks)] if key_masks else []
    kept["has_key_mask"] = True if key_masks else None
    if rest:
        total = rest[0]
        for term in rest[1:]:
            total = relax.op.add(total, term)
        extra.append(total)
        kept["has_bias"] = True
    return call(q, k, v, *extra, **kept)


def _terms(match: Match, bias: relax.Expr) -> list[relax.Expr]:
    """What a bias is the sum of, each term fit to be a bias alone."""
    value = match.value(bias)
    if op_name(value) != "relax.add":
        return [bias]
    fit = all(
        a.ty.ndim == 4
        and isinstance(a.ty.shape, relax.ShapeExpr)
        and same_dimension(a.ty.shape.values[3], bias.ty.shape.values[3])
        for a in value.args
    )
    return [term for a in value.args for term in _terms(match, a)] if fit else [bias]


def _both(masks: Sequence[relax.Expr]) -> relax.Expr:
    """One mask of keys that is 0 where any of `masks` is."""
    if len(masks) == 1:
        return masks[0]
    total = None
    for mask in masks:
        dtype = str(mask.ty.dtype) if isinstance(mask, relax.Var) else "bool"  # what was rearranged is bool
        mask = mask if dtype == "bool" else relax.op.not_equal(mask, relax.const(0, dtype))
        total = mask if total is None else relax.op.logical_and(total, mask)
    return total
