"""ONNX for attention and rotary embedding: one operator where the spelling has one, else its parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..errors import UnsupportedModel
from ._graph import CONTRIB, Graph, attributes, dims_of, dtype_of, same
from ._relax_ops import Converter, Value


def _rotary(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "interleaved", "turned")
    heads, turned = int(dims_of(call)[2]), int(attrs.get("turned") or 0)
    if turned in (0, heads):
        return _rotated(g, call, args, bool(attrs.get("interleaved")))
    first, others = g.emit_many("Split", args[0], g.vector([turned, heads - turned]), outputs=2, axis=2)
    return g.emit("Concat", _rotated(g, call, [first, *args[1:]], bool(attrs.get("interleaved"))), others, axis=2)


def _rotated(g: Graph, call: relax.Call, args: list[Value], interleaved: bool) -> str:
    """All heads of args[0] rotated."""
    if g.spelling.rotary != "parts":
        return _rotated_whole(g, call, args, interleaved)
    half = int(dims_of(call)[3]) // 2
    # [..., s, d/2] -> [..., s, 1, d/2]: one angle for all heads, gathered once for all layers.
    cos, sin = (g.once("Unsqueeze", g.once("Gather", table, args[1], axis=0), g.vector([-2])) for table in args[2:])
    if interleaved:
        pairs = g.emit("Reshape", args[0], g.vector([0, 0, 0, half, 2]))
        left, right = (g.emit("Gather", pairs, g.constant(np.array(i, np.int64)), axis=-1) for i in (0, 1))
    else:
        left, right = g.emit_many("Split", args[0], g.vector([half, half]), outputs=2, axis=-1)
    first = g.emit("Sub", g.emit("Mul", left, cos), g.emit("Mul", right, sin))
    second = g.emit("Add", g.emit("Mul", right, cos), g.emit("Mul", left, sin))
    if interleaved:
        stacked = [g.emit("Unsqueeze", part, g.vector([-1])) for part in (first, second)]
        return g.emit("Reshape", g.emit("Concat", *stacked, axis=-1), g.vector([0, 0, 0, 2 * half]))
    return g.emit("Concat", first, second, axis=-1)


def _rotated_whole(g: Graph, call: relax.Call, args: list[Value], interleaved: bool) -> str:
    """As one RotaryEmbedding: of ONNX, or of onnxruntime, which takes positions before the tables."""
    b, s, _, d = dims_of(call)
    positions = args[1]
    if len(dims_of(call.args[1])) == 1:
        positions = g.once("Expand", g.once("Unsqueeze", positions, g.vector([0])), g.shape([b, s]))
    if dtype_of(call.args[1]) != "int64":
        positions = g.once("Cast", positions, to=INT64)
    heads = g.emit("Transpose", args[0], perm=[0, 2, 1, 3])
    attrs: dict[str, object] = {"interleaved": int(interleaved)}
    if g.spelling.rotary == "op":
        out = g.emit("RotaryEmbedding", heads, *args[2:], positions, **attrs)
    else:
        out = g.emit("RotaryEmbedding", heads, positions, *args[2:], domain=CONTRIB, **attrs)
    return g.emit("Transpose", out, perm=[0, 2, 1, 3])


def _attention(g: Graph, call: relax.Call, args: list[Value]) -> str:
    """A query that sees no key is left undefined here: the common exporters' graphs average over hidden keys."""
    attrs = attributes(
        call,
        "packed",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "scale",
        "causal",
        "window",
        "softcap",
        "has_key_mask",
        "has_bias",
        "has_sinks",
        "products",  # a permission, which nobody has to take
    )
    heads, kv_heads, d = int(attrs["num_heads"]), int(attrs["num_kv_heads"]), int(attrs["head_dim"])
    packed, causal, scale = bool(attrs.get("packed")), bool(attrs.get("causal")), float(attrs["scale"])
    rest = list(args[1 if packed else 3 :])
    mask = rest.pop(0) if attrs.get("has_key_mask") else None
    bias = rest.pop(0) if attrs.get("has_bias") else None
    sinks = rest.pop(0) if attrs.get("has_sinks") else None
    if rest:
        raise UnsupportedModel(
            f"attention with {len(args)} arguments; known are q, k, v (or packed qkv), a key mask, a bias and sinks"
        )
    s = dims_of(call.args[0])[1]
    t = s if packed else dims_of(call.args[1])[1]
    if packed:
        widths = g.vector([heads * d, kv_heads * d, kv_heads * d])
        q, k, v = g.emit_many("Split", args[0], widths, outputs=3, axis=-1)
    else:
        q, k, v = args[:3]
    # The contrib operator aligns a causal mask at the top left, so it serves self-attention only.
    whole = (
        bias is None or sinks is not None or same(dims_of(call.args[-1])[2], s)
    )  # it takes no bias that all queries share
    simple = (
        sinks is None and whole and not attrs.get("window") and not attrs.get("softcap") and (not causal or same(s, t))
    )
    if g.spelling.attention == "contrib" and heads == kv_heads and simple:
        return _attention_contrib(g, (q, k, v), heads, d, scale, causal, (mask, bias), packed)
    if (
        g.spelling.attention == "op" and not attrs.get("softcap") and sinks is None
    ):  # a cap meets masks before the scores there
        flat = [q, k, v] if packed else [_flat(g, x, n * d) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))]
        hidden = [] if bias is None else [bias]
        whole = causal and same(s, t) and not attrs.get("window")
        if (causal or attrs.get("window")) and not whole:
            hidden.append(_position_bias(g, s, t, causal, attrs.get("window")))
        if mask is not None:
            hidden.append(_key_bias(g, mask))
        return _attention_op(g, flat, (heads, kv_heads, d), scale, whole, hidden, (s, t))

    def split_heads(x: str, count: int, perm: list[int]) -> str:
        x = g.emit("Reshape", x, g.vector([0, 0, count, d])) if packed else x
        x = g.emit("Transpose", x, perm=perm)
        if count == heads:
            return x
        # [b, h_kv, ...] -> [b, h, ...]: every key/value head serves a group of query heads.
        x = g.emit("Expand", g.emit("Unsqueeze", x, g.vector([2])), g.vector([1, 1, heads // count, 1, 1]))
        return g.emit("Reshape", x, g.vector([0, heads, d, -1] if perm[2] == 3 else [0, heads, -1, d]))

    q, k, v = (
        split_heads(q, heads, [0, 2, 1, 3]),
        split_heads(k, kv_heads, [0, 2, 3, 1]),
        split_heads(v, kv_heads, [0, 2, 1, 3]),
    )
    scores = g.emit("Mul", g.emit("MatMul", q, k), _number(g, scale))
    if attrs.get("softcap"):
        cap = _number(g, float(attrs["softcap"]))
        scores = g.emit("Mul", g.emit("Tanh", g.emit("Div", scores, cap)), cap)
    if bias is not None:
        scores = g.emit("Add", scores, bias)
    if causal or attrs.get("window"):
        scores = g.emit("Add", scores, _position_bias(g, s, t, causal, attrs.get("window")))
    if mask is not None:
        scores = g.emit("Add", scores, _key_bias(g, mask))
    weights = g.emit("Softmax", scores, axis=-1) if sinks is None else _softmax_with_sinks(g, scores, sinks)
    out = g.emit("MatMul", weights, v)
    return g.emit("Transpose", out, perm=[0, 2, 1, 3])


def _softmax_with_sinks(g: Graph, scores: str, sinks: str) -> str:
    """Softmax over the scores [b, h, s, t] of keys and one more, sinks [h], whose own weight is left out."""
    last = g.vector([-1])
    sink = g.emit("Reshape", sinks, g.vector([1, -1, 1, 1]))
    peak = g.emit("Max", g.emit("ReduceMax", scores, last, keepdims=1), sink)
    weights = g.emit("Exp", g.emit("Sub", scores, peak))
    total = g.emit("Add", g.emit("ReduceSum", weights, last, keepdims=1), g.emit("Exp", g.emit("Sub", sink, peak)))
    return g.emit("Div", weights, total)


def _flat(g: Graph, x: str, width: int) -> str:
    """[b, s, h, d] -> [b, s, h * d]"""
    return g.emit("Reshape", x, g.vector([0, 0, width]))


def _attention_op(
    g: Graph,
    flat: Sequence[str],
    sizes: tuple[int, int, int],
    scale: float,
    causal: bool,
    hidden: Sequence[str],
    scores: tuple[object, object],
) -> str:
    """Attention of opset 23 on [b, s, h * d], with the sum of what `hidden` adds to the scores [s, t]."""
    heads, kv_heads, d = sizes
    mask = [] if not hidden else [hidden[0]]
    for more in hidden[1:]:
        mask = [g.once("Add", mask[0], more)]
    if mask:  # engines want the last two sizes written out
        mask = [g.once("Expand", mask[0], g.shape(list(scores)))]
    attrs = {"q_num_heads": heads, "kv_num_heads": kv_heads, "scale": scale, "is_causal": int(causal)}
    out = g.emit("Attention", *flat, *mask, **attrs)
    return g.emit("Reshape", out, g.vector([0, 0, heads, d]))


def _attention_contrib(
    g: Graph,
    qkv: tuple[str, str, str],
    heads: int,
    d: int,
    scale: float,
    causal: bool,
    extras: tuple[str | None, str | None],
    packed: bool,
) -> str:
    """The same through com.microsoft MultiHeadAttention, whose tensors are [b, s, h * d]."""
    flat = qkv if packed else [_flat(g, x, heads * d) for x in qkv]
    mask, bias = extras
    key_mask = g.once("Cast", g.once("Cast", mask, to=BOOL), to=INT32) if mask is not None else ""
    more = ["", key_mask, bias] if bias else ["", key_mask] if key_mask else []
    out = g.emit(
        "MultiHeadAttention",
        *flat,
        *more,
        domain=CONTRIB,
        num_heads=heads,
        scale=scale,
        unidirectional=int(causal),
    )
    return g.emit("Reshape", out, g.vector([0, 0, heads, d]))


INT32, INT64, BOOL = 6, 7, 9  # ONNX's numbers of these types
HIDDEN = float(np.finfo(np.float32).min) / 4  # a few of them added stay finite, so a hidden row gives no NaN


def _number(g: Graph, value: float) -> str:
    return g.constant(np.array(value, np.float32))


def _position_bias(g: Graph, s: object, t: object, causal: bool, window: object) -> str:
    """[s, t]: 0 where query i, at position p = i + t - s, may look at key j, else what softmax turns into 0."""
    keys = g.once("Range", g.dim_scalar(0), g.dim_scalar(t), g.dim_scalar(1))
    rows = g.once("Range", g.dim_scalar(0), g.dim_scalar(s), g.dim_scalar(1))
    if not same(s, t):
        rows = g.once("Add", rows, g.once("Sub", g.dim_scalar(t), g.dim_scalar(s)))
    rows = g.once("Unsqueeze", rows, g.vector([1]))
    hidden = [g.once("Less", rows, keys)] if causal else []
    if window:
        hidden.append(g.once("LessOrEqual", keys, g.once("Sub", rows, g.dim_scalar(int(window)))))
    either = hidden[0] if len(hidden) == 1 else g.once("Or", *hidden)
    return g.once("Where", either, _number(g, HIDDEN), _number(g, 0.0))


def _key_bias(g: Graph, mask: str) -> str:
    """[b, 1, 1, t] from a key mask [b, t] whose zeros hide keys."""
    shown = g.once("Unsqueeze", g.once("Cast", mask, to=BOOL), g.vector([1, 2]))
    return g.once("Where", shown, _number(g, 0.0), _number(g, HIDDEN))


CONVERTERS: dict[str, Converter] = {"relax.halo.rotary": _rotary, "relax.halo.attention": _attention}
