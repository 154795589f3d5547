"""OLMo 2: norms behind attention and feed-forward instead of in front, norms over all queries and all keys.

References
    arXiv:2501.00656
"""

from __future__ import annotations

from dataclasses import replace

from ._decoder import DecoderConfig, Names, Reader, decoder_family
from .llama import llama

_NAMES = Names(
    attention_norm="",
    attention_post_norm="post_attention_layernorm",
    ffn_norm="",
    ffn_post_norm="post_feedforward_layernorm",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)


def _olmo2(read: Reader) -> DecoderConfig:
    return replace(llama(read), query_key_norm="all", names=_NAMES)


OLMO2 = decoder_family("olmo2", _olmo2, even=("head_dim",))
