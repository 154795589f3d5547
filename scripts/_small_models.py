"""Small models of transformers with seeded random weights, made of the configurations that it takes by default."""

from __future__ import annotations

import re

import torch
import transformers

MOST_PARAMETERS = 160_000_000

# What a field becomes whose value is larger, by the end of its name.
SMALL = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64, "hidden_dim": 64, "word_embed_proj_dim": 64,
    "embedding_size": 64, "projection_dim": 64, "input_hidden_size": 64, "hidden_channels": 64, "emb_dim": 64,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "depth": 2, "num_block": 2,
    "intermediate_size": 96, "ffn_dim": 96, "d_ff": 96, "n_inner": 96, "ffn_size": 96, "feed_forward_dim": 96,
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 256, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "num_queries": 12, "num_latents": 16, "d_latents": 64, "relative_attention_num_buckets": 32,
}  # fmt: skip
SECTIONED = re.compile(r"(_vl|glm4v|glm_ocr|omni)(_moe)?_text$")  # a head turns by three positions, each a part of it
LISTS = ("layer_types", "layers_block_type", "mlp_layer_types")


def shrink(config: transformers.PreTrainedConfig) -> None:
    """Make a configuration small, in place, with those inside it."""
    was = dict(vars(config))
    layers = next((was[k] for k in ("num_hidden_layers", "n_layer", "n_layers") if isinstance(was.get(k), int)), 0)
    kinds = next((was[k] for k in LISTS if isinstance(was.get(k), list) and len(was[k]) == layers), None)
    kept = layers_to_keep(kinds) if kinds else list(range(min(layers, 2)))
    for name, value in was.items():
        if isinstance(value, transformers.PreTrainedConfig):
            shrink(value)
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, list) and layers > 2 and len(value) == layers:
            setattr(config, name, [value[i] for i in kept])
        elif isinstance(value, int) and value == layers and name in ("num_hidden_layers", "n_layer", "n_layers"):
            setattr(config, name, len(kept))
        elif isinstance(value, int) and name in ("head_dim", "qk_head_dim") and "qk_rope_head_dim" in was:
            rotated, plain = SMALL["qk_rope_head_dim"], SMALL["qk_nope_head_dim"]
            setattr(config, name, rotated if name == "head_dim" else rotated + plain)
        elif isinstance(value, float) and name.startswith("noise_scale"):
            setattr(config, name, 0.0)  # a voice that draws nothing can be compared
        elif isinstance(value, int):
            ends = [end for end in SMALL if name == end or name.endswith("_" + end)]
            if ends and value > SMALL[longest := max(ends, key=len)]:
                heads = was.get("num_attention_heads")
                setattr(config, name, 4 if longest == "num_key_value_heads" and value == heads else SMALL[longest])
            elif name.endswith(("_token_id", "_token_index")) and value >= SMALL["vocab_size"]:
                setattr(config, name, 200 + value % 50)
            elif name == "image_size" and value > 64 and isinstance(was.get("patch_size"), int):
                setattr(config, name, 4 * was["patch_size"])
    stages = was.get("stage_names")
    if isinstance(stages, list) and kept != list(range(len(stages) - 1)):
        config.stage_names = [stages[0], *(f"stage{i + 1}" for i in range(len(kept)))]
        config._out_features, config._out_indices = config.stage_names[-1:], [len(kept)]
    if SECTIONED.search(str(config.model_type)):
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        half = int(head * (config.rope_parameters.get("partial_rotary_factor") or 1)) // 2
        config.rope_parameters["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]


def layers_to_keep(kinds: list[str]) -> list[int]:
    """The first layer of each kind, and one more where there is one kind alone."""
    first = sorted({kind: i for i, kind in reversed(list(enumerate(kinds)))}.values())
    return first if len(first) > 1 else [0, 1][: len(kinds)]


def small_model(name: str) -> torch.nn.Module:
    """A model of the class `name`: small in all sizes, or where it does not take them, in its number of layers alone.

    RuntimeError where it is made neither way.
    """
    made = getattr(transformers, name)
    reason: Exception | None = None
    for change in (shrink, fewer_layers):
        torch.manual_seed(0)
        try:
            config = made.config_class()
            change(config)
            with torch.device("meta"):
                size = sum(p.numel() for p in made(config).parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"{size} parameters")
            return disturbed(made(config).float().eval())
        except Exception as error:  # noqa: BLE001  whatever a configuration that nobody tried may raise
            reason = reason or error
    raise RuntimeError(f"{type(reason).__name__}: {str(reason).strip()[:300]}")


def disturbed(model: torch.nn.Module) -> torch.nn.Module:
    """The model with no two weights alike: equal scores are chosen among in any order, and zeros hide faults."""
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * 0.03)
    return model


def fewer_layers(config: transformers.PreTrainedConfig) -> None:
    """Two layers of every kind, and few tokens."""
    for name, value in dict(vars(config)).items():
        if isinstance(value, transformers.PreTrainedConfig):
            fewer_layers(value)
        elif isinstance(value, int) and SMALL.get(name) == 2 and value > 2:
            setattr(config, name, 2)
        elif name == "vocab_size":
            setattr(config, name, min(value, 2000))
