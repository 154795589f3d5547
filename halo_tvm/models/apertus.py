"""Apertus: Llama's layers with norms of queries and keys, and a feed-forward without gate whose activation is learned.

References
    arXiv:2509.14233
"""

from __future__ import annotations

from .decoder import DecoderConfig, Names, Reader, decoder_family
from .llama import llama

_NAMES = Names(
    attention_norm="attention_layernorm",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    ffn_norm="feedforward_layernorm",
)


def _apertus(read: Reader) -> DecoderConfig:
    if (action := read.get("hidden_act", default="xielu")) != "xielu":
        read.refuse("hidden_act 'xielu'", repr(action)[:80])
    return llama(
        Reader({**read.config, "hidden_act": "silu"}),
        query_key_norm="head",
        ffn_bias=False,
        gated=False,
        learned_activation="mlp.act_fn",
        names=_NAMES,
    )


APERTUS = decoder_family("apertus", _apertus, even=("head_dim",))
