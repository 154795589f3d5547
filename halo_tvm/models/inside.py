"""Models that see or hear answer texts by a language model inside of them: which one, and where its tensors are.

Behind a text alone its logits are those of the whole model: no layer of it looks at pictures or sounds otherwise than
as vectors in the place of tokens, and where positions have several parts, those of a text are equal in all.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UnsupportedModel

Words = Mapping[str, object]

# Types of models that see or hear, by the type of the language model that transformers takes where nothing is said.
_AROUND = {
    "cohere2": ("aya_vision", "cohere2_vision"),
    "deepseek_v3": ("kimi_k25",),
    "exaone4": ("exaone4_5",),
    "gemma3_text": ("gemma3", "shieldgemma2"),
    "gemma3n_text": ("gemma3n",),
    "gemma4_text": ("gemma4",),
    "gemma4_unified_text": ("gemma4_unified",),
    "glm4v_moe_text": ("glm4v_moe",),
    "glm4v_text": ("glm46v", "glm4v", "glmga"),
    "glm_ocr_text": ("glm_ocr",),
    "granite": ("granite_speech", "granite_speech_plus"),
    "granite_docling_text": ("granite_docling",),
    "hyperclovax": ("hyperclovax_vision_v2",),
    "lfm2": ("lfm2_vl",),
    "lfm3": ("lfm3_vl",),
    "llama": (
        *("deepseek_vl", "deepseek_vl_hybrid", "glmasr", "idefics3", "janus", "llava", "llava_next"),
        *("llava_next_video", "omniasr", "smolvlm", "video_llava", "vipllava", "voxtral"),
    ),
    "mistral": ("idefics2", "mistral3"),
    "paddleocr_vl_text": ("paddleocr_vl",),
    "qwen2": (
        *("audioflamingo3", "got_ocr2", "internvl", "llava_onevision", "musicflamingo", "ovis2"),
        *("pp_chart2table", "qwen2_audio", "video_llama_3"),
    ),
    "qwen2_5_omni_text": ("qwen2_5_omni", "qwen2_5_omni_thinker"),
    "qwen2_5_vl_text": ("qwen2_5_vl",),
    "qwen2_vl_text": ("qwen2_vl",),
    "qwen3": ("fun_asr_nano", "lighton_ocr", "moss_transcribe_diarize", "qianfan_ocr", "qwen3_asr"),
    "qwen3_5_moe_text": ("qwen3_5_moe",),
    "qwen3_5_text": ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "qwen3_5"),
    "qwen3_omni_moe_text": ("qwen3_omni_moe", "qwen3_omni_moe_thinker"),
    "qwen3_vl_moe_text": ("qwen3_vl_moe",),
    "qwen3_vl_text": ("qwen3_vl",),
}
TEXT_TYPES = {kind: text for text, kinds in _AROUND.items() for kind in kinds}

# What the config of a language model inside leaves out, as files of older releases hold only what differs from these.
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("vocab_size", "max_position_embeddings"),
)
USUAL: Mapping[str, tuple[int, ...]] = {
    "cohere2": (8192, 22528, 40, 64, 256000, 8192),
    "gemma3_text": (2304, 9216, 26, 8, 262208, 131072),
    "gemma3n_text": (2048, 16384, 35, 8, 262400, 32768),
    "gemma4_text": (2304, 9216, 30, 8, 262144, 131072),
    "gemma4_unified_text": (2304, 9216, 30, 8, 262144, 262144),
    "granite": (4096, 11008, 32, 32, 32000, 2048),
    "llama": (4096, 11008, 32, 32, 32000, 2048),
    "mistral": (4096, 14336, 32, 32, 32000, 131072),
    "qwen2": (4096, 22016, 32, 32, 151936, 32768),
    "qwen3": (4096, 22016, 32, 32, 151936, 32768),
}

# Starts of the names of a language model's tensors, and what stands there in a model around it.
PLACES = (
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("model.", "model.text_model."),
    ("model.", "thinker.model."),
    ("lm_head.", "language_model.lm_head."),
    ("lm_head.", "thinker.lm_head."),
    ("", "language_model."),
    ("", "model.language_model."),
    ("", ""),
)
HEADS = ("ForConditionalGeneration", "ForCausalLM", "OmniModel")
_KEPT = ("eos_token_id", "quantization_config", "compression_config")  # said once, beside the parts


def language_model_of(config: Words) -> Words | None:
    """The config of the language model in a model of this config; None where none is known to be there.

    `UnsupportedModel` where it is no object.

    The first releases of Qwen2-VL have its words beside those of the rest.
    """
    kind, named = config.get("model_type"), config.get("architectures")
    named = named[0] if isinstance(named, list) and named else HEADS[0]
    if not isinstance(kind, str) or kind not in TEXT_TYPES or not str(named).endswith(HEADS):
        return None
    around = config.get("thinker_config", config)
    inner = around.get("text_config", around) if isinstance(around, dict) else around
    if not isinstance(inner, dict):
        raise UnsupportedModel(f"expected text_config as an object in config.json, found {inner!r:.40}: re-export it")
    words = {name: value for name, value in config.items() if name in _KEPT} | inner
    if inner is around or "model_type" not in inner:
        words["model_type"] = TEXT_TYPES[kind]
    return {**dict(zip(SIZES, USUAL.get(str(words["model_type"]), ()))), **words}
