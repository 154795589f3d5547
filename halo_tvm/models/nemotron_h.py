"""Nemotron-H and Nemotron 3: every layer is one thing alone, a state space, attention, a feed-forward or experts.

References
    arXiv:2504.03624 (Nemotron-H), arXiv:2405.21060 (Mamba 2)
"""

from __future__ import annotations

import math

from .decoder import DecoderConfig, ExpertNames, HeadStates, Layer, Mixture, Names, Reader, decoder_family
from .llama import llama
from .mixtures import mixture_of

_NEMOTRON = Names(
    embedding="embeddings",
    layer="layers.{}",
    attention_norm="norm",
    attention="mixer",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
    ffn_norm="",
    ffn="mixer",
    up="mixer.up_proj",
    down="mixer.down_proj",
    norm="norm_f",
)
_NEMOTRON_EXPERTS = ExpertNames(
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    up="mixer.experts.{}.up_proj",
    down="mixer.experts.{}.down_proj",
    stacked_up="mixer.experts.up_proj",
    stacked_down="mixer.experts.down_proj",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
    to_latent="mixer.fc1_latent_proj",
    from_latent="mixer.fc2_latent_proj",
)
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_PARTS = {"linear_attention": "mamba", "full_attention": "attention", **{kind: kind for kind in _LETTERS.values()}}


def _parts_of(read: Reader) -> list[str]:
    """What each layer is, which is one thing alone: a state space, attention, a feed-forward or experts."""
    kinds = read.get("layers_block_type", "layer_types")
    if kinds is None:
        kinds = [_LETTERS.get(letter, letter) for letter in str(read.get("hybrid_override_pattern", default=""))]
    if not isinstance(kinds, list) or not kinds or any(kind not in _PARTS for kind in kinds):
        read.refuse(f"layers_block_type among {', '.join(_PARTS)}", repr(kinds)[:80])
    return [_PARTS[kind] for kind in kinds]


def _nemotron_h(read: Reader) -> DecoderConfig:
    kinds = _parts_of(read)
    eps, bias = read.number("layer_norm_epsilon", default=1e-5), read.flag("use_bias")
    states = HeadStates(
        heads=read.whole("mamba_num_heads", default=128),
        head_size=read.whole("mamba_head_dim", default=64),
        groups=read.whole("mamba_n_groups", "n_groups", default=8),
        states=read.whole("ssm_state_size", default=128),
        kernel=read.kernel("mamba_d_conv" if read.get("mamba_d_conv") is not None else "conv_kernel"),
        bias=bias,
        output_bias=bias,
        convolution_bias=read.flag("mamba_conv_bias", default=read.flag("use_conv_bias", default=True)),
        limits=(read.number("mamba_dt_min", "time_step_min", default=0.001), math.inf),
        norm_eps=eps,
    )
    layers = {
        "mamba": Layer(mixer=states, feeds=False),
        "attention": Layer(feeds=False),
        "mlp": Layer(attends=False),
        "moe": Layer(attends=False),
    }
    read.refuse_unless(mamba_hidden_act="silu", n_group=1, sliding_window=None, attention_bias=False)
    size = read.whole("head_dim", "attention_head_dim", default=128)
    words = {**read.config, "num_hidden_layers": len(kinds), "head_dim": size}
    return llama(
        Reader(words),
        pattern=tuple(layers[kind] for kind in kinds),
        eps=eps,
        activation=read.activation("mlp_hidden_act", default="relu2"),
        gated=False,
        tied=False,  # whatever the config says
        mixture=_nemotron_experts(read, kinds) if "moe" in kinds else None,
        names=_NEMOTRON,
    )


def _nemotron_experts(read: Reader, kinds: list[str]) -> Mixture:
    """Experts without gates, behind a projection where there is `moe_latent_size`."""
    return mixture_of(
        read,
        width="moe_intermediate_size",
        scores="sigmoid",
        correction=True,
        normalised=read.flag("norm_topk_prob", default=True),
        scale=read.number("routed_scaling_factor", default=1.0),
        gated=False,
        latent=read.whole("moe_latent_size", default=0),
        shared=read.whole("moe_shared_expert_intermediate_size"),
        dense=tuple(i for i, kind in enumerate(kinds) if kind != "moe"),
        names=(_NEMOTRON_EXPERTS,),
    )


NEMOTRON_H = decoder_family(
    "nemotron_h", _nemotron_h, prefixes=("backbone.", "model.", ""), tied=("embeddings", "lm_head")
)
