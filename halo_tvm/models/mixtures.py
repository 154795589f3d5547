"""Decoders with mixtures of experts: the layers of Mistral, Qwen, OLMo and Granite, with experts as feed-forward.

References
    arXiv:2401.04088 (Mixtral), arXiv:2409.02060 (OLMoE), arXiv:2407.10671 (Qwen2-MoE), arXiv:2505.09388 (Qwen3-MoE)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, ExpertNames, Mixture, Names, Reader, decoder_family
from .llama import granite, llama, windowed

_NORMED = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
_MIXTRAL = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
    stacked_gate_up="block_sparse_moe.experts.gate_up_proj",
    stacked_down="block_sparse_moe.experts.down_proj",
)
_GRANITE = ExpertNames(
    router="block_sparse_moe.router.layer",
    stacked_gate_up="block_sparse_moe.input_linear.weight",
    stacked_down="block_sparse_moe.output_linear.weight",
)
_GRANITE_STACKED = replace(
    _GRANITE,
    router="block_sparse_moe.router",
    stacked_gate_up="block_sparse_moe.experts.gate_up_proj",
    stacked_down="block_sparse_moe.experts.down_proj",
)


def mixture_of(read: Reader, *, width: str, **differences: object) -> Mixture:
    """The mixture that a config describes; `width` is the word for the hidden size of one expert."""
    experts = read.whole("num_experts", "num_local_experts", "n_routed_experts")
    top = read.whole("num_experts_per_tok")
    sizes = {"experts": experts, "num_experts_per_tok": top, width: read.whole(width)}
    for name, size in sizes.items():
        if not 1 <= size <= (1 << 20):
            read.refuse(f"{name} from 1 to {1 << 20}", str(size))
    if top > experts:
        read.refuse(f"num_experts_per_tok up to its {experts} experts", str(top))
    common = Mixture(experts, top, sizes[width], normalised=read.flag("norm_topk_prob"))
    return replace(common, **differences)  # type: ignore[arg-type]


def dense_layers(read: Reader) -> tuple[int, ...]:
    """Layers without experts: those that `mlp_only_layers` names, and all but every `decoder_sparse_step`-th."""
    only = read.get("mlp_only_layers", default=[])
    if not isinstance(only, list) or not all(type(i) is int for i in only):
        raise TypeError(f"mlp_only_layers {only!r} is no list of layers")
    step = read.whole("decoder_sparse_step", default=1)
    if step < 1:
        read.refuse("decoder_sparse_step of 1 or more", str(step))
    return tuple(i for i in range(read.layers) if i in only or (i + 1) % step)


def _mixtral(read: Reader) -> DecoderConfig:
    names = (_MIXTRAL, ExpertNames())
    mixture = mixture_of(read, width="intermediate_size", normalised=True, names=names)
    return replace(windowed(read, always=True), mixture=mixture)


def _olmoe(read: Reader) -> DecoderConfig:
    read.refuse_unless(clip_qkv=None)  # which it clips behind their norms
    mixture = mixture_of(read, width="intermediate_size")
    bias = read.flag("attention_bias")
    return replace(llama(read), query_key_norm="all", names=_NORMED, output_bias=bias, mixture=mixture)


def _qwen2(read: Reader) -> DecoderConfig:
    mixture = mixture_of(
        read,
        width="moe_intermediate_size",
        shared=read.whole("shared_expert_intermediate_size"),
        shared_switch=True,
        dense=dense_layers(read),
    )
    bias = read.flag("qkv_bias", default=True)
    return replace(windowed(read), query_key_value_bias=bias, output_bias=False, mixture=mixture)


def _qwen3(read: Reader) -> DecoderConfig:
    mixture = mixture_of(read, width="moe_intermediate_size", dense=dense_layers(read))
    return replace(windowed(read), query_key_norm="head", names=_NORMED, mixture=mixture)


def _granite(read: Reader) -> DecoderConfig:
    mixture = mixture_of(read, width="intermediate_size", normalised=True, names=(_GRANITE, _GRANITE_STACKED))
    return replace(granite(read), mixture=mixture)


MIXTRAL = decoder_family("mixtral", _mixtral, even=("head_dim",))
OLMOE = decoder_family("olmoe", _olmoe, even=("head_dim",))
QWEN2_MOE = decoder_family("qwen2_moe", _qwen2, even=("head_dim",))
QWEN3_MOE = decoder_family("qwen3_moe", _qwen3, even=("head_dim",))
GRANITE_MOE = decoder_family("granitemoe", _granite, even=("head_dim",))
