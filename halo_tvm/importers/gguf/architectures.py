"""From a file's metadata to one of the house's definitions: sizes in the words of config.json, names by their roles.

A definition reads config.json, so the metadata is put into its words; what its converter did to the tensors is put
into the configuration that comes of it: names, norms that have one added already, the order of rotated channels.
References
    the keys of the GGUF specification; tensor names of gguf-py, which llama.cpp's converters write
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NoReturn

import numpy as np

from ...errors import UnsupportedModel
from ...models import FAMILIES, Family
from ...models.decoder import DecoderConfig, ExpertNames, Layer, Mixture, Names, ShortConvolution
from ._layers import WITHOUT_WINDOWS, guessing_layers, has_windows, layer_types, unused_windows
from .container import Gguf, Value

ROLES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "embedding_norm": "token_embd_norm",
    "layer": "blk.{}",
    "attention_norm": "attn_norm",
    "attention": "attn",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "sinks": "attn_sinks.weight",
    "output": "attn_output",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn": "ffn",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "ffn_post_norm": "post_ffw_norm",
    "norm": "output_norm",
    "head": "output",
}
_SHORT = ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj")
_EXPERTS = ExpertNames(
    router="ffn_gate_inp",
    correction="exp_probs_b.bias",
    stacked_gate="ffn_gate_exps.weight",
    stacked_up="ffn_up_exps.weight",
    stacked_gate_up="",
    stacked_down="ffn_down_exps.weight",
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
    shared_switch="ffn_gate_inp_shexp",
)
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
# Other models under names of this table: what says so, and is refused.
_FOREIGN = ("attention.clamp_kqv", "attention.q_lora_rank", "ssm.state_size")


@dataclass(frozen=True)
class Architecture:
    """How files of one `general.architecture` are read."""

    model_type: str
    interleaved: bool = False  # channels that turn together are neighbours; converters order them so for these
    config: Mapping[str, object] = field(default_factory=dict)  # words of config.json that no metadata has
    experts: bool = False  # it is a mixture


ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True),
    "internlm2": Architecture("llama", interleaved=True),
    "granite": Architecture("granite", interleaved=True),
    "smollm3": Architecture("smollm3", interleaved=True),
    "arcee": Architecture("arcee", interleaved=True),
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
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2"),
    "gemma3": Architecture("gemma3_text"),
    "phi2": Architecture("phi"),
    "phi3": Architecture("phi3"),
    "olmo2": Architecture("olmo2"),
    "stablelm": Architecture("stablelm"),
    "starcoder2": Architecture("starcoder2", config={"hidden_act": "gelu_pytorch_tanh"}),
    "gptneox": Architecture("gpt_neox"),
    "gpt2": Architecture("gpt2"),
    "bloom": Architecture("bloom"),
    "falcon": Architecture("falcon", config={"bias": False}),
    "olmoe": Architecture("olmoe", experts=True),
    "qwen2moe": Architecture("qwen2_moe", experts=True),
    "qwen3moe": Architecture("qwen3_moe", config={"norm_topk_prob": True}, experts=True),
    "qwen3vlmoe": Architecture("qwen3_vl_moe_text", config={"norm_topk_prob": True}, experts=True),
    "gpt-oss": Architecture("gpt_oss", config={"attention_bias": True}, experts=True),
    "granitemoe": Architecture("granitemoeshared", interleaved=True, experts=True),
    "dots1": Architecture("dots1", config={"norm_topk_prob": True}, experts=True),
    "lfm2": Architecture("lfm2", config={"block_auto_adjust_ff_dim": False}),
    "lfm2moe": Architecture("lfm2_moe", experts=True),
    "glm4moe": Architecture("glm4_moe", config={"norm_topk_prob": True}, experts=True),
}
_WHOLE_RAMPS = ("gpt-oss",)  # trained with ends of yarn's ramp that are no whole numbers, which llama.cpp makes of them
_MIXTRAL = Architecture("mixtral", interleaved=True, experts=True)  # under the name of Llama
_OLMO3 = Architecture("olmo3")  # under the name of OLMo 2
_LONGEST = 1 << 21  # tokens of context: tables of positions are made of them
_LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}  # layers; scores of these are scaled by the width of all heads


def architecture_of(file: Gguf) -> tuple[Family[DecoderConfig], DecoderConfig]:
    """The definition of the file's architecture and its configuration; `UnsupportedModel` where there is none."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        _refuse(f"an architecture among {', '.join(sorted(ARCHITECTURES))}", f"{name!r:.60}")
    known = ARCHITECTURES[name]
    if name == "llama" and file.metadata.get("llama.expert_count"):
        known = _MIXTRAL
    own = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    if name == "olmo2" and has_windows(own):
        known = _OLMO3
    words = _words(file, name, known, own)
    family = next(f for f in FAMILIES.values() if known.model_type in f.huggingface_types)
    assert family.from_huggingface is not None, f"{family.name} reads config.json"
    try:
        config = family.from_huggingface(words)
    except (KeyError, TypeError, ValueError, ArithmeticError, OverflowError) as reason:
        raise UnsupportedModel(
            f"expected the complete metadata of a {name} model, found {reason!r:.200}: convert the model again"
        ) from reason
    if unused := unused_windows(own, known.model_type, config):
        _refuse(f"a {name} model whose layers have the windows of its definition", unused)
    return family, _as_stored(config, known, file.tensors)


def _words(file: Gguf, name: str, known: Architecture, own: Mapping[str, Value]) -> dict[str, object]:
    """config.json of the model, of whose metadata `own` is what stands under the architecture's name."""
    foreign = next((key for key in (*_FOREIGN, *(() if known.experts else ("expert_count",))) if own.get(key)), None)
    if foreign:
        _refuse(f"a {name} model without {foreign}", f"{own[foreign]!r:.40}")
    words: dict[str, object] = {"model_type": known.model_type, **known.config}
    own = {**own, **_of_convolutions(own, words)}
    words |= {word: _one(own[key], key) for key, word in _WORDS.items() if key in own}
    words["sliding_window"] = words.get("sliding_window") or None
    if further := guessing_layers(own):
        words["num_hidden_layers"] = own["block_count"] - further  # type: ignore[operator]
    eps = own.get("attention.layer_norm_rms_epsilon", own.get("attention.layer_norm_epsilon"))
    words |= dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"), eps)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        _refuse("a matrix token_embd.weight", "none")
    words["vocab_size"] = embedding.shape[0]
    longest = words.get("max_position_embeddings")
    if isinstance(longest, int) and longest > _LONGEST:
        _refuse(f"context_length of at most {_LONGEST}", str(longest))
    words["n_positions"] = words["seq_length"] = longest
    words["n_inner"] = words["ffn_hidden_size"] = words.get("intermediate_size")
    words["tie_word_embeddings"] = "output.weight" not in file.tensors
    size = _head_dim(words, own)
    words["head_dim"] = size
    words |= _rotation(file, own, size)
    words |= _particular(file, known.model_type, words, own)
    return {word: value for word, value in words.items() if value is not None}


def _of_convolutions(own: Mapping[str, Value], words: dict[str, object]) -> dict[str, Value]:
    """Where short convolutions stand in some layers, these have no heads of keys: `words` get the others, by number."""
    heads = own.get("attention.head_count_kv")
    if "shortconv.l_cache" not in own or not isinstance(heads, np.ndarray):
        return {}
    words["full_attn_idxs"] = np.flatnonzero(heads).tolist()
    return {"attention.head_count_kv": heads[heads > 0]}


def _head_dim(words: Mapping[str, object], own: Mapping[str, Value]) -> int:
    hidden, heads = (words.get(word) for word in ("hidden_size", "num_attention_heads"))
    if not isinstance(hidden, int) or not isinstance(heads, int) or hidden < 1 or heads < 1:
        _refuse("embedding_length and attention.head_count as numbers above 0", f"{hidden!r} and {heads!r}")
    sizes = {own.get(key, hidden // heads) for key in ("attention.key_length", "attention.value_length")}
    size = sizes.pop()
    if sizes or not isinstance(size, int):
        _refuse("keys and values of one length", f"{own.get('attention.key_length')!r:.40} and others")
    return size


def _rotation(file: Gguf, own: Mapping[str, Value], size: int) -> dict[str, object]:
    """rope_theta, the part of a head that turns, and what scales its frequencies."""
    words: dict[str, object] = {"rope_theta": own.get("rope.freq_base")}
    turned = own.get("rope.dimension_count", size)
    if isinstance(turned, int) and 0 < turned <= size:
        words["partial_rotary_factor"] = math.nextafter(turned / size, 1.0) if turned < size else 1.0
    longest = own.get("context_length")
    original = own.get("rope.scaling.original_context_length", longest)
    kind, factor = own.get("rope.scaling.type"), own.get("rope.scaling.factor")
    divisors = {"rope_freqs.weight": longest, "rope_factors_short.weight": original}
    stored = next((name for name in divisors if name in file.tensors), None)
    if stored:
        words["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": tuple(map(float, floats(file, stored).reshape(-1))),
            "original_max_position_embeddings": divisors[stored],
            "attention_factor": own.get("rope.scaling.attn_factor", 1.0),
        }
    elif kind == "yarn" and isinstance(factor, float):
        magnitude = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
        words["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": float(own.get("rope.scaling.attn_factor", 1.0)) * magnitude,  # type: ignore[arg-type]
            "truncate": file.metadata["general.architecture"] not in _WHOLE_RAMPS,
        }
    elif kind not in (None, "none", "longrope"):
        words["rope_scaling"] = {"rope_type": kind, "factor": factor}
    return words


def _particular(file: Gguf, kind: str, words: Mapping[str, object], own: Mapping[str, Value]) -> dict[str, object]:
    """What single model types call otherwise, or keep in other places than metadata."""
    found: dict[str, object] = {"logit_scale": own.get("logit_scale"), "logits_scaling": own.get("logit_scale")}
    layers, heads = words.get("num_hidden_layers"), words.get("num_attention_heads")
    if kind in _LARGEST_GEMMA:
        whole = layers == _LARGEST_GEMMA[kind]
        found["query_pre_attn_scalar"] = words["hidden_size"] / heads if whole else words["head_dim"]  # type: ignore[operator]
    if kind == "gemma3_text":
        found["rope_local_base_freq"] = own.get("rope.freq_base_swa", 10000.0)
    if kind == "falcon":
        found["multi_query"] = words.get("num_key_value_heads") == 1
        found["new_decoder_architecture"] = "blk.0.attn_norm_2.weight" in file.tensors
        found["num_kv_heads"] = words.get("num_key_value_heads")
    found["layer_types"] = layer_types(own, layers)
    if kind == "lfm2_moe":
        found["num_dense_layers"] = own.get("leading_dense_block_count", 0)
    if kind.startswith(WITHOUT_WINDOWS):
        found["sliding_window"] = None
    if kind == "granitemoeshared":
        found["shared_intermediate_size"] = own.get("expert_shared_feed_forward_length", 0)
    if kind in ("dots1", "glm4_moe"):
        found["n_shared_experts"] = own.get("expert_shared_count", 1)
        found["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    return found


def _mixture_as_stored(mixture: Mixture) -> Mixture:
    """`mixture` with the names of GGUF."""
    return replace(mixture, names=(_EXPERTS,), correction_of_groups=False, turned=False)


def _as_stored(c: DecoderConfig, known: Architecture, has: Collection[str]) -> DecoderConfig:
    """`c` with the names of GGUF, and what its converter made of the tensors."""

    def stored(*names: str) -> bool:
        return any(f"blk.0.{name}" in has for name in names)

    names = {role.name: getattr(c.names, role.name) for role in fields(Names)}
    changed = {role: word for role, word in ROLES.items() if names[role]}
    changed |= {"joined": "attn_qkv" if stored("attn_qkv.weight") else "", "layout": "nk"}
    changed["gate_up"] = "ffn_up" if c.gated and not stored("ffn_gate.weight") else ""
    if stored("attn_norm_2.weight"):  # Falcon: attention reads the second one
        changed |= {"attention_norm": "attn_norm_2", "ffn_norm": "attn_norm"}
    if names["ffn_norm"] and not names["attention_post_norm"] and stored("post_attention_norm.weight"):
        changed["ffn_norm"] = "post_attention_norm"
    if "output_norm.weight" not in has and "token_embd_norm.weight" in has and not names["embedding_norm"]:
        changed["norm"] = "token_embd_norm"
    pattern = tuple(map(_short_as_stored, c.pattern))
    if known.interleaved:
        turned = {layer.rope: replace(layer.rope, interleaved=True) for layer in pattern if layer.rope}
        pattern = tuple(replace(layer, rope=turned[layer.rope] if layer.rope else None) for layer in pattern)
    return replace(
        c,
        names=replace(c.names, grouped=False, **changed),
        mixture=c.mixture and _mixture_as_stored(c.mixture),
        pattern=pattern,
        norm_plus_one=False,
        query_key_value_bias=stored("attn_qkv.bias", "attn_q.bias"),
        output_bias=stored("attn_output.bias"),
        ffn_bias=stored("ffn_up.bias"),
        head_bias="output.bias" in has,
        tied="output.weight" not in has,
    )


def _short_as_stored(layer: Layer) -> Layer:
    """A layer whose short convolution, if it has one, is called as GGUF does."""
    mixer = layer.mixer
    return replace(layer, mixer=replace(mixer, names=_SHORT)) if isinstance(mixer, ShortConvolution) else layer


def floats(file: Gguf, name: str) -> np.ndarray:
    """The tensor `name` as float32."""
    tensor = file.tensors[name]
    assert tensor.kind.floats is not None, f"{tensor.kind.name} was refused before"
    with np.errstate(all="ignore"):  # scales that are no numbers give weights that are none, as llama.cpp has it
        return tensor.kind.floats(tensor.blocks()).reshape(tensor.shape)


def _one(value: Value, key: str) -> object:
    """A number, also where every layer has one and all are equal."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size == 0 or np.any(value != value[0]):
        _refuse(f"{key} equal in all layers", f"{value[:8].tolist()!r:.80}")
    return value[0].item()


def _refuse(expected: str, found: str) -> NoReturn:
    raise UnsupportedModel(f"expected {expected} in a GGUF file, found {found}: give another model, or its safetensors")
