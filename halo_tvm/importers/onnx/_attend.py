"""Attention for converters: `halo.attention` where it can express the case, else a composition of Relax operators.

Operands are positions first: q [b, s, h, d], k [b, t, g, d], v [b, t, g, e], h a multiple of g.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, te, tirx

from ...dimensions import is_one
from ...relay_ops.attention import Attention
from ...relay_ops.operator import chosen
from ..meaning.builder import expr_dtype, expr_shape, is_tensor
from ..meaning.constant import numpy_dtype
from ..meaning.pointwise import HALVES
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._spell import add, number, rounded, scaled, transpose

_SWAP = (0, 2, 1, 3)  # heads first <-> positions first


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees, and what is added to its scores.

    Query i stands at position i + offset, key j at j. `lengths` [b] counts the keys that exist; with
    `offset` None queries are the last of them. `hidden` is what a false mask adds.
    """

    mask: relax.Expr | None = None  # of rank 1 to 4, aligned to the right with [b, h, s, t]; missing keys are hidden
    lengths: relax.Expr | None = None
    offset: Dim | relax.Expr | None = 0  # a relax expression: [b]
    left: int = -1  # keys at most so far before a query; -1: all
    right: int = -1  # keys at most so far behind a query; 0: causal
    hidden: float = -math.inf

    def is_whole(self) -> bool:
        return self.mask is None and self.lengths is None and self.left < 0 and self.right < 0


@dataclass(frozen=True)
class Attended:
    """The result [b, s, h, e], and the scores that were asked for, [b, h, s, t]."""

    out: relax.Expr
    scores: relax.Expr | None = None


def attend(
    node: Node,
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    seen: Visibility,
    *,
    scale: float,
    softcap: float = 0.0,
    scores: int | None = None,
    precision: str | None = None,
    sinks: relax.Expr | None = None,
) -> Attended:
    """softmax(scale * q k^T + mask) v. `scores`: 0 products, 1 capped, 2 masked, 3 softmax, as ONNX counts them.

    sinks: float32 [h], one more score in every softmax of a head, whose value is zero
    """
    b, s, h, d = expr_shape(q)
    k, v = (_declared(node, x, (b, None, None, None)) for x in (k, v))
    v = _declared(node, v, (None, expr_shape(k)[1], None, None))
    t, g = expr_shape(k)[1], expr_shape(k)[2]
    for size in (h, g, d):
        node.refuse_unless(isinstance(size, int), f"expected heads and their size to be known, found {size}")
    node.refuse_unless(h % g == 0, f"expected query heads to be a multiple of key heads, found {h} and {g}")
    direct = scores is None and expr_dtype(q) == "float32" and node.sizes.is_equal(d, expr_shape(v)[3]) and scale != 0.0
    if direct:
        return Attended(_halo(node, q, k, v, seen, scale, softcap, sinks))
    bias = None if seen.is_whole() else bias_of(node, seen, (b, h, s, t))
    return _composed(node, q, k, v, bias, scale, softcap, scores, precision, sinks)


def _halo(
    node: Node,
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    seen: Visibility,
    scale: float,
    softcap: float,
    sinks: relax.Expr | None,
) -> relax.Expr:
    (b, s, h, d), (_, t, g, _) = expr_shape(q), expr_shape(k)
    at_end = seen.lengths is None and not is_tensor(seen.offset) and seen.offset is not None
    at_end = at_end and node.sizes.is_equal(seen.offset, prim(t) - s)
    causal = at_end and seen.right == 0
    window = seen.left + 1 if at_end and seen.left >= 0 else 0
    rest = replace(seen, left=-1 if window else seen.left, right=-1 if causal else seen.right)
    extra = [] if rest.is_whole() else [bias_of(node, rest, (b, h, s, t))]
    call = Attention.call(
        *(q, k, v, *extra, *([] if sinks is None else [sinks])),
        num_heads=h,
        num_kv_heads=g,
        head_dim=d,
        scale=scale,
        causal=causal or None,
        window=window or None,
        softcap=float(softcap) or None,
        has_bias=bool(extra) or None,
        has_sinks=sinks is not None or None,
    )
    return node.emit(call)


def bias_of(node: Node, seen: Visibility, dims: Sequence[Dim]) -> relax.Expr:
    """What is added to the scores, float32 [1|b, 1|h, 1|s, t]: one kernel for mask, lengths, order and windows."""
    b, _, s, t = dims
    mask = seen.mask
    per_batch = seen.lengths is not None or is_tensor(seen.offset)
    ordered = seen.left >= 0 or seen.right >= 0
    shape: list[Dim] = [b if per_batch else 1, 1, s if ordered else 1, t]
    tensors = []
    if mask is not None:
        rank = len(expr_shape(mask))
        mask = _declared(node, mask, [*dims[4 - rank : 3], None])
        mask = node.reshape(mask, [1] * (4 - rank) + expr_shape(mask))
        for axis, dim in enumerate(expr_shape(mask)[:3]):
            if not is_one(dim):
                shape[axis] = dims[axis]
        tensors.append(mask)
    for vector in (seen.lengths, seen.offset):
        if is_tensor(vector):
            tensors.append(node.cast(node.reshape(vector, (b,)), "int64"))
    has_offset = is_tensor(seen.offset)
    start = 0 if has_offset or seen.offset is None else seen.offset

    def build(tensors: list[te.Tensor], shape: list[tvm.ir.Expr], s: tvm.ir.Expr, start: tvm.ir.Expr) -> te.Tensor:
        rest = list(tensors)
        given = rest.pop(0) if mask is not None else None
        lengths = rest.pop(0) if seen.lengths is not None else None
        offsets = rest.pop(0) if has_offset else None
        infinity = tirx.const(-math.inf, "float32")

        def value(n, e, i, j):
            visible = []
            first = offsets[n] if offsets is not None else lengths[n] - s if seen.offset is None else start
            if seen.right >= 0:
                visible.append(j <= i + first + seen.right)
            if seen.left >= 0:
                visible.append(j >= i + first - seen.left)
            if lengths is not None:
                visible.append(j < lengths[n])
            y = tirx.const(0.0, "float32")
            if given is not None:
                width = given.shape[3]
                at = [0 if is_one(dim) else index for dim, index in zip(given.shape[:3], (n, e, i))]
                found = given[(*at, tirx.min(j, width - 1))]
                if str(given.dtype) == "bool":
                    found = tirx.Select(found, y, tirx.const(seen.hidden, "float32"))
                y = found.astype("float32")
                visible.append(j < width)
            return chosen(tirx.all(*visible), y, infinity) if visible else y

        return te.compute(shape, value, name="bias")

    return node.te(build, tensors, [prim(d) for d in shape], prim(s), prim(start), name="attention_bias")


def _composed(
    node: Node,
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    bias: relax.Expr | None,
    scale: float,
    softcap: float,
    scores: int | None,
    precision: str | None,
    sinks: relax.Expr | None,
) -> Attended:
    """In float32 (or float64), rounded after every step to the operands' own type where that is narrower."""
    dtype = expr_dtype(q)
    wide = "float64" if dtype == "float64" else "float32"
    q, k, v = (transpose(node, node.cast(x, wide), _SWAP) for x in (q, k, v))
    groups = expr_shape(q)[1] // expr_shape(k)[1]
    if groups > 1:
        k, v = (node.emit(relax.op.repeat(x, groups, 1)) for x in (k, v))
    root = math.sqrt(abs(scale))
    if dtype in HALVES:
        root = float(numpy_dtype(dtype).type(root))

    def step(x: relax.Expr) -> relax.Expr:
        return rounded(node, x, dtype)

    left = step(scaled(node, q, root if scale >= 0 else -root))
    right = transpose(node, step(scaled(node, k, root)), (0, 1, 3, 2))
    y = raw = step(node.emit(relax.op.matmul(left, right)))
    if softcap > 0:
        y = step(node.emit(relax.op.divide(y, number(softcap, wide))))
        y = step(scaled(node, step(node.emit(relax.op.tanh(y))), softcap))
    capped = y
    if bias is not None:
        bias = node.cast(bias, wide)
        y = step(add(node, y, bias))
    masked = y
    sink = None if sinks is None else node.cast(node.reshape(sinks, [1, expr_shape(y)[1], 1, 1]), wide)
    y = _softmax(node, y, (precision or dtype) if dtype in HALVES else wide, sink)
    if bias is not None:
        nothing = node.emit(relax.op.less(node.emit(relax.op.max(bias, 3, True)), number(-3.4e38, wide)))
        y = node.emit(relax.op.where(nothing, number(0.0, wide), y))
    y = step(y)
    shown = None if scores is None else node.cast({0: raw, 1: capped, 2: masked, 3: y}[scores], dtype)
    out = transpose(node, node.cast(node.emit(relax.op.matmul(y, v)), dtype), _SWAP)
    return Attended(out, shown)


def _softmax(node: Node, x: relax.Expr, dtype: str, sink: relax.Expr | None) -> relax.Expr:
    """Over the last axis and the score `sink`, rounded to `dtype` after every step; a row of -inf gives zeros."""
    wide = expr_dtype(x)
    peak = node.emit(relax.op.max(x, 3, True))
    if sink is not None:
        peak = node.emit(relax.op.maximum(peak, sink))
    floor = number(-3.4e38, wide)
    peak = node.emit(relax.op.where(node.emit(relax.op.less(peak, floor)), number(0.0, wide), peak))
    part = rounded(node, node.emit(relax.op.exp(rounded(node, node.emit(relax.op.subtract(x, peak)), dtype))), dtype)
    total = node.emit(relax.op.sum(part, 3, True))
    if sink is not None:
        total = add(node, total, node.emit(relax.op.exp(node.emit(relax.op.subtract(sink, peak)))))
    total = rounded(node, total, dtype)
    zero = node.emit(relax.op.equal(total, number(0.0, wide)))
    total = node.emit(relax.op.where(zero, number(1.0, wide), total))
    return rounded(node, node.emit(relax.op.divide(part, total)), dtype)


def _declared(node: Node, x: relax.Expr, wanted: Sequence[Dim | None]) -> relax.Expr:
    """`x` with dimensions declared as `wanted`, but where they are 1; a run where they differ is refused then."""
    shape = expr_shape(x)
    dims = [d if w is None or is_one(d) else w for d, w in zip(shape, wanted)]
    if node.sizes.same_shape(shape, dims):
        return x
    for a, b in zip(shape, dims):
        node.refuse_unless(
            not (isinstance(a, int) and isinstance(b, int) and a != b), f"expected a size of {b}, found {a}"
        )
    return node.declared(x, dims)
