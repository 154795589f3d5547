"""DeepSeek and its kin: attention over latents, in most of them in front of experts that are chosen from groups.

DeepSeek-V2 has scores by softmax, of which a group has its largest; V3, Kimi K2, Sarvam and GLM 4.7 Flash sigmoids with
a correction, of which a group has its two largest; Mistral 4 softmax with the groups of V3. Youtu and MiniCPM3 have no
experts.
References
    arXiv:2405.04434 (DeepSeek-V2), arXiv:2412.19437 (DeepSeek-V3), arXiv:2507.20534 (Kimi K2)
"""

from __future__ import annotations

import math
from dataclasses import replace

from .corrected_mixtures import corrected
from .decoder import DecoderConfig, Latent, Layer, Mixture, Reader, decoder_family
from .decoder.rope import magnitude, rope_of
from .llama import llama
from .mixtures import SHARED, dense_layers, limited, mixture_of

_LARGEST = 1 << 13  # of a latent, or of a head: before tables of its length are made


def _latents(read: Reader, *, interleaved: bool, value: int | None = None, **differences: object) -> DecoderConfig:
    """Llama's layers with attention over latents; `value` is the width of a head's value where none is said."""
    words = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, plain, turned, value = (read.whole(word, default=value if word == "v_head_dim" else None) for word in words)
    query_rank = None if read.config.get("q_lora_rank") is None else read.whole("q_lora_rank")
    for word, size in zip((*words, "q_lora_rank"), (rank, plain, turned, value, query_rank)):
        if size is not None and not 1 <= size <= _LARGEST:
            read.refuse(f"{word} from 1 to {_LARGEST}", str(size))
    scaling = dict(read.scaling())
    kind = str(scaling.get("rope_type", scaling.get("type", "default"))).removeprefix("deepseek_")
    share = float(read.get("partial_rotary_factor", default=scaling.get("partial_rotary_factor") or 1))  # type: ignore[arg-type]
    if share not in (1, turned / (plain + turned)):
        read.refuse("a partial_rotary_factor that qk_rope_head_dim agrees with", str(share))
    scaling["rope_type"] = kind
    theta = float(scaling.get("rope_theta") or read.get("rope_theta", default=10000.0))  # type: ignore[arg-type]
    longest = read.whole("max_position_embeddings")
    rope = rope_of(turned, theta, scaling, longest, interleaved=interleaved)
    scale = (plain + turned) ** -0.5
    if kind != "default" and scaling.get("mscale_all_dim"):
        scale *= magnitude(float(scaling["factor"]), float(scaling["mscale_all_dim"])) ** 2  # type: ignore[arg-type]
    read.refuse_unless(mlp_bias=False)
    config = llama(
        Reader({**read.config, "head_dim": turned, "num_key_value_heads": 1}), pattern=(Layer(rope),), scale=scale
    )
    latent = Latent(rank, plain, turned, value, query_rank, bias=config.output_bias)
    config = replace(config, latent=latent, head_dim=latent.width, query_key_value_bias=False)
    return replace(config, **differences)  # type: ignore[arg-type]


def _v2(read: Reader) -> DecoderConfig:
    read.refuse_unless(norm_topk_prob=False, scoring_func="softmax", moe_layer_freq=1)
    mixture = _plain(read)
    method = str(read.get("topk_method", default="greedy"))
    if method == "group_limited_greedy":
        mixture = limited(read, mixture, best=1)
    elif method != "greedy":
        read.refuse("a topk_method among greedy and group_limited_greedy", repr(method))
    return _latents(read, interleaved=True, mixture=mixture)


def _plain(read: Reader) -> Mixture:
    """Experts by softmax."""
    return mixture_of(
        read,
        width="moe_intermediate_size",
        scale=read.number("routed_scaling_factor", default=1.0),
        shared=read.whole("moe_intermediate_size") * read.whole("n_shared_experts", default=2),
        dense=dense_layers(read),
        names=(SHARED,),
    )


def _v3(read: Reader) -> DecoderConfig:
    read.refuse_unless(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    return _latents(read, interleaved=read.flag("rope_interleave", default=True), mixture=corrected(read))


def _glm(read: Reader) -> DecoderConfig:
    """Experts in all layers but the first, unless it is said."""
    if read.get("mlp_layer_types") is None and read.get("first_k_dense_replace") is None:
        read = Reader({**read.config, "first_k_dense_replace": 1})
    return _v3(read)


def _mistral(read: Reader) -> DecoderConfig:
    mixture = limited(read, replace(_plain(read), normalised=read.flag("norm_topk_prob", default=True)), best=2)
    return _latents(read, interleaved=read.flag("rope_interleave", default=True), mixture=mixture)


def _youtu(read: Reader) -> DecoderConfig:
    interleaved = read.flag("rope_interleave", default=True)
    return _latents(read, interleaved=interleaved, tied=read.flag("tie_word_embeddings", default=True))


def _minicpm3(read: Reader) -> DecoderConfig:
    """Factors of embeddings, of what a layer adds, and of logits."""
    depth = read.optional("scale_depth", 1.4)
    width = read.optional("dim_model_base", 256.0)
    return _latents(
        read,
        interleaved=False,
        value=read.hidden // read.heads,
        embedding_scale=read.number("scale_emb", default=12.0),
        residual_scale=None if depth is None else depth / math.sqrt(read.layers),
        logit_scale=None if width is None else width / read.hidden,
        eps=read.number("rms_norm_eps", default=1e-5),
        tied=read.flag("tie_word_embeddings", default=True),
    )


DEEPSEEK_V2 = decoder_family("deepseek_v2", _v2)
DEEPSEEK_V3 = decoder_family("deepseek_v3", _v3, types=("deepseek_v3", "kimi_k2", "sarvam_mla"))
GLM4_MOE_LITE = decoder_family("glm4_moe_lite", _glm)
MISTRAL4 = decoder_family("mistral4", _mistral)
YOUTU = decoder_family("youtu", _youtu)
MINICPM3 = decoder_family("minicpm3", _minicpm3)
