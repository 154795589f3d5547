"""Attention behind caches that come in and go out, as one GroupQueryAttention of onnxruntime.

What a definition writes of a layer,

    present = concat(past, transpose(new))  [b, kv_heads, total, d], for keys and for values; both are returned
    attention(q, transpose(present keys), transpose(present values), key mask)

is one node, which appends without a copy of its own where the caller lends it one buffer for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from tvm import relax

from ..relay_ops.operator import op_name
from ._attention import INT32
from ._graph import CONTRIB, Graph, attributes


@dataclass(frozen=True)
class Appended:
    """Keys or values of one attention: the caller's, the new ones [b, s, kv_heads, d], and all of them by name."""

    past: relax.Var
    new: relax.Var
    present: str


@dataclass(frozen=True)
class CachedAttention:
    keys: Appended
    values: Appended


@dataclass(frozen=True)
class Cached:
    """Attention that is one node, and the names of the variables for which nothing else is written then."""

    calls: Mapping[relax.Call, CachedAttention]
    named: Mapping[relax.Var, str]


def find_cached(main: relax.Function, g: Graph) -> Cached:
    """All such attention of `main`; none where onnxruntime's own operators are not asked for."""
    found: dict[relax.Call, CachedAttention] = {}
    named: dict[relax.Var, str] = {}
    if g.spelling.attention == "contrib" and isinstance(main.body, relax.SeqExpr):
        values = {b.var: b.value for block in main.body.blocks for b in block.bindings}
        for call in values.values():
            if _is_call(call, "relax.halo.attention") and _takes(call):
                keys, others = (_appended(main, g, values, arg, named) for arg in call.args[1:3])
                if keys is not None and others is not None:
                    found[call] = CachedAttention(keys, others)
    return Cached(found, named)


def _takes(call: relax.Call) -> bool:
    """Whether the node has a place for all that this attention takes: a mask of keys, and no bias."""
    attrs = call.attrs
    return bool(attrs.get("has_key_mask") and attrs.get("causal") and not attrs.get("has_bias"))


def _appended(
    main: relax.Function,
    g: Graph,
    values: Mapping[relax.Var, relax.Expr],
    whole: relax.Expr,
    named: dict[relax.Var, str],
) -> Appended | None:
    present = _transposed(values, whole)
    joined = values.get(present)
    if not _is_call(joined, "relax.concat") or int(joined.attrs.axis) != 2 or len(joined.args[0].fields) != 2:
        return None
    past, turned = joined.args[0].fields
    new = _transposed(values, turned)
    if new is None or not any(past.same_as(param) for param in main.params):
        return None
    named[present] = g.name("present")
    named[whole] = named[turned] = ""  # read by nothing that is written
    return Appended(past, new, named[present])


def _transposed(values: Mapping[relax.Var, relax.Expr], x: relax.Expr) -> relax.Var | None:
    """What `x` is, with its axes 1 and 2 exchanged."""
    call = values.get(x)
    if not _is_call(call, "relax.permute_dims") or [int(axis) for axis in call.attrs.axes or ()] != [0, 2, 1, 3]:
        return None
    return call.args[0]


def _is_call(x: relax.Expr | None, name: str) -> TypeGuard[relax.Call]:
    return op_name(x) == name


def grouped_query(g: Graph, call: relax.Call, found: CachedAttention, value: Callable[[relax.Expr], str]) -> str:
    """The node of `call`; `value` gives the name of a tensor. Padding has to stand behind a row's tokens."""
    attrs: dict[str, Any] = attributes(
        call,
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "scale",
        "causal",
        "window",
        "softcap",
        "has_key_mask",
        "products",
    )
    heads, kv_heads, d = (int(attrs[name]) for name in ("num_heads", "num_kv_heads", "head_dim"))
    new = (value(call.args[0]), value(found.keys.new), value(found.values.new))
    rows = [
        g.emit("Reshape", x, g.vector([0, 0, n * d])) for x, n in zip(new, (heads, kv_heads, kv_heads), strict=True)
    ]
    mask = value(call.args[3])
    count = g.once("ReduceSum", mask, g.vector([1]), keepdims=0)
    last = g.once("Cast", g.once("Sub", count, g.vector([1])), to=INT32)
    total = g.once("Squeeze", g.once("Gather", g.once("Shape", mask), g.vector([1]), axis=0), g.vector([0]))
    out, *_ = g.emit_many(
        "GroupQueryAttention",
        *rows,
        value(found.keys.past),
        value(found.values.past),
        last,
        g.once("Cast", total, to=INT32),
        outputs=3,
        domain=CONTRIB,
        num_heads=heads,
        kv_num_heads=kv_heads,
        scale=float(attrs["scale"]),
        local_window_size=int(attrs.get("window") or -1),
        softcap=float(attrs.get("softcap") or 0.0),
    )
    g.nodes[-1].output[1:] = [found.keys.present, found.values.present]
    return g.emit("Reshape", out, g.vector([0, 0, heads, d]))
