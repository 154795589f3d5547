"""Decoders with mixtures of experts: layers of dense families, with experts as feed-forward.

References
    arXiv:2401.04088 (Mixtral), arXiv:2409.02060 (OLMoE), arXiv:2407.10671 (Qwen2-MoE), arXiv:2505.09388 (Qwen3-MoE),
    arXiv:2404.14219 (Phi-3.5-MoE), arXiv:2507.07024 (FlexOlmo)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .decoder import DecoderConfig, ExpertNames, Layer, Mixture, Names, Reader, decoder_family
from .llama import granite, hunyuan, llama, windowed
from .olmo2 import olmo2
from .state_hybrids import attending, head_states, hybrid

NORMED = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
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
    shared_gate_up="shared_mlp.input_linear",
    shared_down="shared_mlp.output_linear",
)
_GRANITE_STACKED = replace(
    _GRANITE,
    router="block_sparse_moe.router",
    stacked_gate_up="block_sparse_moe.experts.gate_up_proj",
    stacked_down="block_sparse_moe.experts.down_proj",
)
_PHI = replace(_MIXTRAL, stacked_gate_up="mlp.experts.gate_up_proj", stacked_down="mlp.experts.down_proj")
SHARED = ExpertNames(
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)
_ERNIE = replace(SHARED, correction="mlp.moe_statics.e_score_correction_bias")
_HUNYUAN = ExpertNames(
    router="mlp.gate.wg",
    shared_gate="mlp.shared_mlp.gate_proj",
    shared_up="mlp.shared_mlp.up_proj",
    shared_down="mlp.shared_mlp.down_proj",
)


def mixture_of(read: Reader, *, width: str, **differences: object) -> Mixture:
    """The mixture that a config describes; `width` is the word for the hidden size of one expert."""
    experts = _one(read, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    top = _one(read, "num_experts_per_tok", "moe_topk", "moe_k")
    sizes = {"experts": experts, "num_experts_per_tok": top, width: read.whole(width)}
    for name, size in sizes.items():
        if not 1 <= size <= (1 << 20):
            read.refuse(f"{name} from 1 to {1 << 20}", str(size))
    if top > experts:
        read.refuse(f"num_experts_per_tok up to its {experts} experts", str(top))
    common = Mixture(experts, top, sizes[width], normalised=read.flag("norm_topk_prob"))
    return replace(common, **differences)  # type: ignore[arg-type]


def limited(read: Reader, mixture: Mixture, *, best: int) -> Mixture:
    """`mixture`, whose experts are chosen from `topk_group` of `n_group` groups by the sums of their `best` scores."""
    groups = read.whole("n_group", default=1)
    kept = read.whole("topk_group", default=groups)
    if groups == 1 or kept == groups:
        return mixture
    if groups < 1 or mixture.experts % groups or mixture.experts // groups < best:
        read.refuse(f"an n_group that divides its {mixture.experts} experts, into {best} or more", str(groups))
    size = mixture.experts // groups
    if not 1 <= kept < groups or kept * size < mixture.top:
        read.refuse(f"a topk_group up to n_group with {mixture.top} experts of {size} each", str(kept))
    return replace(mixture, groups=groups, top_groups=kept, best=best)


def _one(read: Reader, *names: str) -> int:
    """A number that some configs give for every layer."""
    value = read.get(*names)
    if not isinstance(value, list):
        return read.whole(*names)
    if not value or len(set(value)) > 1:
        read.refuse(f"the same {names[0]} in every layer", repr(value)[:80])
    return int(value[0])


def dense_layers(read: Reader) -> tuple[int, ...]:
    """Layers without experts: those that `mlp_layer_types` calls dense; else the first `first_k_dense_replace`, those
    that `mlp_only_layers` names, and all but every `decoder_sparse_step`-th."""
    types = read.layer_types(("dense", "sparse"), "mlp_layer_types")
    if types is not None:
        return tuple(i for i, kind in enumerate(types) if kind == "dense")
    first = read.whole("first_k_dense_replace", default=0)
    only = read.get("mlp_only_layers", default=[])
    if not isinstance(only, list) or not all(type(i) is int for i in only):
        raise TypeError(f"mlp_only_layers {only!r} is no list of layers")
    step = read.whole("decoder_sparse_step", default=1)
    if step < 1:
        read.refuse("decoder_sparse_step of 1 or more", str(step))
    return tuple(i for i in range(read.layers) if i < first or i in only or (i + 1) % step)


def _mixtral(read: Reader) -> DecoderConfig:
    names = (_MIXTRAL, ExpertNames())
    mixture = mixture_of(read, width="intermediate_size", normalised=True, names=names)
    return replace(windowed(read, always=True), mixture=mixture)


def _olmoe(read: Reader) -> DecoderConfig:
    read.refuse_unless(clip_qkv=None)  # which it clips behind their norms
    mixture = mixture_of(read, width="intermediate_size")
    bias = read.flag("attention_bias")
    return replace(llama(read), query_key_norm="all", names=NORMED, output_bias=bias, mixture=mixture)


def _qwen2(read: Reader) -> DecoderConfig:
    mixture = mixture_of(
        read,
        width="moe_intermediate_size",
        shared=read.whole("shared_expert_intermediate_size"),
        shared_switch=True,
        dense=dense_layers(read),
    )
    bias, last = read.flag("qkv_bias", default=True), read.whole("max_window_layers", default=28)
    slides = [i % 2 == 0 and i < last for i in range(read.layers)]
    return replace(windowed(read, slides), query_key_value_bias=bias, output_bias=False, mixture=mixture)


def _qwen3(read: Reader) -> DecoderConfig:
    """Windows in all layers or in none; the language models of those that see or hear have none."""
    mixture = mixture_of(read, width="moe_intermediate_size", dense=dense_layers(read))
    alike = Reader({**read.config, "layer_types": None})
    config = windowed(alike) if read.kind == "qwen3_moe" else llama(read)
    return replace(config, query_key_norm="head", names=NORMED, mixture=mixture)


def _granite(read: Reader) -> DecoderConfig:
    mixture = mixture_of(read, width="intermediate_size", normalised=True, names=(_GRANITE, _GRANITE_STACKED))
    return replace(granite(read), mixture=mixture)


def _granite_shared(read: Reader) -> DecoderConfig:
    config = _granite(read)
    assert config.mixture is not None
    return replace(config, mixture=replace(config.mixture, shared=read.whole("shared_intermediate_size", default=0)))


def _granite_hybrid(read: Reader) -> DecoderConfig:
    """Granite 4: state spaces in most layers, dense where it has no experts, without positions unless it says rope."""
    if read.whole("num_local_experts", default=0):
        config = _granite_shared(read)
    else:
        names = Names(gate_up=_GRANITE.shared_gate_up, down=_GRANITE.shared_down)
        config = replace(granite(read), feed_forward=read.whole("shared_intermediate_size"), names=names)
    turned = read.get("position_embedding_type") == "rope"
    attention = config.pattern[0] if turned else Layer()
    if all(attending(read)):
        return replace(config, pattern=(attention,))
    return replace(config, pattern=hybrid(read, attention, head_states(read)))


def _flex_olmo(read: Reader) -> DecoderConfig:
    config = replace(olmo2(read), pattern=(Layer(read.rope(theta=500000.0)),))
    return replace(config, mixture=mixture_of(read, width="intermediate_size"))


def _phi(read: Reader) -> DecoderConfig:
    """Phi 3.5 MoE: a router that compares an expert with those whose logits are near, layer norms, biases."""
    mixture = mixture_of(
        read,
        width="intermediate_size",
        scores="sparsemixer",
        normalised=False,
        tolerance=2 * read.number("router_jitter_noise", default=0.01),
        names=(_PHI, replace(_PHI, router="mlp.router")),
    )
    if mixture.top != 2:
        read.refuse("num_experts_per_tok 2", str(mixture.top))
    config = windowed(read, always=True)
    factor = read.scaling().get("short_mscale")
    pattern = tuple(
        replace(layer, rope=replace(layer.rope, factor=float(factor))) if layer.rope and factor else layer  # type: ignore[arg-type]
        for layer in config.pattern
    )
    return replace(config, norm="layer", pattern=pattern, head_bias=read.flag("lm_head_bias"), mixture=mixture)


def _ernie(read: Reader) -> DecoderConfig:
    read.refuse_unless(use_bias=False, moe_use_aux_free=True)
    width, shared = read.whole("moe_intermediate_size"), read.whole("moe_num_shared_experts", default=2)
    begin = read.whole("moe_layer_start_index", default=1)
    end = read.whole("moe_layer_end_index", default=-1)
    every = read.whole("moe_layer_interval", default=1)
    if every < 1:
        read.refuse("moe_layer_interval of 1 or more", str(every))
    sparse = range(begin, (read.layers if end < 0 else end + 1))
    mixture = mixture_of(
        read,
        width="moe_intermediate_size",
        normalised=True,
        correction=True,
        correction_of_groups=True,
        shared=width * shared,
        dense=tuple(i for i in range(read.layers) if i not in sparse or (i + 1) % every),
        names=(_ERNIE, replace(_ERNIE, correction="mlp.gate.moe_statics.e_score_correction_bias")),
    )
    rope = read.rope(interleaved=True, theta=500000.0)
    return llama(read, pattern=(Layer(rope),), tied=read.flag("tie_word_embeddings", default=True), mixture=mixture)


def _hunyuan(read: Reader) -> DecoderConfig:
    shared = read.whole("intermediate_size")
    mixture = mixture_of(read, width="intermediate_size", normalised=True, shared=shared, names=(_HUNYUAN,))
    return replace(hunyuan(read), mixture=mixture)


def _gpt_oss(read: Reader) -> DecoderConfig:
    """Sinks beside the keys, windows in every other layer, and experts with biases and bounded gates."""
    rope, bias = read.rope(theta=150000.0), read.flag("attention_bias", default=True)
    pattern = read.pattern((True, False), read.whole("sliding_window", default=128), {True: rope, False: rope})
    gates = (read.number("swiglu_alpha", default=1.702), read.number("swiglu_limit", default=7.0))
    mixture = mixture_of(
        read,
        width="intermediate_size",
        normalised=True,
        bias=True,
        turned=True,
        clamped=gates,
        names=(ExpertNames(router="mlp.router"),),
    )
    names = Names(sinks="self_attn.sinks")
    return llama(read, pattern=pattern, query_key_value_bias=bias, output_bias=bias, names=names, mixture=mixture)


def _granite_windows(read: Reader, of: Callable[[Reader], DecoderConfig] = granite) -> DecoderConfig:
    """Granite with windows in three of four layers, sinks, and perhaps a rotation for every layer, 0: none."""
    thetas = read.get("layer_rope_theta", default=[None] * read.layers)
    if not isinstance(thetas, list) or len(thetas) < read.layers:
        read.refuse("layer_rope_theta of every layer", repr(thetas)[:80])
    window = read.whole("sliding_window", default=128)
    kinds = read.pattern((False, True, True, True), window, {True: None, False: None})
    ropes = [None if theta == 0 else Reader({**read.config, **_with_theta(read, theta)}).rope() for theta in thetas]
    pattern = tuple(Layer(ropes[i], kinds[i % len(kinds)].window) for i in range(read.layers))
    config = of(read)
    return replace(config, pattern=pattern, names=replace(config.names, sinks="self_attn.sinks"))


def _granite_moe_windows(read: Reader) -> DecoderConfig:
    return _granite_windows(read, _granite_shared)


def _with_theta(read: Reader, theta: object) -> dict[str, object]:
    return {} if theta is None else {"rope_parameters": {**read.scaling(), "rope_theta": theta}}


def _mellum(read: Reader) -> DecoderConfig:
    """Qwen3-MoE with a rotation for layers with a window, and another for those without."""
    ropes = {slides: read.rope(f"{name}_attention") for slides, name in ((True, "sliding"), (False, "full"))}
    pattern = read.pattern((False,), read.whole("sliding_window", default=1024), ropes)
    mixture = mixture_of(read, width="moe_intermediate_size", dense=dense_layers(read))
    return llama(read, pattern=pattern, query_key_norm="head", names=NORMED, mixture=mixture)


MIXTRAL = decoder_family("mixtral", _mixtral, even=("head_dim",))
OLMOE = decoder_family("olmoe", _olmoe, even=("head_dim",))
QWEN2_MOE = decoder_family("qwen2_moe", _qwen2, even=("head_dim",))
QWEN3_MOE = decoder_family(
    "qwen3_moe", _qwen3, types=("qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), even=("head_dim",)
)
GRANITE_MOE = decoder_family("granitemoe", _granite, even=("head_dim",))
GRANITE_MOE_SHARED = decoder_family("granitemoeshared", _granite_shared, even=("head_dim",))
GRANITE_HYBRID = decoder_family("granitemoehybrid", _granite_hybrid, even=("head_dim",))
FLEX_OLMO = decoder_family("flex_olmo", _flex_olmo, even=("head_dim",))
PHI_MOE = decoder_family("phimoe", _phi, even=("head_dim",))
ERNIE_MOE = decoder_family("ernie4_5_moe", _ernie)
HUNYUAN_MOE = decoder_family("hunyuan_v1_moe", _hunyuan, even=("head_dim",))
GPT_OSS = decoder_family("gpt_oss", _gpt_oss, even=("head_dim",))
GRANITE_WINDOWS = decoder_family("granite_swa", _granite_windows, even=("head_dim",))
GRANITE_MOE_WINDOWS = decoder_family("granitemoe_swa", _granite_moe_windows, even=("head_dim",))
MELLUM = decoder_family("mellum", _mellum, even=("head_dim",))
