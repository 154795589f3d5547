"""Nemotron, Arcee, Jais 2 and nanochat: Llama's tensors, and a feed-forward without gate with a squared ReLU.

References
    arXiv:2402.16819 (Nemotron), arXiv:2109.08668 (squared ReLU)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family
from .llama import llama


def _nemotron(read: Reader) -> DecoderConfig:
    """Layer norms that multiply by one more than their weight; half of a head turns."""
    return llama(
        read,
        pattern=(Layer(read.rope(share=0.5)),),
        norm="layer",
        norm_plus_one=True,
        eps=read.number("norm_eps", default=1e-5),
        activation=read.activation("hidden_act", default="relu2"),
        gated=False,
    )


def _arcee(read: Reader) -> DecoderConfig:
    return llama(read, activation=read.activation("hidden_act", default="relu2"), gated=False)


def _jais2(read: Reader) -> DecoderConfig:
    bias = read.flag("attention_bias", default=True)
    return llama(
        read,
        norm="layer",
        eps=read.number("layer_norm_eps", default=1e-5),
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=read.flag("mlp_bias", default=True),
        activation=read.activation("hidden_act", default="relu2"),
        gated=False,
    )


def _nanochat(read: Reader) -> DecoderConfig:
    """Norms without weights, one of them behind the embedding and one behind the rotation, which turns backwards."""
    rope = read.rope()
    backwards = replace(rope, frequencies=tuple(-f for f in rope.frequencies))
    return llama(
        read,
        pattern=(Layer(backwards),),
        norm_weight=False,
        query_key_norm="head",
        norm_turned=True,
        activation=read.activation("hidden_act", default="relu2"),
        gated=False,
        logit_softcap=read.optional("final_logit_softcapping", 15.0),
        names=Names(
            query_norm="self_attn.q_norm",
            key_norm="self_attn.k_norm",
            embedding_norm="model.norm",
            up="mlp.fc1",
            down="mlp.fc2",
        ),
    )


NEMOTRON = decoder_family("nemotron", _nemotron)
ARCEE = decoder_family("arcee", _arcee, even=("head_dim",))
NANOCHAT = decoder_family("nanochat", _nanochat, even=("head_dim",))
JAIS2 = decoder_family("jais2", _jais2, even=("head_dim",))
