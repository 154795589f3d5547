"""Mixtures of experts whose router is that of DeepSeek-V3, behind attention of other families.

A score is the sigmoid of a logit; where experts are chosen, a correction that balances their loads is added to it.
References
    arXiv:2412.19437 (the router), arXiv:2506.05767 (dots.llm1), arXiv:2508.06471 (GLM-4.5)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, ExpertNames, Layer, Mixture, Names, Reader, decoder_family
from .llama import llama
from .mixtures import NORMED, SHARED, dense_layers, limited, mixture_of
from .olmo2 import exaone_layers

_MINIMAX = ExpertNames(
    router="block_sparse_moe.gate",
    correction="block_sparse_moe.e_score_correction_bias",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)
_MINIMAX_STACKED = replace(ExpertNames(), correction="mlp.e_score_correction_bias")
_HUNYUAN = ExpertNames(
    router="mlp.router.gate",
    correction="mlp.expert_bias",
    shared_gate="mlp.shared_mlp.gate_proj",
    shared_up="mlp.shared_mlp.up_proj",
    shared_down="mlp.shared_mlp.down_proj",
)
_SARVAM = Names(
    embedding="model.word_embeddings",
    attention="attention",
    joined="attention.query_key_value",
    query_norm="attention.query_layernorm",
    key_norm="attention.key_layernorm",
    output="attention.dense",
)


def corrected(read: Reader, *, shared: str = "n_shared_experts") -> Mixture:
    """The mixture that a config of DeepSeek-V3's words describes; `shared` is the word for experts for all tokens."""
    mixture = mixture_of(
        read,
        width="moe_intermediate_size",
        scores="sigmoid",
        correction=True,
        normalised=read.flag("norm_topk_prob", default=True),
        scale=read.number("routed_scaling_factor", default=1.0),
        shared=read.whole("moe_intermediate_size") * read.whole(shared, "num_shared_experts", default=1),
        dense=dense_layers(read),
        names=(SHARED, replace(SHARED, correction="mlp.e_score_correction_bias")),
    )
    return limited(read, mixture, best=2)


def _dots1(read: Reader) -> DecoderConfig:
    rope, window = read.rope(), read.get("sliding_window")
    usual = window is not None and read.flag("use_sliding_window")
    window = None if window is None else read.whole("sliding_window")
    pattern = read.pattern((usual,), window, {True: rope, False: rope})
    return llama(read, pattern=pattern, query_key_norm="head", names=NORMED, mixture=corrected(read))


def _glm4(read: Reader, *, share: float = 0.5) -> DecoderConfig:
    """GLM 4.5 and 4.6; `share` of a head turns unless it is said."""
    config = llama(read, pattern=(Layer(read.rope(share=share)),), output_bias=False, mixture=corrected(read))
    normed = read.flag("use_qk_norm")
    return replace(config, query_key_norm="head", names=NORMED) if normed else config


def _sarvam(read: Reader) -> DecoderConfig:
    """GLM's, with the names of its own checkpoints."""
    if read.config.get("use_qk_norm") is None:
        read = Reader({**read.config, "use_qk_norm": True})
    config = _glm4(read, share=1.0)
    assert config.mixture is not None
    experts = replace(SHARED, correction="mlp.gate.expert_bias")
    return replace(config, names=_SARVAM, mixture=replace(config.mixture, names=(experts,)))


def _hunyuan3(read: Reader) -> DecoderConfig:
    """Experts in all layers but the first, unless it is said."""
    words = {"routed_scaling_factor": read.number("router_scaling_factor", default=2.826), "first_k_dense_replace": 1}
    read = Reader({**words, **read.config})
    pattern = (Layer(read.rope(theta=11158840.0)),)
    mixture = corrected(read, shared="num_shared_experts")
    mixture = replace(mixture, names=(_HUNYUAN, *mixture.names))
    return llama(read, pattern=pattern, query_key_norm="head", names=NORMED, mixture=mixture)


def _solar(read: Reader) -> DecoderConfig:
    """No layer is without experts, so nothing says how wide one would be."""
    read = Reader({"intermediate_size": read.whole("moe_intermediate_size"), **read.config})
    return llama(read, output_bias=False, mixture=corrected(read))


def _exaone(read: Reader) -> DecoderConfig:
    mixture = corrected(read, shared="num_shared_experts")
    return llama(read, pattern=exaone_layers(read), query_key_norm="head", names=NORMED, mixture=mixture)


def _minimax(read: Reader) -> DecoderConfig:
    share = read.whole("rotary_dim", default=read.head_dim) / read.head_dim
    mixture = mixture_of(
        read,
        width="intermediate_size",
        scores="sigmoid",
        correction=True,
        normalised=True,
        names=(_MINIMAX, _MINIMAX_STACKED),
    )
    pattern = (Layer(read.rope(share=share, theta=5e6)),)
    return llama(read, pattern=pattern, query_key_norm="all", names=NORMED, mixture=mixture)


DOTS1 = decoder_family("dots1", _dots1, even=("head_dim",))
GLM4_MOE = decoder_family("glm4_moe", _glm4, types=("glm4_moe", "glm4v_moe_text"))
SARVAM_MOE = decoder_family("sarvam_moe", _sarvam, tied=("model.word_embeddings", "lm_head"))
HY3 = decoder_family("hy_v3", _hunyuan3, even=("head_dim",))
SOLAR_OPEN = decoder_family("solar_open", _solar, even=("head_dim",))
EXAONE_MOE = decoder_family("exaone_moe", _exaone, even=("head_dim",))
MINIMAX_M2 = decoder_family("minimax_m2", _minimax)
