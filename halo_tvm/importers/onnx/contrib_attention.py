"""Attention as onnxruntime spells it: Attention, MultiHeadAttention and GroupQueryAttention."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_shape
from ..meaning.sizes import Dim, prim
from ._attend import Visibility, attend, bias_of
from ._node import Node
from ._registry import converter
from ._spell import add, concat, cut, number, transpose
from .attention import split_heads
from .matmul import product
from .rotary import rotate

_MS = "com.microsoft"
_SWAP = (0, 2, 1, 3)


@converter("Attention", domain=_MS)
def attention(node: Node) -> tuple[relax.Expr | None, ...]:
    """Projection of one input to queries, keys and values, and their attention."""
    projected = product(node, node.x(0), node.value(1))
    if node.has(2):
        projected = add(node, projected, node.x(2))
    return projected_attention(node, projected, mask=3, cached=4, bias=5)


def projected_attention(
    node: Node, projected: relax.Expr, *, mask: int, cached: int, bias: int
) -> tuple[relax.Expr | None, ...]:
    """Attention of queries, keys and values side by side in `projected` [b, s, width], and the cache behind it.

    mask, cached, bias: which inputs they are
    """
    _none(node, "do_rotary", "past_present_share_buffer")
    heads = int(node.attr("num_heads"))
    whole = expr_shape(projected)[2]
    sizes = [int(x) for x in node.attr("qkv_hidden_sizes", [])] or [whole // 3] * 3
    edges = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    q, k, v = (split_heads(node, cut(node, projected, 2, a, b), heads) for a, b in zip(edges, edges[1:]))
    past: Dim = 0
    if node.has(cached):
        past = node.shape(cached)[3]
        old = [cut(node, node.x(cached), 0, i, i + 1) for i in range(2)]
        old = [node.reshape(x, list(node.shape(cached)[1:])) for x in old]
        k, v = (concat(node, [transpose(node, o, _SWAP), x], 1) for o, x in zip(old, (k, v)))
    present = None
    if len(node.outputs) > 1 and node.outputs[1]:
        pair = [transpose(node, x, _SWAP) for x in (k, v)]
        present = concat(node, [node.reshape(x, [1, *expr_shape(x)]) for x in pair], 0)
    seen = _visibility(node, q, k, mask=mask, bias=bias, past=past)
    return (_result(node, q, k, v, seen), present)


@converter("MultiHeadAttention", domain=_MS)
def multi_head_attention(node: Node) -> tuple[relax.Expr | None, ...]:
    """Queries, keys and values after their projections, flat, packed, or (keys and values) with heads first."""
    for index in (8, 9):
        node.refuse_unless(not node.has(index), f"expected no input {index} (shared or beam caches)")
    node.refuse_unless(not any(node.outputs[3:]), "expected no fourth output")
    heads = int(node.attr("num_heads"))
    rank = node.rank(0)
    if rank == 5:  # [b, s, h, 3, d]
        node.refuse_unless(not node.has(3), "expected no bias for packed queries, keys and values")
        q, k, v = (_taken(node, node.x(0), i) for i in range(3))
    else:
        q = split_heads(node, _biased(node, node.x(0), 0), heads)
        if node.rank(1) == 5:  # [b, t, h, 2, d]
            k, v = (_taken(node, node.x(1), i) for i in range(2))
        elif node.rank(1) == 4:  # heads first: another sequence's, already with its bias
            k, v = (transpose(node, node.x(i), _SWAP) for i in (1, 2))
        else:
            k, v = (split_heads(node, _biased(node, node.x(i), i), heads) for i in (1, 2))
    past: Dim = 0
    if node.has(6):
        past = node.shape(6)[2]
        k, v = (concat(node, [transpose(node, node.x(i), _SWAP), x], 1) for i, x in ((6, k), (7, v)))
    present = [transpose(node, x, _SWAP) for x in (k, v)] if any(node.outputs[1:3]) else [None, None]
    seen = _visibility(node, q, k, mask=4, bias=5, past=past)
    return (_result(node, q, k, v, seen), *present)


def _taken(node: Node, x: relax.Expr, index: int) -> relax.Expr:
    """One of the tensors packed along axis 3."""
    b, s, h, _, d = expr_shape(x)
    return node.reshape(cut(node, x, 3, index, index + 1), [b, s, h, d])


def _biased(node: Node, x: relax.Expr, part: int) -> relax.Expr:
    """`x` plus its part of the bias of queries, keys and values, one behind the other."""
    if not node.has(3):
        return x
    widths = [node.shape(0)[2], node.shape(0)[2], 0]
    begin = sum(widths[:part])
    return add(node, x, cut(node, node.x(3), 0, begin, begin + expr_shape(x)[2]))


def _result(node: Node, q: relax.Expr, k: relax.Expr, v: relax.Expr, seen: Visibility) -> relax.Expr:
    b, s, h, d = expr_shape(q)
    scale = float(node.attr("scale", 0.0)) or 1.0 / math.sqrt(d)
    out = attend(node, q, k, v, seen, scale=scale).out
    return node.reshape(out, [b, s, h * expr_shape(out)[3]])


def _visibility(node: Node, q: relax.Expr, k: relax.Expr, *, mask: int, bias: int, past: Dim) -> Visibility:
    """Key mask and additive bias as one; hidden keys get mask_filter_value, as in onnxruntime."""
    b, s, h, _ = expr_shape(q)
    t = expr_shape(k)[1]
    causal = 0 if node.attr("unidirectional", 0) else -1
    hidden = float(node.attr("mask_filter_value", -10000.0))
    keys = None
    if node.has(mask):
        shape = node.shape(mask)
        node.refuse_unless(len(shape) in (1, 2, 3), f"expected a mask of rank 1, 2 or 3, found {len(shape)}")
        if len(shape) == 1:
            keys = _between(node, node.cast(node.x(mask), "int64"), b, t)
        else:
            seen = node.emit(relax.op.not_equal(node.x(mask), number(0, node.dtype(mask))))
            keys = node.reshape(seen, [shape[0], 1, *([1] if len(shape) == 2 else [shape[1]]), shape[-1]])
    if not node.has(bias):
        return Visibility(keys, offset=past, right=causal, hidden=hidden)
    added = node.cast(node.x(bias), "float32")
    if keys is not None:
        added = add(node, bias_of(node, Visibility(keys, hidden=hidden), (b, h, s, t)), added)
    return Visibility(added, offset=past, right=causal)


def _between(node: Node, places: relax.Expr, b: Dim, t: Dim) -> relax.Expr:
    """[b, 1, 1, t]: whether a key is one of the first `places` [b]; of [2 b] the second half are those it begins at."""
    if not node.sizes.is_equal(expr_shape(places)[0], node.sizes.product([2, b])):
        return _before(node, same_sizes(node, places, [b], "a mask of one length per row"), b, t)
    end, begin = (
        _before(node, cut(node, places, 0, *part), b, t) for part in ((0, b), (b, node.sizes.product([2, b])))
    )
    return node.emit(relax.op.logical_and(end, node.emit(relax.op.logical_not(begin))))


def _before(node: Node, lengths: relax.Expr, b: Dim, t: Dim) -> relax.Expr:
    """[b, 1, 1, t]: whether key j is one of the first `lengths`."""
    order = node.reshape(node.emit(relax.op.arange(0, t, 1, "int64")), [1, 1, 1, t])
    return node.emit(relax.op.less(order, node.reshape(lengths, [b, 1, 1, 1])))


def _none(node: Node, *names: str) -> None:
    for name in names:
        node.refuse_unless(not node.attr(name, 0), f"expected {name}=0, found {node.attr(name, 0)}")


@converter("GroupQueryAttention", domain=_MS)
def group_query_attention(node: Node) -> tuple[relax.Expr | None, ...]:
    """Attention with a cache in which every row has its own length, fewer key heads, and rotary positions."""
    _none(node, "qk_output", "kv_cache_bit_width", "sliding_window_cache")
    for name in ("k_quant_type", "v_quant_type"):
        node.refuse_unless(node.attr(name, "NONE") == "NONE", f"expected {name}=NONE, found {node.attr(name, 'NONE')}")
    node.refuse_unless(int(node.attr("causal", 1)) == 1, "expected causal=1, found 0")
    for index in range(12, len(node.inputs)):
        what = "scales of the cache, norms, lengths of queries"
        node.refuse_unless(not node.has(index), f"expected no input {index} ({what})")
    node.refuse_unless(not any(node.outputs[3:]), "expected no fourth output")
    heads, groups = int(node.attr("num_heads")), int(node.attr("kv_num_heads"))
    q, k, v = _operands(node, heads, groups)
    b, s, _, d = expr_shape(q)
    total = node.cast(same_sizes(node, _flat(node, node.x(5)), [b], "seqlens_k"), "int64")
    total = node.emit(relax.op.add(total, number(1, "int64")))
    # Tokens that were there before: none in a first call, whose rows may be padded behind.
    start = node.te(_starts, total, prim(s), name="gqa_starts")
    if node.attr("do_rotary", 0):
        node.refuse_unless(node.has(7) and node.has(8), "expected cos_cache and sin_cache with do_rotary=1")
        positions = node.x(9) if node.has(9) else _positions(node, start, b, s)
        swapped = bool(node.attr("rotary_interleaved", 0))
        q, k = (rotate(node, x, positions, node.x(7), node.x(8), swapped) for x in (q, k))
    if node.has(3):
        width = _cache_width(node, node.shape(3)[2], s)
        shape = [b, groups, node.shape(3)[2], d]
        old_k, old_v = (same_sizes(node, node.x(i), shape, "a cache") for i in (3, 4))
        k, v = (same_sizes(node, x, [b, s, groups, d], "keys and values") for x in (k, v))
        present_k, present_v = (
            node.te(_joined, old, new, start, prim(width), name="gqa_cache") for old, new in ((old_k, k), (old_v, v))
        )
        k, v = (transpose(node, x, _SWAP) for x in (present_k, present_v))
    else:
        present_k, present_v = (transpose(node, x, _SWAP) for x in (k, v))
    window = int(node.attr("local_window_size", -1))
    mask = node.x(10) if node.has(10) else None
    seen = Visibility(mask, total, start, left=window - 1 if window > 0 else -1, right=0)
    scale = float(node.attr("scale", 0.0)) or 1.0 / math.sqrt(d)
    softcap = float(node.attr("softcap", 0.0))
    out = attend(node, q, k, v, seen, scale=scale, softcap=softcap, sinks=_sinks(node, heads)).out
    return (node.reshape(out, [b, s, heads * d]), present_k, present_v)


def _sinks(node: Node, heads: int) -> relax.Expr | None:
    """float32 [heads]: head_sink, or zeros for smooth_softmax, whose sum has a 1 more; None without either."""
    if node.has(11):
        return node.cast(same_sizes(node, node.x(11), [heads], "head_sink"), "float32")
    smooth = int(node.attr("smooth_softmax", -1)) > 0  # -1 and 0 are both off
    return relax.const(np.zeros(heads, np.float32), "float32") if smooth else None


def _operands(node: Node, heads: int, groups: int) -> list[relax.Expr]:
    x = node.x(0)
    if node.has(1):
        return [split_heads(node, node.x(i), n) for i, n in ((0, heads), (1, groups), (2, groups))]
    width = expr_shape(x)[2]
    node.refuse_unless(isinstance(width, int), f"expected the width of packed heads to be known, found {width}")
    d = width // (heads + 2 * groups)
    edges = [0, heads * d, (heads + groups) * d, width]
    parts = [cut(node, x, 2, a, b) for a, b in zip(edges, edges[1:])]
    return [split_heads(node, part, n) for part, n in zip(parts, (heads, groups, groups))]


def _starts(total: te.Tensor, s: tvm.ir.Expr) -> te.Tensor:
    zero = tirx.const(0, "int64")
    return te.compute(total.shape, lambda n: tirx.max(total[n] - tirx.Cast("int64", s), zero), name="starts")


def _positions(node: Node, start: relax.Expr, b: Dim, s: Dim) -> relax.Expr:
    order = node.reshape(node.emit(relax.op.arange(0, s, 1, "int64")), [1, s])
    return add(node, node.reshape(start, [b, 1]), order)


def _cache_width(node: Node, past: Dim, s: Dim) -> Dim:
    """Positions of the new cache: all tokens, or as many as the old cache has where that is more."""
    total = node.runtime_dims(6)[0]
    same = node.sizes.is_equal(total, prim(past) + s)
    return total if same else node.sizes.maximum(past, total)


def _flat(node: Node, x: relax.Expr) -> relax.Expr:
    """[n], of [n] or [n, 1]."""
    return x if len(expr_shape(x)) == 1 else node.reshape(x, [node.sizes.product(expr_shape(x))])


def _joined(old: te.Tensor, new: te.Tensor, start: te.Tensor, width: tvm.ir.Expr) -> te.Tensor:
    """[b, g, width, d]: the first start[b] tokens of `old`, behind them `new` [b, s, g, d], zeros at the end."""
    count, kept = new.shape[1], old.shape[2]

    def value(n, e, j, x):
        at = j - start[n]
        zero = tirx.const(0, new.dtype)
        before = tirx.if_then_else(j < kept, old[n, e, j, x], zero)  # the old cache may be empty
        behind = tirx.if_then_else(at < count, new[n, at, e, x], zero)
        return tirx.if_then_else(at < 0, before, behind)

    return te.compute((old.shape[0], old.shape[1], width, old.shape[3]), value, name="cache")
