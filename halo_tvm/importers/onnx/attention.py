"""Attention of ONNX itself: queries, keys and values, with or without a cache."""

from __future__ import annotations

import math

from tvm import relax

from ..meaning.builder import expr_shape
from ._attend import Visibility, attend
from ._node import Node
from ._registry import converter
from ._spell import concat, transpose
from ._values import element_dtype

_SWAP = (0, 2, 1, 3)  # heads first <-> positions first


@converter("Attention", since=23)
def attention(node: Node) -> tuple[relax.Expr | None, ...]:
    """softmax(scale * Q K^T + mask) V; operands [b, heads, s, d], or [b, s, heads * d] with the numbers of heads."""
    flat = node.rank(0) == 3
    heads, groups = (int(node.attr(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
    q, k, v = (_positions_first(node, i, n) for i, n in ((0, heads), (1, groups), (2, groups)))
    offset: object = 0
    present = [None, None]
    if node.has(4):
        node.refuse_unless(
            node.has(5) and not node.has(6), "expected past_key with past_value, and no nonpad_kv_seqlen"
        )
        offset = node.shape(4)[2]
        k, v = (concat(node, [transpose(node, node.x(i), _SWAP), x], 1) for i, x in ((4, k), (5, v)))
    if any(node.outputs[1:3]):
        present = [transpose(node, x, _SWAP) for x in (k, v)]
    lengths = node.x(6) if node.has(6) else None
    left, right = (int(node.attr(f"{side}_window_size", -1)) for side in ("left", "right"))
    seen = Visibility(
        mask=node.x(3) if node.has(3) else None,
        lengths=lengths,
        offset=None if lengths is not None else offset,
        left=left,
        right=0 if node.attr("is_causal", 0) else right,
    )
    size = expr_shape(q)[3]
    scale = float(node.attr("scale", 0.0)) or 1.0 / math.sqrt(size)
    kind = int(node.attr("softmax_precision", 0))
    wants_scores = len(node.outputs) > 3 and bool(node.outputs[3])
    out = attend(
        node,
        q,
        k,
        v,
        seen,
        scale=scale,
        softcap=float(node.attr("softcap", 0.0)),
        scores=int(node.attr("qk_matmul_output_mode", 0)) if wants_scores else None,
        precision=element_dtype(kind) if kind else None,
    )
    b, s, h, e = expr_shape(out.out)
    y = node.reshape(out.out, [b, s, h * e]) if flat else transpose(node, out.out, _SWAP)
    return (y, *present, out.scores)


def _positions_first(node: Node, index: int, heads: int) -> relax.Expr:
    """Input `index` as [b, s, heads, d]."""
    if node.rank(index) == 4:
        return transpose(node, node.x(index), _SWAP)
    return split_heads(node, node.x(index), heads)


def split_heads(node: Node, x: relax.Expr, heads: int) -> relax.Expr:
    """[b, s, heads * d] as [b, s, heads, d]."""
    b, s, width = expr_shape(x)
    node.refuse_unless(isinstance(width, int), f"expected the width of the heads to be known, found {width}")
    node.refuse_unless(heads > 0 and width % heads == 0, f"expected a width of whole heads, found {width} for {heads}")
    return node.reshape(x, [b, s, heads, width // heads])
