"""From a file's metadata to one of the house's definitions: sizes in the words of config.json, names by their roles.

A definition reads config.json, so the metadata is put into its words; what its converter did to the tensors is put
into the configuration that comes of it: names, norms that have one added already, the order of rotated channels.
References
    the keys of the GGUF specification; tensor names of gguf-py, which llama.cpp's converters write
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...errors import UnsupportedModel
from ...models import FAMILIES, Family
from ...models.decoder import DecoderConfig
from ._layers import WITHOUT_WINDOWS, guessing_layers, has_windows, layer_types, unused_windows
from ._metadata import Metadata, refuse
from ._particular import particular
from ._rotation import rotation
from ._stored import ROLES, as_stored
from .container import Gguf, Value

# Metadata under the architecture's name -> the word of config.json.
_WORDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
    "shortconv.l_cache": "conv_L_cache",
}
# Other models under names of this table: what says so, and is refused unless the architecture has it.
_FOREIGN = tuple(
    (
        "attention.clamp_kqv attention.q_lora_rank attention.kv_lora_rank attention.temperature_scale "
        "attention.shared_kv_layers embedding_length_per_layer_input expert_count moe_latent_size ssm.state_size"
    ).split()
)
_SIZES = ("attention.key_length", "attention.value_length")
_EXPERTS = ("expert_count",)
_LATENT = ("attention.kv_lora_rank", "attention.q_lora_rank")
_STATES = ("ssm.state_size",)


@dataclass(frozen=True)
class Architecture:
    """How files of one `general.architecture` are read."""

    model_type: str
    interleaved: bool = False  # channels that turn together are neighbours; converters order them so for these
    config: Mapping[str, object] = field(default_factory=dict)  # words of config.json that no metadata has
    has: tuple[str, ...] = ()  # what says that it is another model where others have it
    heads: tuple[str, ...] = _SIZES  # what the size of a head is said by; (): there are no heads
    varying: tuple[str, ...] = ()  # what is not the same in all layers


def _mixture(model_type: str, **others: object) -> Architecture:
    return Architecture(model_type, has=_EXPERTS, **others)  # type: ignore[arg-type]


_NORMALISED = {"norm_topk_prob": True}
_KEYS = ("attention.head_count_kv",)
_WIDTHS = (*_KEYS, "feed_forward_length")
_MLA = {"interleaved": True, "heads": ("rope.dimension_count",)}
ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True),
    "internlm2": Architecture("llama", interleaved=True),
    "mistral3": Architecture("ministral3", interleaved=True, has=("attention.temperature_scale",)),
    "granite": Architecture("granite", interleaved=True),
    "minicpm": Architecture("granite", interleaved=True),
    "smollm3": Architecture("smollm3", interleaved=True),
    "arcee": Architecture("arcee", interleaved=True),
    "bitnet": Architecture("bitnet"),
    "olmo": Architecture("olmo", interleaved=True),
    "ernie4_5": Architecture("ernie4_5", interleaved=True),
    "command-r": Architecture("cohere", interleaved=True),
    "cohere2": Architecture("cohere2", interleaved=True),
    "chatglm": Architecture("glm", interleaved=True),
    "glm4": Architecture("glm4", interleaved=True),
    "qwen2": Architecture("qwen2"),
    "qwen2vl": Architecture("qwen2_vl_text"),
    "qwen3": Architecture("qwen3"),
    "qwen3vl": Architecture("qwen3_vl_text"),
    "seed_oss": Architecture("seed_oss"),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "paddleocr": Architecture("paddleocr_vl_text"),
    "exaone": Architecture("exaone"),
    "exaone4": Architecture("exaone4"),
    "nemotron": Architecture("nemotron"),
    "jais2": Architecture("jais2"),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2"),
    "gemma3": Architecture("gemma3_text"),
    "gemma4": Architecture(
        "gemma4_text",
        has=("expert_count", "attention.shared_kv_layers", "embedding_length_per_layer_input"),
        heads=("attention.key_length_swa", "attention.value_length_swa"),
        varying=_WIDTHS,
    ),
    "phi2": Architecture("phi"),
    "phi3": Architecture("phi3"),
    "olmo2": Architecture("olmo2"),
    "stablelm": Architecture("stablelm"),
    "starcoder": Architecture("gpt_bigcode"),
    "starcoder2": Architecture("starcoder2", config={"hidden_act": "gelu_pytorch_tanh"}),
    "gptneox": Architecture("gpt_neox"),
    "gpt2": Architecture("gpt2"),
    "bloom": Architecture("bloom"),
    "mpt": Architecture("mpt", has=("attention.clamp_kqv",)),
    "falcon": Architecture("falcon", config={"bias": False}),
    "olmoe": _mixture("olmoe"),
    "qwen2moe": _mixture("qwen2_moe"),
    "qwen3moe": _mixture("qwen3_moe", config=_NORMALISED),
    "qwen3vlmoe": _mixture("qwen3_vl_moe_text", config=_NORMALISED),
    "gpt-oss": _mixture("gpt_oss", config={"attention_bias": True}),
    "granitemoe": _mixture("granitemoeshared", interleaved=True),
    "dots1": _mixture("dots1"),
    "glm4moe": _mixture("glm4_moe"),
    "exaone-moe": _mixture("exaone_moe"),
    "ernie4_5-moe": _mixture("ernie4_5_moe", interleaved=True),
    "hunyuan-moe": _mixture("hunyuan_v1_moe"),
    "minimax-m2": _mixture("minimax_m2"),
    "phimoe": _mixture("phimoe"),
    "deepseek2": Architecture("deepseek_v2", has=(*_EXPERTS, *_LATENT, "attention.temperature_scale"), **_MLA),  # type: ignore[arg-type]
    "mistral4": Architecture("mistral4", has=(*_EXPERTS, *_LATENT, "attention.temperature_scale"), **_MLA),  # type: ignore[arg-type]
    "minicpm3": Architecture("minicpm3", has=_LATENT, heads=("rope.dimension_count",)),
    "lfm2": Architecture("lfm2", config={"block_auto_adjust_ff_dim": False}, varying=_KEYS),
    "lfm2moe": _mixture("lfm2_moe", varying=_KEYS),
    "mamba": Architecture("mamba", has=_STATES, heads=()),
    "mamba2": Architecture("mamba2", has=_STATES, heads=()),
    "granitehybrid": Architecture("granitemoehybrid", True, has=(*_EXPERTS, *_STATES), varying=_KEYS),
    "falcon-h1": Architecture("falcon_h1", has=_STATES),
    "nemotron_h": Architecture("nemotron_h", has=_STATES, varying=_WIDTHS),
    "nemotron_h_moe": Architecture("nemotron_h", has=(*_EXPERTS, *_STATES, "moe_latent_size"), varying=_WIDTHS),
    "qwen3next": Architecture("qwen3_next", has=(*_EXPERTS, *_STATES)),
    "qwen35": Architecture("qwen3_5_text", has=_STATES),
    "qwen35moe": Architecture("qwen3_5_moe_text", has=(*_EXPERTS, *_STATES)),
}
_MIXTRAL = _mixture("mixtral", interleaved=True)  # under the name of Llama
_OLMO3 = Architecture("olmo3")  # under the name of OLMo 2
_LONGEST = 1 << 21  # tokens of context: tables of positions are made of them
# expert_gating_func: 3 is a softmax over the chosen ones.
_GATES: dict[int, tuple[str, ...]] = {1: ("softmax", "sparsemixer"), 2: ("sigmoid",), 3: ("softmax",)}


def architecture_of(file: Gguf) -> tuple[Family[DecoderConfig], DecoderConfig]:
    """The definition of the file's architecture and its configuration; `UnsupportedModel` where there is none."""
    name, kind = (file.metadata.get(f"general.{word}") for word in ("architecture", "type"))
    if kind not in (None, "model"):  # an adapter, an image's projector, an importance matrix
        refuse("general.type model", f"{kind!r:.60}")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        refuse(f"an architecture among {', '.join(sorted(ARCHITECTURES))}", f"{name!r:.60}")
    own = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    m, known = Metadata(file, name, own), ARCHITECTURES[name]
    try:
        if name == "llama" and own.get("expert_count"):
            known = _MIXTRAL
        if name == "olmo2" and has_windows(own):
            known = _OLMO3
        words = _words(m, known)
        family = next(f for f in FAMILIES.values() if words["model_type"] in f.huggingface_types)
        assert family.from_huggingface is not None, f"{family.name} reads config.json"
        config = family.from_huggingface(words)
        stored = as_stored(config, m, interleaved=known.interleaved)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as reason:
        raise UnsupportedModel(
            f"expected the complete metadata of a {name} model, found {reason!r:.200}: convert the model again"
        ) from reason
    if unused := unused_windows(own, str(words["model_type"]), config):
        refuse(f"a {name} model whose layers have the windows of its definition", unused)
    gate, mixture = own.get("expert_gating_func"), config.mixture
    if mixture and isinstance(gate, int) and gate and mixture.scores not in _GATES.get(gate, ()):
        refuse(f"a {name} model whose experts are chosen by {mixture.scores}", f"expert_gating_func {gate!r:.40}")
    return family, stored


def _words(m: Metadata, known: Architecture) -> dict[str, object]:
    """config.json of the model."""
    own, file = m.own, m.file
    blocks = m.layers
    foreign = next((key for key in _FOREIGN if key not in known.has and own.get(key)), None)
    if foreign:
        refuse(f"a {m.architecture} model without {foreign}", f"{own[foreign]!r:.40}")
    if own.get("attention.causal") is False:
        refuse(f"a {m.architecture} model whose tokens see those in front of them alone", "attention.causal False")
    words: dict[str, object] = {"model_type": known.model_type, **known.config}
    for key, word in _WORDS.items():
        if key in own:
            words[word] = (_least if key in known.varying else _one)(own[key], key)
    words["sliding_window"] = words.get("sliding_window") or None
    words["logit_scale"] = words.get("logits_scaling")
    if further := guessing_layers(own):
        words["num_hidden_layers"] = blocks - further
    eps = own.get("attention.layer_norm_rms_epsilon", own.get("attention.layer_norm_epsilon"))
    words |= dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"), eps)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        refuse("a matrix token_embd.weight", "none")
    words["vocab_size"] = embedding.shape[0]
    longest = words.get("max_position_embeddings")
    if isinstance(longest, int) and longest > _LONGEST:
        refuse(f"context_length of at most {_LONGEST}", str(longest))
    words["n_positions"] = words["seq_length"] = longest
    words["n_inner"] = words["ffn_hidden_size"] = words.get("intermediate_size")
    words["tie_word_embeddings"] = "output.weight" not in file.tensors
    words["layer_types"] = layer_types(own, words.get("num_hidden_layers"))
    words["head_dim"] = size = _head_dim(words, own, known.heads) if known.heads else None
    words |= rotation(m, size)
    words |= particular(m, words)
    if known.model_type.startswith(WITHOUT_WINDOWS):
        words["sliding_window"] = None
    return {word: value for word, value in words.items() if value is not None}


def _head_dim(words: Mapping[str, object], own: Mapping[str, Value], keys: tuple[str, ...]) -> int:
    hidden, heads = (words.get(word) for word in ("hidden_size", "num_attention_heads"))
    if not isinstance(hidden, int) or not isinstance(heads, int) or hidden < 1 or heads < 1:
        refuse("embedding_length and attention.head_count as numbers above 0", f"{hidden!r} and {heads!r}")
    sizes = {own.get(key, hidden // heads) for key in keys}
    size = sizes.pop()
    if sizes or not isinstance(size, int):
        refuse("keys and values of one length", f"{own.get(keys[0])!r:.40} and others")
    return size


def _one(value: Value, key: str) -> object:
    """A number, also where every layer has one and all are equal."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size == 0 or np.any(value != value[0]):
        refuse(f"{key} equal in all layers", f"{value[:8].tolist()!r:.80}")
    return value[0].item()


def _least(value: Value, key: str) -> object:
    """The smallest number above 0 of all layers: others are read layer by layer, or refused by their shapes."""
    if not isinstance(value, np.ndarray):
        return value
    if not np.any(value > 0):
        refuse(f"{key} above 0 in some layer", f"{value[:8].tolist()!r:.80}")
    return value[value > 0].min().item()


__all__ = ["ARCHITECTURES", "ROLES", "Architecture", "architecture_of"]
