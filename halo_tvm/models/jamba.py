"""Jamba: state spaces by channel (Mamba) in most layers, attention without positions in some, experts in every other.

References
    arXiv:2403.19887 (Jamba), arXiv:2408.12570 (Jamba 1.5)
"""

from __future__ import annotations

import math
from dataclasses import replace

from .decoder import ChannelStates, DecoderConfig, ExpertNames, Layer, Names, Reader, decoder_family
from .llama import llama
from .mixtures import mixture_of

_NAMES = Names(
    ffn_norm="pre_ff_layernorm",
    ffn="feed_forward",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    norm="model.final_layernorm",
)
_EXPERTS = ExpertNames(
    router="feed_forward.router",
    gate="feed_forward.experts.{}.gate_proj",
    up="feed_forward.experts.{}.up_proj",
    down="feed_forward.experts.{}.down_proj",
    stacked_gate_up="feed_forward.experts.gate_up_proj",
    stacked_down="feed_forward.experts.down_proj",
)


def _jamba(read: Reader) -> DecoderConfig:
    if read.activation("hidden_act", default="silu") != "silu":
        read.refuse("hidden_act 'silu'", repr(read.get("hidden_act")))
    rank = read.get("mamba_dt_rank", default="auto")
    states = ChannelStates(
        channels=read.whole("mamba_expand", default=2) * read.hidden,
        states=read.whole("mamba_d_state", default=16),
        kernel=read.kernel("mamba_d_conv"),
        rank=math.ceil(read.hidden / 16) if rank == "auto" else read.whole("mamba_dt_rank"),
        bias=read.flag("mamba_proj_bias"),
        convolution_bias=read.flag("mamba_conv_bias", default=True),
        norm_eps=read.number("rms_norm_eps", default=1e-6),
        norms=("dt_layernorm", "b_layernorm", "c_layernorm"),
        name="mamba",
    )
    attends = _every(read, "attn_layer", period=8, offset=4)
    pattern = tuple(Layer() if here else Layer(mixer=states) for here in attends)
    config = replace(llama(read, pattern=pattern), query_key_value_bias=False, output_bias=False, ffn_bias=False)
    config = replace(config, names=_NAMES)
    if read.whole("num_experts", "num_local_experts", default=16) == 1:
        return config
    sparse = _every(read, "expert_layer", period=2, offset=1)
    dense = tuple(i for i, here in enumerate(sparse) if not here)
    words = {"num_experts": 16, "num_experts_per_tok": 2, **read.config}
    return replace(
        config,
        mixture=mixture_of(Reader(words), width="intermediate_size", normalised=False, dense=dense, names=(_EXPERTS,)),
    )


def _every(read: Reader, name: str, *, period: int, offset: int) -> list[bool]:
    """Which layers are of a kind: every so many, from an offset on."""
    every, first = read.whole(f"{name}_period", default=period), read.whole(f"{name}_offset", default=offset)
    if not 0 <= first < every:
        read.refuse(f"{name}_offset from 0 to below {name}_period ({every})", str(first))
    return [i % every == first for i in range(read.layers)]


JAMBA = decoder_family("jamba", _jamba)
