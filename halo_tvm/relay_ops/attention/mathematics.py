"""The meaning of `halo.attention`: TE for any target, NumPy for comparison, and its cost.

The TE version materialises the scores; a schedule rule that keeps them in cache replaces it where it can.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ..operator import f32
from ..parts.kept_rows import widened, widened_element

INVISIBLE = -1e30  # a score at or below it is masked


def compute(
    *args: te.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    packed: bool = False,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    has_key_mask: bool = False,
    has_bias: bool = False,
    has_sinks: bool = False,
    has_lengths: bool = False,
    products: str = "float32",  # a permission that this body does not take
) -> te.Tensor:
    h, d, group, dtype = num_heads, head_dim, num_heads // num_kv_heads, args[0].dtype
    (b, s), t = args[0].shape[:2], args[0 if packed else 1].shape[1]
    extras = iter(args[1 if packed else 3 :])
    key_mask = next(extras) if has_key_mask else None
    bias = next(extras) if has_bias else None
    sinks = next(extras) if has_sinks else None
    lengths = next(extras) if has_lengths else None

    def query(n, i, e, x):
        return f32(args[0][n, i, e * d + x] if packed else args[0][n, i, e, x])

    def key(n, j, e, x):
        return f32(args[0][n, j, (h + e) * d + x]) if packed else widened_element(args[1], n, j, e, x)

    def value(n, j, e, x):
        return f32(args[0][n, j, (h + num_kv_heads + e) * d + x]) if packed else widened_element(args[2], n, j, e, x)

    def keys(n):
        return clamped_lengths(lengths[n], t) if has_lengths else t

    def mixed_value(n, j, e, x):  # behind the lengths may lie anything, and zero times infinity is not zero
        found = value(n, j, e // group, x)
        return tirx.if_then_else(j < keys(n), found, tirx.const(0, "float32")) if has_lengths else found

    def dot(n, e, i, j):
        return te.sum(query(n, i, e, x) * key(n, j, e // group, x), axis=x)

    x = te.reduce_axis((0, d), "x")
    dots = te.compute((b, h, s, t), dot, name="dots")

    def score(n, e, i, j):
        y = dots[n, e, i, j] * tirx.const(float(scale), "float32")
        if softcap:
            cap = tirx.const(float(softcap), "float32")
            y = te.tanh(y / cap) * cap
        if bias is not None:
            at = [
                0 if isinstance(dim, tirx.IntImm) and dim.value == 1 else index
                for dim, index in zip(bias.shape[:3], (n, e, i))
            ]
            y = y + bias[(*at, j)]
        seen = [j < keys(n)] if has_lengths else []
        shift = keys(n) - s
        if causal:
            seen.append(j <= i + shift)
        if window:
            seen.append(j > i + shift - window)
        if key_mask is not None:
            is_bool = str(key_mask.dtype) == "bool"
            seen.append(key_mask[n, j] if is_bool else key_mask[n, j] != tirx.const(0, key_mask.dtype))
        return tirx.Select(tirx.all(*seen), y, tirx.min_value("float32")) if seen else y

    scores = te.compute((b, h, s, t), score, name="scores")
    weights, total = _weights(scores, sinks)
    j = te.reduce_axis((0, t), "j2")
    mixed = te.compute(
        (b, s, h, d),
        lambda n, i, e, x: te.sum(weights[n, e, i, j] * mixed_value(n, j, e, x), axis=j),
        name="attention",
        attrs={"halo.op": "attention"},
    )

    def normal(n, i, e, x):
        whole = total[n, e, i]
        one = tirx.const(1, "float32")
        return (mixed[n, i, e, x] / tirx.Select(whole > 0, whole, one)).astype(dtype)

    return te.compute((b, s, h, d), normal, name="normalise")


def _weights(scores: te.Tensor, sinks: te.Tensor | None) -> tuple[te.Tensor, te.Tensor]:
    """What the scores of every row [n, e, i] weigh, and the sum of that and of its head's sink."""
    *rows, t = scores.shape
    j0, j1 = te.reduce_axis((0, t), "j0"), te.reduce_axis((0, t), "j1")
    peak = of_keys = te.compute(rows, lambda n, e, i: te.max(scores[n, e, i, j0], axis=j0), name="peak")
    if sinks is not None:
        peak = te.compute(rows, lambda n, e, i: tirx.max(of_keys[n, e, i], sinks[e]), name="peak_or_sink")

    def weight(n, e, i, j):
        y = scores[n, e, i, j]
        # NaN is more than nothing, and is not dropped.
        return tirx.Select(y <= tirx.const(INVISIBLE, "float32"), tirx.const(0, "float32"), te.exp(y - peak[n, e, i]))

    weights = te.compute(scores.shape, weight, name="weights")
    total = seen = te.compute(rows, lambda n, e, i: te.sum(weights[n, e, i, j1], axis=j1), name="total")
    if sinks is not None:
        total = te.compute(
            rows, lambda n, e, i: seen[n, e, i] + te.exp(sinks[e] - peak[n, e, i]), name="total_with_sink"
        )
    return weights, total


def clamped_lengths(length: tirx.PrimExpr, t: tirx.PrimExpr | int) -> tirx.PrimExpr:
    """The valid keys of one batch row as int64 within 0 .. t, whatever the data says."""
    return tirx.max(tirx.min(length.astype("int64"), t), tirx.const(0, "int64"))


def visible(i: np.ndarray, j: np.ndarray, shift: int | np.ndarray, causal: bool, window: int) -> np.ndarray:
    """What causality and the window let query `i` see of key `j`; `shift` is t - s, or per batch row."""
    seen = np.broadcast_to(True, np.broadcast(i, j, shift).shape)
    if causal:
        seen = seen & (j <= i + shift)
    if window:
        seen = seen & (j > i + shift - window)
    return seen


def split_packed(qkv: np.ndarray, h: int, h_kv: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[b, s, (h + 2 * h_kv) * d] -> q [b, s, h, d], k and v [b, s, h_kv, d]."""
    heads = qkv.reshape(*qkv.shape[:2], h + 2 * h_kv, d)
    return heads[:, :, :h], heads[:, :, h : h + h_kv], heads[:, :, h + h_kv :]


def reference(
    *args: np.ndarray,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    packed: bool = False,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    has_key_mask: bool = False,
    has_bias: bool = False,
    has_sinks: bool = False,
    has_lengths: bool = False,
    products: str = "float32",  # a permission: the exact result is the same
) -> np.ndarray:
    operands = 1 if packed else 3
    q, k, v = split_packed(args[0], num_heads, num_kv_heads, head_dim) if packed else args[:3]
    extras = list(args[operands:])
    group = num_heads // num_kv_heads
    k, v = (np.repeat(widened(x), group, axis=2) for x in (k, v))
    s, t = q.shape[1], k.shape[1]
    keys = np.clip(extras.pop(), 0, t)[:, None, None, None] if has_lengths else t
    if has_lengths:  # behind them may lie anything, and zero times infinity is not zero
        k, v = (np.where(np.arange(t)[:, None, None] < keys, x, 0) for x in (k, v))
    scores = q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1) * q.dtype.type(scale)
    if softcap:
        scores = np.tanh(scores / softcap) * q.dtype.type(softcap)
    seen = visible(np.arange(s)[:, None], np.arange(t), keys - s, causal, window) & (np.arange(t) < keys)
    seen = np.broadcast_to(seen, scores.shape)
    if has_key_mask:
        seen = seen & (extras.pop(0) != 0)[:, None, None, :]
    if has_bias:
        scores = scores + extras.pop(0)
    seen = seen & ~(scores <= INVISIBLE)  # a NaN is seen
    peak = np.where(seen, scores, -np.inf).max(-1, keepdims=True, initial=INVISIBLE)
    if has_sinks:
        sinks = extras.pop(0)[None, :, None, None]
        peak = np.maximum(peak, sinks)
    with np.errstate(invalid="ignore"):  # an infinite score less itself: NaN, as it is meant
        weights = np.where(seen, np.exp(np.where(seen, scores - peak, 0)), 0)
    total = weights.sum(-1, keepdims=True) + (np.exp(sinks - peak) if has_sinks else 0)
    weights = (weights / np.where(total == 0, 1, total)).astype(q.dtype)
    return (weights @ v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def _lengths(shapes: list[tuple[int, ...]], packed: bool) -> tuple[int, int, int]:
    b, s = shapes[0][:2]
    return b, s, s if packed else shapes[1][1]


def flops(
    shapes: list[tuple[int, ...]],
    *,
    num_heads: int,
    head_dim: int,
    packed: bool = False,
    causal: bool = False,
    window: int = 0,
    **_other: object,
) -> int:
    """The two products over the visible pairs; the softmax is left out, as is usual.

    Sizes may be symbolic; then no query may stand in front of the first key (s <= t), and a window counts whole.
    """
    b, s, t = _lengths(shapes, packed)
    if not (isinstance(s, int) and isinstance(t, int)):
        pairs = s * t - s * (s - 1) // 2 if causal else s * t
        pairs = tirx.min(pairs, s * window) if window else pairs
        return 4 * b * num_heads * head_dim * pairs
    pairs = int(visible(np.arange(s)[:, None], np.arange(t), t - s, causal, window).sum())
    return 4 * b * num_heads * head_dim * pairs
