"""ONNX for the `halo` operators: a table from operator name to converter, as in `_relax_ops.py`.

Every converter names the attributes it understands; an attribute beyond them is refused, never dropped.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import UnsupportedModel
from ..relay_ops.operator import attrs_of
from ._graph import CONTRIB, Graph, dims_of, dtype_of, same
from ._relax_ops import Converter, Value, gelu, silu

ACTIVATIONS: dict[str, Converter] = {
    "gelu": lambda g, call, args: gelu(g, args[0], dtype_of(call), approximate=False),
    "gelu_tanh": lambda g, call, args: gelu(g, args[0], dtype_of(call), approximate=True),
    "relu": lambda g, call, args: g.emit("Relu", args[0]),
    "silu": lambda g, call, args: silu(g, args[0]),
}


def attributes(call: relax.Call, *known: str) -> dict[str, object]:
    """The call's attributes; one that is set and not in `known` raises `UnsupportedModel`."""
    attrs = attrs_of(call)
    extra = [f"{k}={v!r}" for k, v in attrs.items() if k not in (*known, "layer") and v not in (None, False)]
    if extra:
        raise UnsupportedModel(f"attributes without an ONNX spelling: {', '.join(extra)}")
    return attrs


def matmul_weight(g: Graph, x: str, weight: relax.Expr, layout: str) -> str:
    """x @ weight for a weight in layout "kn" or "nk"."""
    if layout not in ("kn", "nk"):
        raise UnsupportedModel(f"weights in layout {layout!r}: export the model before it is optimised")
    return g.emit("MatMul", x, g.weight_kn(weight, layout))


def _linear(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "layout", "n")
    y = matmul_weight(g, args[0], call.args[1], attrs["layout"])
    return g.emit("Add", y, args[2]) if len(args) == 3 else y


def _matmul(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "transpose_a", "transpose_b")

    def side(index: int, transposed: object) -> str:
        rank = len(dims_of(call.args[index]))
        perm = [*range(rank - 2), rank - 1, rank - 2]
        return g.emit("Transpose", args[index], perm=perm) if transposed else args[index]

    return g.emit("MatMul", side(0, attrs.get("transpose_a")), side(1, attrs.get("transpose_b")))


def _ffn(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "activation", "gated", "bias", "layout")
    activation = ACTIVATIONS.get(str(attrs["activation"]))
    if activation is None:
        raise UnsupportedModel(f"activation {attrs['activation']!r}; known are {', '.join(sorted(ACTIVATIONS))}")
    step = 2 if attrs.get("bias") else 1

    def project(x: str, index: int) -> str:
        at = 1 + index * step
        y = matmul_weight(g, x, call.args[at], attrs["layout"])
        return g.emit("Add", y, args[at + 1]) if step == 2 else y

    hidden = activation(g, call, [project(args[0], 0)])
    if attrs.get("gated"):
        hidden = g.emit("Mul", hidden, project(args[0], 1))
        return project(hidden, 2)
    return project(hidden, 1)


def _layer_norm(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "eps")
    x = g.emit("Add", args[0], args[3]) if len(args) == 4 else args[0]
    return g.emit("LayerNormalization", x, *args[1:3], axis=-1, epsilon=float(attrs["eps"]))


def _rms_norm(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "eps")
    x = g.emit("Add", args[0], args[2]) if len(args) == 3 else args[0]
    if g.spelling.rms_norm == "contrib":
        # onnxruntime keeps this operator under the default domain.
        return g.emit("SimplifiedLayerNormalization", x, args[1], axis=-1, epsilon=float(attrs["eps"]))
    dtype = dtype_of(call)
    mean = g.emit("ReduceMean", g.emit("Mul", x, x), g.vector([-1]), keepdims=1)
    root = g.emit("Sqrt", g.emit("Add", mean, g.constant(np.array(attrs["eps"], dtype))))
    return g.emit("Mul", g.emit("Div", x, root), args[1])


def _embedding(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "layout", "n")
    if attrs.get("layout", "nk") != "nk":
        raise UnsupportedModel(
            f"an embedding table in layout {attrs['layout']!r}: export the model before it is optimised"
        )
    return g.emit("Gather", args[1], args[0], axis=0)


def _rotary(g: Graph, call: relax.Call, args: list[Value]) -> str:
    attrs = attributes(call, "interleaved", "turned")
    heads, turned = int(dims_of(call)[2]), int(attrs.get("turned") or 0)
    if turned in (0, heads):
        return _rotated(g, call, args, bool(attrs.get("interleaved")))
    first, others = g.emit_many("Split", args[0], g.vector([turned, heads - turned]), outputs=2, axis=2)
    return g.emit("Concat", _rotated(g, call, [first, *args[1:]], bool(attrs.get("interleaved"))), others, axis=2)


def _rotated(g: Graph, call: relax.Call, args: list[Value], interleaved: bool) -> str:
    """All heads of args[0] rotated."""
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
        "products",  # a permission, which nobody has to take
    )
    heads, kv_heads, d = int(attrs["num_heads"]), int(attrs["num_kv_heads"]), int(attrs["head_dim"])
    packed, causal, scale = bool(attrs.get("packed")), bool(attrs.get("causal")), float(attrs["scale"])
    rest = list(args[1 if packed else 3 :])
    mask = rest.pop(0) if attrs.get("has_key_mask") else None
    bias = rest.pop(0) if attrs.get("has_bias") else None
    if rest:
        raise UnsupportedModel(
            f"attention with {len(args)} arguments; known are q, k, v (or packed qkv), a key mask and a bias"
        )
    s = dims_of(call.args[0])[1]
    t = s if packed else dims_of(call.args[1])[1]
    if packed:
        widths = g.vector([heads * d, kv_heads * d, kv_heads * d])
        q, k, v = g.emit_many("Split", args[0], widths, outputs=3, axis=-1)
    else:
        q, k, v = args[:3]
    # The contrib operator aligns a causal mask at the top left, so it serves self-attention only.
    whole = bias is None or same(dims_of(call.args[-1])[2], s)  # it takes no bias that all queries share
    simple = whole and not attrs.get("window") and not attrs.get("softcap") and (not causal or same(s, t))
    if g.spelling.attention == "contrib" and heads == kv_heads and simple:
        return _attention_contrib(g, (q, k, v), heads, d, scale, causal, (mask, bias), packed)

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
    out = g.emit("MatMul", g.emit("Softmax", scores, axis=-1), v)
    return g.emit("Transpose", out, perm=[0, 2, 1, 3])


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
    flat = qkv if packed else [g.emit("Reshape", x, g.vector([0, 0, heads * d])) for x in qkv]
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


INT32, BOOL = 6, 9  # ONNX's numbers of these types
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


CONVERTERS: dict[str, Converter] = {
    "relax.halo.linear": _linear,
    "relax.halo.matmul": _matmul,
    "relax.halo.ffn": _ffn,
    "relax.halo.layer_norm": _layer_norm,
    "relax.halo.rms_norm": _rms_norm,
    "relax.halo.embedding": _embedding,
    "relax.halo.rotary": _rotary,
    "relax.halo.attention": _attention,
}
