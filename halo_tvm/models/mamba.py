"""Mamba, Falcon-Mamba and Mamba 2: selective state spaces alone, whose state has one size at every length.

References
    arXiv:2312.00752 (Mamba), arXiv:2410.05355 (Falcon-Mamba), arXiv:2405.21060 (Mamba 2)
"""

from __future__ import annotations

import math

from .decoder import ChannelStates, DecoderConfig, HeadStates, Layer, Names, Reader, decoder_family

_NAMES = Names(
    embedding="backbone.embeddings",
    layer="backbone.layers.{}",
    attention_norm="norm",
    attention="mixer",
    ffn_norm="",
    norm="backbone.norm_f",
)
_TOKENS = 1 << 20  # which a state may have seen: no memory is needed for them, and no table


def limits_of(read: Reader) -> tuple[float, float]:
    """Between which the steps of a state space are kept; transformers writes {"__float__": "Infinity"} for no bound."""
    found = read.get("time_step_limit", default=(0.0, math.inf))
    if not isinstance(found, (list, tuple)) or len(found) != 2:
        raise TypeError(f"time_step_limit {found!r} is no pair")
    least, most = (float(bound["__float__"] if isinstance(bound, dict) else bound) for bound in found)
    return least, most


def _states(read: Reader, mixer: ChannelStates | HeadStates, *, tied: bool) -> DecoderConfig:
    if read.activation("hidden_act", default="silu") != "silu":
        read.refuse("hidden_act 'silu'", repr(read.get("hidden_act")))
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=1,
        feed_forward=1,
        vocabulary=read.whole("vocab_size"),
        positions=_TOKENS,
        pattern=(Layer(mixer=mixer, feeds=False),),
        eps=read.number("layer_norm_epsilon", default=1e-5),
        tied=read.flag("tie_word_embeddings", default=tied),
        names=_NAMES,
    )


def _mamba(read: Reader) -> DecoderConfig:
    rank = read.get("time_step_rank", default="auto")
    mixer = ChannelStates(
        channels=read.whole("intermediate_size", default=int(read.number("expand", default=2) * read.hidden)),
        states=read.whole("state_size", default=16),
        kernel=read.kernel("conv_kernel"),
        rank=math.ceil(read.hidden / 16) if rank == "auto" else read.whole("time_step_rank"),
        bias=read.flag("use_bias"),
        convolution_bias=read.flag("use_conv_bias", default=True),
        norm_eps=read.number("mixer_rms_eps", default=1e-6) if read.kind == "falcon_mamba" else None,
    )
    return _states(read, mixer, tied=True)


def _mamba2(read: Reader) -> DecoderConfig:
    heads, size = read.whole("num_heads", default=128), read.whole("head_dim", default=64)
    if heads * size != int(read.number("expand", default=2) * read.hidden):
        read.refuse(f"num_heads * head_dim of expand * hidden_size ({read.hidden})", f"{heads} * {size}")
    bias = read.flag("use_bias")
    mixer = HeadStates(
        heads=heads,
        head_size=size,
        groups=read.whole("n_groups", default=8),
        states=read.whole("state_size", default=128),
        kernel=read.kernel("conv_kernel"),
        bias=bias,
        output_bias=bias,
        convolution_bias=read.flag("use_conv_bias", default=True),
        limits=limits_of(read),
        norm_eps=read.number("layer_norm_epsilon", default=1e-5),
    )
    return _states(read, mixer, tied=False)


_TIED = ("backbone.embeddings", "lm_head")
MAMBA = decoder_family("mamba", _mamba, types=("mamba", "falcon_mamba"), tied=_TIED)
MAMBA2 = decoder_family("mamba2", _mamba2, tied=_TIED)
