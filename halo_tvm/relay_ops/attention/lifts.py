"""Spellings of `halo.attention`: a product of a softmax, followed back to the heads it is made of.

The pattern is only the root, matmul(softmax(...), values). What exporters put between (scales, masks, casts, guards
against rows without a key, and any chain of reshape, transpose and broadcast) is followed in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, relax, sym, tirx
from tvm.relax.dpl import is_op, wildcard

from ...errors import Rejected
from .._operator import Lift, Match, attrs_of, number_of, require_float, same_dimension
from .._views import NoView, bases, chain_of, positions, probes
from .masks import Unreadable, read_bias

HEADS_FIRST = (0, 2, 1, 3)  # [b, s, h, d] <-> [b, h, s, d]
_NEVER_SEEN = -1e9  # a constant at or below it hides a key

Call = Callable[..., relax.Expr]


def attention_lifts(call: Call) -> Sequence[Lift]:
    """The product of a softmax and values; then masks of the operator that have a name. `call` makes the operator."""
    softmax = is_op("relax.nn.softmax")(wildcard())
    cast = is_op("relax.astype")(softmax)
    guarded = is_op("relax.where")(wildcard(), wildcard(), softmax | cast)
    weights = softmax | cast | guarded
    product = is_op("relax.matmul")(weights, wildcard())
    masked = is_op("relax.halo.attention")(*(wildcard() for _ in range(4)))
    return (
        Lift("attention.softmax", product, lambda m: _lifted(m, m[product], call), benefit=20),
        Lift("attention.mask", masked, lambda m: _named_mask(m, m[masked], call), benefit=19),
    )


@dataclass
class _Scores:
    """What stands between the product of queries and keys and the softmax."""

    dots: relax.Call
    scale: float = 1.0
    softcap: float = 0.0
    biases: list[tuple[relax.Expr, list[tirx.PrimExpr]]] = field(default_factory=list)  # addends and their sizes


def _lifted(match: Match, product: relax.Call, call: Call) -> relax.Expr:
    product = match.value(product)
    inside = {match.variables.get(product)}
    weights = _weights(match, product.args[0], inside)
    scores = _scores(match, weights.args[0], inside)
    for what in (weights, scores.dots):
        _check_private(match, what, inside)
    q, q_scale = _unscaled(match, scores.dots.args[0])
    k, k_scale = _unscaled(match, scores.dots.args[1])
    v = product.args[1]
    require_float(q, k, v, weights, out_dtype=product.ty.dtype)
    _check_rank(product, q, k, v)
    scale = scores.scale * q_scale * k_scale
    heads = _heads(match, q, k, v, product)
    shape = (heads.batch, tirx.IntImm("int64", heads.count), heads.rows, heads.keys)
    bias = _bias(scores.biases, shape)
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
    out = relax.op.permute_dims(out, list(HEADS_FIRST))
    return out if product.ty.ndim == 4 else relax.op.reshape(out, product.ty.shape)


def _check_private(match: Match, call: relax.Call, inside: set) -> None:
    """`Rejected` when something outside the attention reads `call`: it would be computed twice."""
    var = match.variables.get(call)
    if var is not None and not match.users.get(var, frozenset()) <= inside:
        raise Rejected(f"a product of the attention is used elsewhere too ({var.name}): it would be computed twice")


def _weights(match: Match, expr: relax.Expr, inside: set) -> relax.Call:
    """The softmax behind casts and behind the guard that turns NaN (a row without a key) into 0.

    `inside` collects the variables that the attention replaces.
    """
    value = match.value(expr)
    inside.add(expr)
    while _name(value) in ("relax.astype", "relax.where"):
        if _name(value) == "relax.where":
            test, zero, rest = value.args
            guard = match.value(test)
            guarded = _name(guard) == "relax.isnan" and match.value(guard.args[0]).same_as(match.value(rest))
            if not guarded or number_of(match.value(zero)) != 0.0:
                raise Rejected("the weights are selected by something else than a guard against NaN")
            inside.add(test)
            expr = rest
        else:
            expr = value.args[0]
        inside.add(expr)
        value = match.value(expr)
    axis, rank = int(value.attrs.axis), value.ty.ndim
    if axis not in (-1, rank - 1):
        raise Rejected(f"the softmax must run over the last axis, got axis {axis} of {rank}")
    return value


def _scores(match: Match, expr: relax.Expr, inside: set) -> _Scores:
    """Follow the scores back to the product of queries and keys."""
    found = _Scores(dots=None)
    for _ in range(24):
        value = match.value(expr)
        inside.add(expr)
        name = _name(value)
        if name in ("relax.matmul", "relax.halo.matmul"):
            found.dots = value
            return found
        if name in ("relax.astype", "relax.reshape", "relax.expand_dims", "relax.squeeze"):
            expr = value.args[0]
        elif name == "relax.add":
            side = 0 if _leads_to_product(match, value.args[0]) else 1
            _before(not found.softcap and found.scale == 1.0, "a bias under a scale")
            found.biases.append(_addend(value.args[1 - side]))
            expr = value.args[side]
        elif name == "relax.where":
            side = 1 if _leads_to_product(match, value.args[1]) else 2
            other = number_of(match.value(value.args[3 - side]))
            if other is None or other > _NEVER_SEEN:
                raise Rejected("scores are replaced by something else than a large negative number")
            _before(not found.softcap and found.scale == 1.0, "a mask under a scale")
            hidden = [relax.const(np.float32(other)), relax.const(np.float32(0))]
            masked = relax.op.where(value.args[0], *(hidden[::-1] if side == 1 else hidden))
            found.biases.append((masked, _dims(value.args[0])))
            expr = value.args[side]
        elif name in ("relax.multiply", "relax.divide"):
            expr, factor = _factor(match, value)
            found.scale *= factor
        elif name == "relax.tanh":
            # cap * tanh(x / cap): the factor met before is the cap, the one behind its inverse
            if found.softcap or found.scale == 1.0:
                raise Rejected("a tanh of scores that is no soft cap")
            found.softcap = found.scale
            expr = value.args[0]
        else:
            raise Rejected(f"the scores are no product of queries and keys ({name.removeprefix('relax.') or 'an input'})")
    raise Rejected("too many operators between the product of queries and keys and the softmax")


def _before(holds: bool, what: str) -> None:
    if not holds:
        raise Rejected(f"{what} cannot be expressed")


def _leads_to_product(match: Match, expr: relax.Expr) -> bool:
    for _ in range(24):
        value = match.value(expr)
        name = _name(value)
        if name == "relax.matmul":
            return True
        if name in ("relax.astype", "relax.reshape", "relax.tanh", "relax.expand_dims", "relax.squeeze"):
            expr = value.args[0]
        elif name in ("relax.multiply", "relax.divide"):
            side = 1 if number_of(match.value(value.args[0])) is not None else 0
            expr = value.args[side]
        elif name in ("relax.add", "relax.where"):
            return any(_leads_to_product(match, a) for a in value.args[-2:])
        else:
            return False
    return False


def _factor(match: Match, call: relax.Call) -> tuple[relax.Expr, float]:
    """The operand of a product or quotient with a constant, and the factor."""
    left, right = (number_of(match.value(a)) for a in call.args)
    is_product = _name(call) == "relax.multiply"
    number = right if right is not None else (left if is_product else None)
    if number is None:
        raise Rejected("the scale must be a scalar constant")
    if not math.isfinite(number) or number == 0.0:
        raise Rejected(f"the scale must be finite and not zero, got {number}")
    operand = call.args[0] if right is not None else call.args[1]
    return operand, number if is_product else 1.0 / number


def _unscaled(match: Match, expr: relax.Expr) -> tuple[relax.Expr, float]:
    """An operand without the constants that scale it, in front of or behind views; and their product."""
    chain = chain_of(expr, match.value)
    value = match.value(chain[-1])
    if _name(value) in ("relax.multiply", "relax.divide"):
        constants = [number_of(match.value(a)) for a in value.args]
        if constants[1] is not None or (constants[0] is not None and _name(value) == "relax.multiply"):
            inner, factor = _factor(match, value)
            if len(chain) == 1:
                rest, more = _unscaled(match, inner)
                return rest, factor * more
    return expr, 1.0


def _check_rank(product: relax.Call, *operands: relax.Expr) -> None:
    for operand in (product, *operands):
        ty = operand.ty
        if ty.ndim != product.ty.ndim or ty.ndim not in (3, 4) or not isinstance(ty.shape, relax.ShapeExpr):
            raise Rejected(f"operands must all be of rank 3 or 4 and known shape, got {ty}")


@dataclass(frozen=True)
class _Heads:
    """Operands as the operator takes them, positions before heads, and their sizes."""

    q: relax.Expr  # [batch, rows, count, width]
    k: relax.Expr  # [batch, keys, kv_count, width]
    v: relax.Expr
    batch: tirx.PrimExpr
    rows: tirx.PrimExpr
    keys: tirx.PrimExpr
    count: int
    kv_count: int
    width: int


def _heads(match: Match, q: relax.Expr, k: relax.Expr, v: relax.Expr, product: relax.Call) -> _Heads:
    rows, keys = product.ty.shape.values[-2], v.ty.shape.values[-2]
    width, value_width = (x.ty.shape.values[-1] for x in (q, v))
    if not all(isinstance(d, tirx.IntImm) for d in (width, value_width)):
        raise Rejected(f"head sizes must be known, got {width} and {value_width}")
    if int(width) != int(value_width):
        raise Rejected(f"q and v must have one head size, got {width} and {value_width}")
    if not same_dimension(k.ty.shape.values[-2], width) or not same_dimension(k.ty.shape.values[-1], keys):
        raise Rejected(f"the keys must be [.., {width}, {keys}], got {k.ty}")
    batch, count = _batch_and_heads(match, q, product)
    sizes = (batch, count, rows, keys, int(width))
    queries, query_heads = _operand(match, q, sizes, "q")
    key, kv_heads = _operand(match, k, sizes, "k")
    value, value_heads = _operand(match, v, sizes, "v")
    if query_heads != count or kv_heads != value_heads:
        raise Rejected(f"k and v must have one number of heads, got {kv_heads} and {value_heads} for {query_heads} of q")
    return _Heads(queries, key, value, batch, rows, keys, count, kv_heads, int(width))


def _batch_and_heads(match: Match, q: relax.Expr, product: relax.Call) -> tuple[tirx.PrimExpr, int]:
    """Batch size and number of query heads: of rank 4 in place, of rank 3 found where the two were joined."""
    lead = list(product.ty.shape.values[:-2])
    if len(lead) == 2:
        if not isinstance(lead[1], tirx.IntImm):
            raise Rejected(f"the number of heads must be known, got {lead[1]}")
        return lead[0], int(lead[1])
    rows, width = q.ty.shape.values[-2:]
    for expr in chain_of(q, match.value)[1:]:
        dims = list(expr.ty.shape.values)
        if len(dims) != 4 or not same_dimension(dims[3], width):
            continue
        for positions_at, heads_at in ((2, 1), (1, 2)):
            if isinstance(dims[heads_at], tirx.IntImm) and same_dimension(dims[positions_at], rows):
                if same_dimension(dims[0] * dims[heads_at], lead[0]):
                    return dims[0], int(dims[heads_at])
    return lead[0], 1


def _operand(match: Match, expr: relax.Expr, sizes: tuple, role: str) -> tuple[relax.Expr, int]:
    """`expr` as [batch, positions, heads, width], from the deepest tensor of its chain of views that is one.

    Heads that views repeat, one for several query heads, are found un-repeated.
    """
    batch, count, rows, keys, width = sizes
    length = rows if role == "q" else keys
    chain = chain_of(expr, match.value)
    for base in bases(chain):
        found = _arranged(match, chain, base, (batch, count, length, width), role == "k")
        if found is not None:
            return found
    whole = chain[0]
    if whole.ty.ndim == 3:
        whole = relax.op.reshape(whole, [batch, count, *whole.ty.shape.values[1:]])
    axes = (0, 3, 1, 2) if role == "k" else HEADS_FIRST
    return relax.op.permute_dims(whole, list(axes)), count


def _arranged(match: Match, chain: list, base: int, sizes: tuple, transposed: bool) -> tuple[relax.Expr, int] | None:
    """The tensor at `base` of `chain` as [batch, positions, heads, width], and its heads; None when it is not one."""
    batch, count, length, width = sizes
    source = chain[base]
    dims = list(source.ty.shape.values)
    if not dims or not all(isinstance(d, tirx.IntImm) or not isinstance(d, int) for d in dims):
        return None
    candidates: list[tuple[str, int]] = []
    if len(dims) == 4 and isinstance(dims[2], tirx.IntImm) and same_dimension(dims[3], width):
        candidates.append(("positions first", int(dims[2])))
    if len(dims) == 4 and isinstance(dims[1], tirx.IntImm) and same_dimension(dims[3], width):
        candidates.append(("heads first", int(dims[1])))
    if len(dims) == 3 and isinstance(dims[2], tirx.IntImm) and int(dims[2]) % width == 0:
        candidates.append(("merged", int(dims[2]) // width))
    candidates = [(kind, n) for kind, n in candidates if n and count % n == 0]
    for kind, n in candidates:
        try:
            if all(_agrees(match, chain, base, kind, n, sizes, transposed, probe) for probe in probes()):
                if kind == "positions first":
                    return source, n
                if kind == "heads first":
                    return relax.op.permute_dims(source, list(HEADS_FIRST)), n
                return relax.op.reshape(source, [batch, length, n, width]), n
        except NoView:
            return None
    return None


def _agrees(match: Match, chain: list, base: int, kind: str, n: int, sizes: tuple, transposed: bool, probe) -> bool:
    _, count, _, width = sizes
    arrays = positions(chain, base, match.value, probe)
    found, source = arrays[0], arrays[-1]
    if transposed:
        found = np.swapaxes(found, -1, -2)
    if kind == "merged":
        source = source.reshape(*source.shape[:2], n, width)
    wanted = source if kind == "heads first" else source.transpose(HEADS_FIRST)
    wanted = np.repeat(wanted, count // n, axis=1)
    if found.ndim == 3:
        wanted = wanted.reshape(-1, *wanted.shape[2:]) if wanted.shape[0] * wanted.shape[1] == found.shape[0] else wanted
    return found.shape == wanted.shape and bool((found == wanted).all())


def _addend(bias: relax.Expr) -> tuple[relax.Expr, list[tirx.PrimExpr]]:
    if str(bias.ty.dtype) != "float32":
        raise Rejected(f"the bias must be float32, got {bias.ty}")
    return bias, _dims(bias)


def _dims(expr: relax.Expr) -> list[tirx.PrimExpr]:
    if not isinstance(expr.ty.shape, relax.ShapeExpr):
        raise Rejected(f"a bias or mask must have a known shape, got {expr.ty}")
    return list(expr.ty.shape.values)


def _bias(
    biases: Sequence[tuple[relax.Expr, list[tirx.PrimExpr]]], shape: Sequence[tirx.PrimExpr]
) -> relax.Expr | None:
    """The sum of the addends as one tensor [1|b, 1|h, 1|s, t]."""
    total = None
    for bias, dims in biases:
        bias = _broadcast(bias, dims, shape)
        total = bias if total is None else relax.op.add(total, bias)
    return total


def _broadcast(bias: relax.Expr, own: list[tirx.PrimExpr], scores: Sequence[tirx.PrimExpr]) -> relax.Expr:
    """`bias`, of sizes `own`, as [1|b, 1|h, 1|s, t]; leading axes are added, a last axis of 1 is repeated."""
    prove = sym.Analyzer().can_prove_equal
    one = tirx.IntImm("int64", 1)
    dims = own
    if len(dims) == 3 and prove(dims[0], scores[0] * scores[1]):  # one row of batch and heads
        dims = [scores[0], scores[1], *dims[1:]]
    dims = [*([one] * (4 - len(dims))), *dims]
    if len(dims) != 4 or not all(prove(a, one) or prove(a, b) for a, b in zip(dims, scores)):
        raise Rejected(f"the bias {own} must broadcast to the scores {list(scores)}")
    out = bias if len(dims) == len(own) else relax.op.reshape(bias, dims)
    if not prove(dims[3], scores[3]):
        out = relax.op.broadcast_to(out, [*dims[:3], scores[3]])
    return out


def _named_mask(match: Match, attention: relax.Call, call: Call) -> relax.Expr:
    """An attention whose bias is causality, a window or padding -> the same without the bias."""
    attention = match.value(attention)
    attrs = attrs_of(attention)
    if not attrs.get("has_bias") or attrs.get("has_key_mask") or attrs.get("packed") or attrs.get("window"):
        raise Rejected("the fourth operand is no bias")
    q, k, v, bias = attention.args
    scores = (q.ty.shape.values[0], tirx.IntImm("int64", attrs["num_heads"]), q.ty.shape.values[1], k.ty.shape.values[1])
    try:
        meaning = read_bias(bias, scores, match.value)
    except Unreadable as reason:
        raise Rejected(f"the mask stays a bias: {reason}") from reason
    kept = {key: value for key, value in attrs.items() if key != "has_bias"}
    kept["causal"] = bool(kept.get("causal")) or meaning.causal or None
    kept["window"] = meaning.window or None
    if meaning.key_mask is not None:
        return call(q, k, v, meaning.key_mask, **{**kept, "has_key_mask": True})
    return call(q, k, v, **kept)


def _name(value: object) -> str:
    return value.op.name if isinstance(value, relax.Call) and isinstance(value.op, ir.Op) else ""
