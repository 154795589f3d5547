"""Decoders of which some layers attend and others, or the same, are state spaces by head (Mamba 2).

References
    arXiv:2405.21060 (Mamba 2), Bamba and Granite 4 (their model cards), arXiv:2507.22448 (Falcon-H1)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, HeadStates, Layer, Names, Reader, decoder_family
from .llama import llama
from .mamba import limits_of

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
        kernel=read.kernel("mamba_d_conv"),
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
    kinds = read.layer_types(list(_ATTENDS), "layer_types", "layers_block_type")
    if kinds is None:
        return read.named_layers("attn_layer_indices", default=())
    return [_ATTENDS[kind] for kind in kinds]


def hybrid(read: Reader, attention: Layer, states: HeadStates) -> tuple[Layer, ...]:
    """`attention` in the layers that attend, `states` in the others."""
    return tuple(attention if attends else Layer(mixer=states) for attends in attending(read))


def _bamba(read: Reader) -> DecoderConfig:
    pattern = hybrid(read, Layer(read.rope(share=0.5)), head_states(read))
    return llama(read, pattern=pattern, names=_BAMBA)


_FALCON = replace(_BAMBA, attention="self_attn")


def _falcon_h1(read: Reader) -> DecoderConfig:
    """Attention and a state space beside one another in every layer, with a factor at every place."""
    inner, keys = (read.number(name, default=1.0) for name in ("attention_in_multiplier", "key_multiplier"))
    before = read.number("ssm_in_multiplier", default=1.0)
    gate, down = _numbers(read, "mlp_multipliers", 2)
    if read.flag("attention_bias") and inner != 1.0 or read.flag("mlp_bias") or read.flag("mamba_proj_bias"):
        read.refuse("attention_bias, mlp_bias and mamba_proj_bias false", "one of them beside factors")
    normed = read.flag("mamba_rms_norm")
    states = head_states(
        read,
        output_bias=read.flag("projectors_bias"),
        norm_eps=read.number("rms_norm_eps", default=1e-5) if normed else None,
        gated_first=not read.flag("mamba_norm_before_gate", default=True),
        scales=tuple(before * scale for scale in _numbers(read, "ssm_multipliers", 5)),
        output_scale=read.number("ssm_out_multiplier", default=1.0),
    )
    return llama(
        read,
        pattern=(Layer(read.rope(), mixer=states, beside=True),),
        names=_FALCON,
        scale=read.head_dim**-0.5 * keys * inner**2,
        attention_scale=inner * read.number("attention_out_multiplier", default=1.0),
        gate_scale=gate,
        down_scale=down,
        embedding_scale=read.number("embedding_multiplier", default=1.0),
        logit_scale=read.number("lm_head_multiplier", default=1.0),
    )


def _numbers(read: Reader, name: str, count: int) -> tuple[float, ...]:
    found = read.get(name, default=[1.0] * count)
    if not isinstance(found, (list, tuple)) or len(found) != count:
        raise TypeError(f"{name} {found!r} are not {count} numbers")
    return tuple(map(float, found))


FALCON_H1 = decoder_family("falcon_h1", _falcon_h1, even=("head_dim",))
BAMBA = decoder_family("bamba", _bamba, even=("head_dim",))
