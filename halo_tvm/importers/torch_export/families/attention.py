"""scaled_dot_product_attention -> halo.attention.

torch      q [b, h, s, d]   k, v [b, h_kv, t, d]   (a rank of 3 has one head)
halo       q [b, s, h, d]   k, v [b, t, h_kv, d]
A mask that is the same for all queries becomes a key mask, any other one a bias of -inf where it hides.
Heads that the graph repeats for grouped queries are taken from before the repetition.
"""

from __future__ import annotations

import math

from torch import fx
from tvm import relax, tirx

from ....dimensions import is_one
from ....relay_ops import OPERATORS
from ...meaning.builder import Refused, expr_dtype
from ...meaning.pointwise import widened
from .._call import Call, constant, fixed
from .._registry import converter, target_name

_HIDDEN = float("-inf")
_TURN = [0, 2, 1, 3]
_COPIES = ("aten.clone.default", "aten.contiguous.default", "aten.alias.default")


@converter("scaled_dot_product_attention.default")
def attention(c: Call) -> relax.Expr:
    if c["dropout_p"]:
        raise Refused(f"dropout_p={c['dropout_p']}")
    rank = c.rank("query")
    if rank < 3 or rank != c.rank("key"):
        raise Refused(f"operands of rank {rank} and {c.rank('key')}")
    q, k, v = c.tensor("query"), _unrepeated(c, "key"), _unrepeated(c, "value")
    if k.ty.ndim == 4 and v.ty.ndim == 4 and _differ(k.ty.shape.values[1], v.ty.shape.values[1]):
        k, v = c.tensor("key"), c.tensor("value")
    depth, value_depth = (fixed(c.shape_of(n)[-1], "head size") for n in ("query", "value"))
    if rank > 4 or depth != value_depth:
        return _composed(c, depth)
    q, k, v = (_with_heads(c, x) for x in (q, k, v))
    b, h, s, _ = q.ty.shape.values
    t, h_kv = k.ty.shape.values[2], k.ty.shape.values[1]
    h, h_kv = fixed(h, "number of heads"), fixed(h_kv, "number of heads")
    if not c.sizes.is_equal(k.ty.shape.values[0], b) or h % h_kv:
        return _composed(c, depth)
    causal = bool(c["is_causal"])
    # torch aligns causality with the first key, halo with the last: the same for equal lengths only
    if causal and not c.sizes.is_equal(s, t):
        return _composed(c, depth)
    operands = [c.permute(x, _TURN) for x in (q, k, v)]
    extras, attrs = _mask(c, s, t)
    scale = float(c["scale"]) if c["scale"] is not None else 1 / math.sqrt(depth)
    y = OPERATORS["attention"].call(
        *operands, *extras, num_heads=h, num_kv_heads=h_kv, head_dim=depth, scale=scale, causal=causal or None, **attrs
    )
    y = c.permute(c.emit(y), _TURN)
    return y if rank == 4 else c.reshape(y, c.shape)


def _with_heads(c: Call, x: relax.Expr) -> relax.Expr:
    b, *rest = x.ty.shape.values
    return c.reshape(x, [b, 1, *rest]) if len(rest) == 2 else x


def _differ(a: tirx.PrimExpr, b: tirx.PrimExpr) -> bool:
    return not (isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) == int(b))


def _mask(c: Call, s: tirx.PrimExpr, t: tirx.PrimExpr) -> tuple[list[relax.Expr], dict[str, bool]]:
    """The operands and attributes that say what is hidden."""
    if not c.has("attn_mask"):
        return [], {}
    node = _unexpanded(c.nodes["attn_mask"])
    mask = c.as_tensor(c.translator.env[node], None)
    shape = list(mask.ty.shape.values)
    if c.rank("query") == len(shape) == 3:
        shape.insert(1, 1)
    shape = [1] * (4 - len(shape)) + shape
    mask = c.reshape(mask, shape)
    if not c.sizes.is_equal(shape[3], t):
        shape[3] = t
        mask = c.broadcast(mask, shape)
    batch = c.shape_of("query")[0]
    if str(mask.ty.dtype) == "bool" and all(is_one(d) for d in shape[1:3]):
        keys = c.broadcast(c.reshape(mask, [shape[0], t]), [batch, t])
        return [keys], {"has_key_mask": True}
    if str(mask.ty.dtype) == "bool":
        mask = c.emit(relax.op.where(mask, constant(0, "float32"), constant(_HIDDEN, "float32")))
    return [c.cast(mask, "float32")], {"has_bias": True}


def _name(node: object) -> str:
    return target_name(node.target) if isinstance(node, fx.Node) and node.op == "call_function" else ""


def _unexpanded(node: fx.Node) -> fx.Node:
    """The mask before it was broadcast to all heads and queries."""
    while _name(node) in ("aten.expand.default", *_COPIES):
        inner = node.args[0]
        if inner.meta["val"].dim() != node.meta["val"].dim():
            return node
        node = inner
    return node


def _unrepeated(c: Call, name: str) -> relax.Expr:
    """Keys or values before each head was repeated for its group of queries.

    view(expand(unsqueeze(x, 2), [b, h_kv, group, t, d]), [b, h_kv * group, t, d])   ->   x
    """
    node = c.nodes[name]
    steps = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
    view = node
    while _name(view) in _COPIES:
        view = view.args[0]
    if _name(view) not in steps or view.meta["val"].dim() != 4:
        return c.tensor(name)
    expand = view.args[0]
    while _name(expand) in _COPIES:
        expand = expand.args[0]
    if _name(expand) != "aten.expand.default" or expand.meta["val"].dim() != 5:
        return c.tensor(name)
    unsqueeze = expand.args[0]
    if _name(unsqueeze) != "aten.unsqueeze.default" or unsqueeze.args[1] != 2:
        return c.tensor(name)
    x = unsqueeze.args[0]
    b, heads, group, t, d = expand.meta["val"].shape
    before, after = x.meta["val"].shape, view.meta["val"].shape
    if tuple(before) != (b, heads, t, d) or tuple(after) != (b, heads * group, t, d):
        return c.tensor(name)
    return c.as_tensor(c.translator.env[x], None)


def _composed(c: Call, depth: int) -> relax.Expr:
    """softmax(q @ k^T * scale + mask) @ v from its parts, for forms that the operator has not, in float32."""
    if c["enable_gqa"]:
        raise Refused("enable_gqa=True and unequal head sizes or lengths")
    q, k, v = (widened(c, c.tensor(n)) for n in ("query", "key", "value"))
    dtype = expr_dtype(q)
    scale = float(c["scale"]) if c["scale"] is not None else 1 / math.sqrt(depth)
    rank = c.rank("key")
    turned = c.permute(k, [*range(rank - 2), rank - 1, rank - 2])
    scores = c.emit(relax.op.multiply(c.emit(relax.op.matmul(q, turned)), constant(scale, dtype)))
    if c["is_causal"]:
        s, t = c.shape_of("query")[-2], c.shape_of("key")[-2]
        rows = c.reshape(c.emit(relax.op.arange(0, s, 1, "int64")), [s, 1])
        seen = c.emit(relax.op.less_equal(c.emit(relax.op.arange(0, t, 1, "int64")), rows))
        scores = c.emit(relax.op.where(seen, scores, constant(_HIDDEN, dtype)))
    if c.has("attn_mask"):
        mask = c.tensor("attn_mask")
        if str(mask.ty.dtype) == "bool":
            scores = c.emit(relax.op.where(mask, scores, constant(_HIDDEN, dtype)))
        else:
            scores = c.emit(relax.op.add(scores, c.cast(mask, dtype)))
    axis = scores.ty.ndim - 1
    hidden = c.emit(relax.op.equal(c.emit(relax.op.max(scores, [axis], keepdims=True)), constant(_HIDDEN, dtype)))
    weights = c.emit(relax.op.where(hidden, constant(0, dtype), c.emit(relax.op.nn.softmax(scores, axis))))
    return c.cast(c.emit(relax.op.matmul(weights, v)), c.dtype)
