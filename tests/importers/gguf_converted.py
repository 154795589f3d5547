"""GGUF files of tiny models of transformers, with the names and changes of llama.cpp's converters.

What a converter does to a checkpoint is written down here anew, from its tensors and its config.json alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf_files import add, finish
from safetensors.numpy import load_file
from transformers import AutoConfig

Words = Mapping[str, object]
_NEIGHBOURS = ("granitehybrid", "minicpm", "mistral3")  # channels that turn together are put side by side
_BY_HEAD = ("falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe")
_DELTA = ("qwen3next", "qwen35", "qwen35moe")
_LATENT = ("deepseek2", "mistral4")


def write_converted(checkpoint: Path, architecture: str, more: Words, *, older: bool = False) -> Path:
    """The file of a directory of transformers; `more` is metadata, `older`: projections are not cut into parts."""
    words = AutoConfig.from_pretrained(checkpoint).to_dict()
    values = {**_common(words), **_of_architecture(architecture, words, older=older), **more}
    path = checkpoint / f"{architecture}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if value is not None:
            add(writer, f"{architecture}.{key}", value)
    number = next(kind for kind, word in gguf.MODEL_ARCH_NAMES.items() if word == architecture)
    names = gguf.get_tensor_name_map(number, 8)
    for name, array in _stacked(load_file(checkpoint / "model.safetensors")).items():
        for changed, x in _changed(architecture, words, name, array, older=older):
            known = changed if changed.startswith(("blk.", "rope_")) else names.get_name(changed, (".weight", ".bias"))
            assert known is not None, f"{changed} of {architecture} has no name in GGUF"
            writer.add_tensor(known, np.ascontiguousarray(x, np.float32))
    if architecture == "gemma4":
        writer.add_tensor("rope_freqs.weight", np.array([1.0] * 4 + [1e30] * 12, np.float32))
    finish(writer)
    return path


def _first(words: Words, *names: str) -> object:
    return next((words[name] for name in names if words.get(name) is not None), None)


def _common(words: Words) -> dict[str, object]:
    """What the converter of any architecture writes."""
    rope = words.get("rope_parameters") or {}
    assert isinstance(rope, dict)
    whole = rope.get("full_attention", rope)
    found = {
        "block_count": _first(words, "num_hidden_layers", "n_layer", "n_layers"),
        "context_length": _first(words, "max_position_embeddings", "n_positions", "max_seq_len"),
        "embedding_length": _first(words, "hidden_size", "n_embd", "d_model"),
        "feed_forward_length": _first(words, "intermediate_size"),
        "attention.head_count": _first(words, "num_attention_heads", "n_head", "n_heads"),
        "attention.head_count_kv": _first(words, "num_key_value_heads"),
        "attention.key_length": words.get("head_dim"),
        "attention.value_length": words.get("head_dim"),
        "rope.freq_base": whole.get("rope_theta"),
        "rope.freq_base_swa": rope.get("sliding_attention", {}).get("rope_theta"),
        "attention.layer_norm_rms_epsilon": _first(words, "rms_norm_eps", "norm_eps"),
        "attention.layer_norm_epsilon": _first(words, "layer_norm_eps", "layer_norm_epsilon"),
        "expert_count": _first(words, "num_local_experts", "num_experts") or None,
        "expert_used_count": _first(words, "num_experts_per_tok", "top_k_experts"),
        "expert_group_count": words.get("n_group"),
        "expert_group_used_count": words.get("topk_group"),
    }
    if whole.get("rope_type") == "yarn":
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.factor"] = float(whole["factor"])
        found["rope.scaling.original_context_length"] = whole["original_max_position_embeddings"]
    return found


def _of_architecture(architecture: str, words: Words, *, older: bool) -> dict[str, object]:
    """What the converters of latents and of states write beside."""
    rope = words.get("rope_parameters") or {}
    assert isinstance(rope, dict)
    if architecture in (*_LATENT, "minicpm3"):
        rank, turned = int(words["kv_lora_rank"]), int(words["qk_rope_head_dim"])  # type: ignore[call-overload]
        key, value = int(words["qk_nope_head_dim"]) + turned, words["v_head_dim"]  # type: ignore[call-overload]
        found: dict[str, object] = {
            "attention.kv_lora_rank": rank,
            "attention.q_lora_rank": words.get("q_lora_rank"),
            "rope.dimension_count": turned,
        }
        if architecture == "minicpm3" or older:
            return {**found, "attention.key_length": key, "attention.value_length": value}
        magnitude = rope.get("mscale_all_dim")
        return {
            **found,
            "attention.head_count_kv": 1,
            "attention.key_length": rank + turned,
            "attention.value_length": rank,
            "attention.key_length_mla": key,
            "attention.value_length_mla": value,
            "rope.scaling.yarn_log_multiplier": None if magnitude is None else 0.1 * magnitude,
        }
    if architecture in _DELTA:
        heads = int(words["linear_num_value_heads"])  # type: ignore[call-overload]
        return {
            "ssm.conv_kernel": words["linear_conv_kernel_dim"],
            "ssm.state_size": words["linear_key_head_dim"],
            "ssm.group_count": words["linear_num_key_heads"],
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * int(words["linear_value_head_dim"]),  # type: ignore[call-overload]
            "rope.dimension_count": int(int(words["head_dim"]) * 0.25),  # type: ignore[call-overload]
        }
    if architecture in _BY_HEAD:
        heads = int(_first(words, "mamba_n_heads", "mamba_num_heads", "num_heads"))  # type: ignore[call-overload]
        size = int(_first(words, "mamba_d_head", "mamba_head_dim", "head_dim"))  # type: ignore[call-overload]
        return {
            "ssm.conv_kernel": _first(words, "mamba_d_conv", "conv_kernel"),
            "ssm.state_size": _first(words, "mamba_d_state", "ssm_state_size", "state_size"),
            "ssm.group_count": _first(words, "mamba_n_groups", "n_groups"),
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * size,
        }
    return {}


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts of a layer, and norms of heads, as one tensor."""
    found: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if ".norms." in name:
            stem, _, head = name.removesuffix(".weight").rpartition(".norms.")
            if head == "0":
                count = sum(1 for other in tensors if other.startswith(f"{stem}.norms."))
                each = [tensors[f"{stem}.norms.{h}.weight"] for h in range(count)]
                found[f"{stem}.weight"] = np.stack(each)
        elif ".experts." not in name or not re.search(r"\.experts\.\d+\.", name):
            found[name] = array
        elif ".experts.0." in name:
            count = sum(1 for other in tensors if re.sub(r"\.experts\.\d+\.", ".experts.0.", other) == name)
            each = [tensors[name.replace(".experts.0.", f".experts.{e}.")] for e in range(count)]
            found[name.replace(".experts.0.", ".experts.")] = np.stack(each)
    return found


def _changed(
    architecture: str, words: Words, name: str, x: np.ndarray, *, older: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """What becomes of a tensor, under names that the package gguf knows."""
    block = re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", name)
    blk = f"blk.{block[1]}" if block else ""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    if architecture in _NEIGHBOURS and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = int(words["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])  # type: ignore[call-overload]
        x = x.reshape(heads, 2, len(x) // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)
    if architecture == "falcon-h1":
        x = _multiplied(words, name, x)
    if name.endswith("_sub_norm.weight"):
        yield f"{blk}.{name.rpartition('.')[0].rpartition('.')[2]}.weight", x
    elif architecture in _DELTA:
        yield from _of_delta(architecture, words, name, x, "" if older else blk)
    elif ".mixer.experts." in name:
        yield name.replace("backbone", "model").replace("mixer", "mlp"), x
    elif architecture in (*_BY_HEAD, "mamba") and re.search(r"\.(mixer|mamba)\.", name):
        yield _of_states(architecture, words, name, x)
    elif name.endswith("kv_b_proj.weight") and architecture in _LATENT and not older:
        plain, rank = int(words["qk_nope_head_dim"]), x.shape[-1]  # type: ignore[call-overload]
        heads = x.reshape(int(words["num_attention_heads"]), -1, rank)  # type: ignore[call-overload]
        yield name.replace("kv_b", "k_b"), heads[:, :plain].swapaxes(1, 2)
        yield name.replace("kv_b", "v_b"), heads[:, plain:]
    elif name.endswith("input_linear.weight"):
        of_all = "shared_mlp" in name and words["num_local_experts"]
        stem = "shexp" if of_all else "exps"
        for part, half in zip(("gate", "up"), np.split(x, 2, -2)):
            yield f"{blk}.ffn_{part}{'' if 'shared_mlp' in name and not of_all else f'_{stem}'}.weight", half
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{blk}.ffn_down{'_shexp' if words['num_local_experts'] else ''}.weight", x
    elif architecture == "mistral4" and ".mlp.experts." in name:
        yield f"{blk}.ffn_{'down' if 'down' in name else 'gate_up'}_exps.weight", x
    elif architecture == "gemma4":
        yield _of_gemma4(name, x, blk)
    else:
        yield name, x


def _of_states(architecture: str, words: Words, name: str, x: np.ndarray) -> tuple[str, np.ndarray]:
    if name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt.bias" if architecture == "nemotron_h_moe" else ".dt_proj.bias")
    elif name.endswith("conv1d.weight"):
        x = x.squeeze()
    elif name.endswith(".A_log"):
        x = -np.exp(x)
    elif name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
        x = x.reshape(int(_first(words, "mamba_n_groups", "n_groups")), -1)  # type: ignore[call-overload]
    if architecture != "mamba" and name.endswith((".A_log", ".D")):
        x = x.reshape(-1, 1)
    return name, x


def _multiplied(words: Words, name: str, x: np.ndarray) -> np.ndarray:
    """Falcon-H1's factors."""
    before, key = words["attention_in_multiplier"], words["key_multiplier"]
    factors = {
        "down_proj": words["mlp_multipliers"][1],  # type: ignore[index]
        "gate_proj": words["mlp_multipliers"][0],  # type: ignore[index]
        "k_proj": key * before,  # type: ignore[operator]
        "q_proj": before,
        "v_proj": before,
        "o_proj": words["attention_out_multiplier"],
        "mamba.out_proj": words["ssm_out_multiplier"],
        "lm_head": words["lm_head_multiplier"],
        "embed_tokens": words["embedding_multiplier"],
    }
    if "mamba.in_proj" in name:
        width = words["mamba_d_ssm"]
        vectors = words["mamba_n_groups"] * words["mamba_d_state"]  # type: ignore[operator]
        sizes = (width, width, vectors, vectors, words["mamba_n_heads"])
        each = np.concatenate([np.full(n, f) for n, f in zip(sizes, words["ssm_multipliers"])])  # type: ignore[arg-type, call-overload]
        return x * (words["ssm_in_multiplier"] * each[:, None])
    return x * next((factor for part, factor in factors.items() if part in name), 1.0)


def _of_delta(architecture: str, words: Words, name: str, x: np.ndarray, blk: str) -> Iterator[tuple[str, np.ndarray]]:
    key_heads, heads = int(words["linear_num_key_heads"]), int(words["linear_num_value_heads"])  # type: ignore[call-overload]
    key, size = int(words["linear_key_head_dim"]), int(words["linear_value_head_dim"])  # type: ignore[call-overload]

    def tiled(y: np.ndarray, axis: int, width: int) -> np.ndarray:
        shape = (*y.shape[:axis], key_heads, heads // key_heads, width, *y.shape[axis + 1 :])
        return y.reshape(shape).swapaxes(axis, axis + 1).reshape(y.shape)

    if architecture != "qwen3next" and "linear_attn." in name:
        first = 2 * key_heads * key
        if "in_proj_qkv." in name or "conv1d" in name:
            x = x.squeeze()
            x = np.concatenate([x[:first], tiled(x[first:], 0, size)])
        elif "in_proj_z." in name:
            x = tiled(x, 0, size)
        elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
            x = tiled(x, 0, 1)
        elif "out_proj." in name:
            x = tiled(x, 1, size)
    if name.endswith(".A_log"):
        x = -np.exp(x)
    elif name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    elif "conv1d" in name:
        x = x.squeeze()
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        x = x + 1
    elif name.endswith("shared_expert_gate.weight"):
        x = x[0]
    if "in_proj_qkvz" in name and blk:
        per = heads // key_heads * size
        groups = x.reshape(key_heads, -1, x.shape[1])
        parts = np.split(groups, np.cumsum((key, key, per)), 1)
        q, k, v, z = (part.reshape(-1, x.shape[1]) for part in parts)
        yield f"{blk}.attn_qkv.weight", np.concatenate([q, k, v])
        yield f"{blk}.attn_gate.weight", z
    else:
        yield name, x


def _of_gemma4(name: str, x: np.ndarray, blk: str) -> tuple[str, np.ndarray]:
    if name.endswith("router.scale"):
        return f"{blk}.ffn_gate_inp.scale", x
    if name.endswith("per_expert_scale"):
        return f"{blk}.ffn_down_exps.scale", x
    if name.endswith("layer_scalar") or (".experts." in name and not name.endswith(".weight")):
        name += ".weight"
    return name, x
