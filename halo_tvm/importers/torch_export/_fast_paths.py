"""What torch's modules call in inference in place of their own code, as the operators it stands for.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call one operator each under `no_grad`, and torch has no
decomposition of these. A call with a mask stays as it is, and is refused by name: torch reads such a mask by its kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

_aten = torch.ops.aten


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> object:
    """query, key, value [b, s, width] -> ([b, s, width], the weights, which nobody needs)."""
    if mask is not None or need_weights or mask_type is not None:
        return NotImplemented
    out = _mixed(query, key, value, width // heads, heads, qkv_weight, qkv_bias)
    return F.linear(out, out_weight, out_bias), query.new_empty(0)


def _mixed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    size: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
) -> torch.Tensor:
    """softmax(q @ k^T / sqrt(size)) @ v of heads of that `size`, side by side: [b, s, heads * size]."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (heads, size)).transpose(1, 2)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    scores = torch.matmul(q, k.transpose(-2, -1)) * size**-0.5
    return torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).flatten(2)


def _encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> object:
    """x [b, s, width] -> [b, s, width]."""
    if mask is not None:
        return NotImplemented

    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.linear(_mixed(x, x, x, width // heads, heads, qkv_weight, qkv_bias), out_weight, out_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, up_weight, up_bias)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), down_weight, down_bias)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (width,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (width,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + feed_forward(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed_forward(x))


FAST_PATHS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten._native_multi_head_attention.default: _attention,
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
