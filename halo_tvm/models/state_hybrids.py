"""Decoders of which some layers attend and the others are state spaces by head (Mamba 2).

References
    arXiv:2405.21060 (Mamba 2), Bamba and Granite 4 (their model cards)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, HeadStates, Layer, Names, Reader, decoder_family
from .llama import llama
from .mamba import kernel_of, limits_of

_ATTENDS = {"attention": True, "full_attention": True, "mamba": False, "linear_attention": False}
_BAMBA = Names(
    ffn_norm="pre_ff_layernorm",
    ffn="feed_forward",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    norm="model.final_layernorm",
)


def head_states(read: Reader, **differences: object) -> HeadStates:
    """The state space that the words of Bamba's config describe."""
    width = read.get("mamba_d_ssm", default=None)
    width = read.whole("mamba_expand", default=2) * read.hidden if width is None else read.whole("mamba_d_ssm")
    heads = read.whole("mamba_n_heads", default=128)
    size = read.get("mamba_d_head", default="auto")
    size = width // max(1, heads) if size == "auto" else read.whole("mamba_d_head")
    if heads * size != width or read.activation("hidden_act", default="silu") != "silu":
        read.refuse(f"mamba_n_heads * mamba_d_head of {width} and hidden_act 'silu'", f"{heads} * {size}")
    bias = read.flag("mamba_proj_bias")
    common = HeadStates(
        heads=heads,
        head_size=size,
        groups=read.whole("mamba_n_groups", default=1),
        states=read.whole("mamba_d_state", default=256),
        kernel=kernel_of(read, "mamba_d_conv"),
        bias=bias,
        output_bias=bias,
        convolution_bias=read.flag("mamba_conv_bias", default=True),
        limits=limits_of(read),
        norm_eps=read.number("rms_norm_eps", default=1e-5),
        name="mamba",
    )
    return replace(common, **differences)  # type: ignore[arg-type]


def attending(read: Reader) -> list[bool]:
    """Which layers attend: as `layer_types` says, else those that `attn_layer_indices` names, else none."""
    kinds = read.get("layer_types", "layers_block_type")
    if kinds is None:
        named = read.get("attn_layer_indices", default=[])
        if not isinstance(named, list):
            raise TypeError(f"attn_layer_indices {named!r} is no list of layers")
        return [i in named for i in range(read.layers)]
    if not isinstance(kinds, list) or len(kinds) < read.layers or any(kind not in _ATTENDS for kind in kinds):
        read.refuse(f"layer_types of {', '.join(_ATTENDS)} for every layer", repr(kinds)[:80])
    return [_ATTENDS[kind] for kind in kinds[: read.layers]]


def hybrid(read: Reader, attention: Layer, states: HeadStates) -> tuple[Layer, ...]:
    """`attention` in the layers that attend, `states` in the others."""
    return tuple(attention if attends else Layer(mixer=states) for attends in attending(read))


def _bamba(read: Reader) -> DecoderConfig:
    pattern = hybrid(read, Layer(read.rope(share=0.5)), head_states(read))
    return llama(read, pattern=pattern, names=_BAMBA)


BAMBA = decoder_family("bamba", _bamba, even=("head_dim",))
