"""Scaled dot-product attention with grouped heads, masks and biases.

Shapes
    q [b, s, h, d]   k, v [b, t, h_kv, d]
                         as a cache keeps them under q of float32 both may be float16, or int8 with rows of d + 4
                         (`parts/kept_rows`)                                                 or, with packed=True,
    qkv [b, s, (h + 2 * h_kv) * d]: the columns of all query heads, then key heads, then value heads (t = s)
    key_mask [b, t] (has_key_mask)   bias [1|b, 1|h, 1|s, t] float32 (has_bias)
    sinks float32 [h] (has_sinks)   lengths int32 [b] (has_lengths)
    ->   o [b, s, h, d]
Computation
    score[i, j] = bias[i, j] + cap(scale * sum_d q[i, d] * k[j, d]),   cap(x) = softcap * tanh(x / softcap), or x
    visible(i, j) = key_mask[j] != 0  and  j < T  and  (causal: j <= i + T - s)  and  (window: j > i + T - s - window)
    T = t, or lengths[n] within 0 .. t: the keys of a cache that are valid, the queries' own among them; nothing comes
    of what lies behind them, NaN included
    o[i] = sum_j softmax over the visible j of score[i, j] * v[j];  query head n reads KV head n // (h / h_kv)
    sinks: each head's softmax has one more score, sinks[head], whose value is zero
    A score at or below -1e30 is invisible too, so additive masks of -inf and of the most negative float32
    mean the same. A row with no visible key gives zeros. Lifts read an addend at or below -1e9 as a mask.
Lifts
    matmul(softmax(matmul(q, kT) * c + bias), v)                 =>   permute_dims(halo.attention(q', k', v'))
    permute_dims(matmul(softmax(matmul(q, kT) * c + bias), v))   =>   halo.attention(q', k', v')
    with c also as a divisor, or on q, or on kT, or absent; x' is x without, or with one more, permute_dims
Rejects
    scale that is no scalar constant, or 0; softmax axis other than the last; operands of another rank than 4;
    permutations other than the exchange of heads and positions; a bias that does not broadcast to [b, h, s, t];
    batches or head sizes that differ between q, k and v; k and v of neither one head nor q's number; dtypes other
    than float32, float16 and bfloat16; scores, weights or a result that something else reads, too
Numerics
    accumulates in float32. products="bfloat16" permits rules to round the operands of both products to bfloat16 (the
    scaled keys, the queries, the weights, the values), by up to 2**-8 of each; "tf32" permits 11 bits at the range
    of float32, by up to 2**-11. A lifted row changes when its bias hides
    every key with finite numbers, at or below -1e9 where the bias became a mask, at or below -1e30 where it stayed a
    bias: softmax gives such a row the weights of its scores, or equal ones, this operator zeros. Rows with a visible
    key are the same. NaN or positive infinity among its scores may make a row NaN, also where a lifted select put
    another score in its place, or a lifted guard set the weights of such a row to 0.
References
    arXiv:1706.03762 arXiv:2305.13245 (grouped heads) arXiv:2108.12409 (linear biases) arXiv:2408.00118 (soft cap)
    arXiv:2309.17453 arXiv:2508.10925 (sinks)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tvm import relax

from ..operator import Lift, Operator, attrs_of
from . import cases, mathematics
from .lifts import attention_lifts
from .signature import check_call


class Attention(Operator):
    """softmax(scale * q @ k^T + bias) @ v over the visible keys."""

    name = "attention"
    fusible = False
    counts_symbols = True

    compute: ClassVar = staticmethod(mathematics.compute)
    reference: ClassVar = staticmethod(mathematics.reference)
    flops: ClassVar = staticmethod(mathematics.flops)
    cases: ClassVar = staticmethod(cases.cases)

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        return check_call([arg.ty for arg in call.args], attrs_of(call))

    @staticmethod
    def lifts() -> Sequence[Lift]:
        return attention_lifts(Attention.call)
