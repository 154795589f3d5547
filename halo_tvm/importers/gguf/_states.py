"""State spaces and linear attention of a file, in the words of config.json."""

from __future__ import annotations

from collections.abc import Mapping

from ._metadata import Metadata, refuse

Words = dict[str, object]


def _heads(m: Metadata) -> tuple[int, int]:
    """How many heads a state space has, and their size."""
    heads, width = m.whole("ssm.time_step_rank"), m.whole("ssm.inner_size")
    if heads < 1 or width % heads:
        refuse("ssm.inner_size as a multiple of ssm.time_step_rank", f"{width} and {heads}")
    return heads, width // heads


def mamba(m: Metadata, words: Mapping[str, object]) -> Words:
    normed = bool(m.own.get("ssm.dt_b_c_rms", False))
    return {
        "model_type": "falcon_mamba" if normed else "mamba",
        "intermediate_size": m.whole("ssm.inner_size"),
        "state_size": m.whole("ssm.state_size"),
        "conv_kernel": m.whole("ssm.conv_kernel"),
        "time_step_rank": m.whole("ssm.time_step_rank"),
        "use_bias": m.has("blk.{}.ssm_in.bias"),
        "use_conv_bias": m.has("blk.{}.ssm_conv1d.bias"),
    }


def mamba2(m: Metadata, words: Mapping[str, object]) -> Words:
    heads, size = _heads(m)
    return {
        "num_heads": heads,
        "head_dim": size,
        "expand": heads * size / m.whole("embedding_length"),
        "n_groups": m.whole("ssm.group_count"),
        "state_size": m.whole("ssm.state_size"),
        "conv_kernel": m.whole("ssm.conv_kernel"),
        "use_bias": m.has("blk.{}.ssm_in.bias"),
        "use_conv_bias": m.has("blk.{}.ssm_conv1d.bias"),
    }


def _bamba(m: Metadata) -> Words:
    """The state space in the words of Bamba, which Granite and Falcon-H1 have, too."""
    heads, size = _heads(m)
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": size,
        "mamba_d_ssm": heads * size,
        "mamba_n_groups": m.whole("ssm.group_count"),
        "mamba_d_state": m.whole("ssm.state_size"),
        "mamba_d_conv": m.whole("ssm.conv_kernel"),
        "mamba_proj_bias": m.has("blk.{}.ssm_in.bias"),
        "mamba_conv_bias": m.has("blk.{}.ssm_conv1d.bias"),
    }


def granite_hybrid(m: Metadata, words: Mapping[str, object]) -> Words:
    """Layers without heads of keys are state spaces.

    Of heads that positions turn in part (Bamba) the converter puts other channels side by side than those that turn.
    """
    turns = bool(m.own.get("rope.scaling.finetuned", True))
    if turns and m.own.get("rope.dimension_count", words["head_dim"]) != words["head_dim"]:
        refuse(
            "heads that positions turn wholly", f"granitehybrid.rope.dimension_count {m.own['rope.dimension_count']}"
        )
    kinds = ["attention" if heads else "mamba" for heads in m.by_layer("attention.head_count_kv")]
    scale = m.own.get("attention.scale") or words["head_dim"] ** -0.5  # type: ignore[operator]
    return {
        **_bamba(m),
        "layer_types": kinds,
        "attention_multiplier": scale,
        "num_local_experts": m.own.get("expert_count", 0),
        "shared_intermediate_size": m.own.get("expert_shared_feed_forward_length", words["intermediate_size"]),
        "position_embedding_type": "rope" if turns else "nope",
    }


def falcon_h1(m: Metadata, words: Mapping[str, object]) -> Words:
    """All factors are in the tensors; those of a head that is the embedding's table cannot be."""
    if not m.has("output.weight"):
        refuse("output.weight (a factor of its own is in it)", "none")
    return {
        **_bamba(m),
        "mamba_rms_norm": m.has("blk.{}.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": m.has("blk.{}.ssm_out.bias"),
    }


def nemotron_h(m: Metadata, words: Mapping[str, object]) -> Words:
    """A layer with heads of keys attends, one with a feed-forward has that alone, others are state spaces."""
    heads, size = _heads(m)
    feeds = "moe" if m.own.get("expert_count") else "mlp"
    both = zip(m.by_layer("attention.head_count_kv"), m.by_layer("feed_forward_length"))
    kinds = ["attention" if of_keys else feeds if width else "mamba" for of_keys, width in both]
    return {
        "layers_block_type": kinds[: _layers(words)],
        "mamba_num_heads": heads,
        "mamba_head_dim": size,
        "mamba_n_groups": m.whole("ssm.group_count"),
        "ssm_state_size": m.whole("ssm.state_size"),
        "mamba_d_conv": m.whole("ssm.conv_kernel"),
        "use_bias": m.has("blk.{}.ssm_in.bias"),
        "mamba_conv_bias": m.has("blk.{}.ssm_conv1d.bias"),
        "norm_topk_prob": bool(m.own.get("expert_weights_norm", True)),
        "moe_shared_expert_intermediate_size": m.own.get("expert_shared_feed_forward_length"),
        "moe_latent_size": m.own.get("moe_latent_size"),
    }


def delta_rule(m: Metadata, words: Mapping[str, object]) -> Words:
    """Linear attention by the gated delta rule in all layers but every so-manyth."""
    heads, size = _heads(m)
    return {
        "layer_types": _kinds(m, words),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": size,
        "linear_num_key_heads": m.whole("ssm.group_count"),
        "linear_key_head_dim": m.whole("ssm.state_size"),
        "linear_conv_kernel_dim": m.whole("ssm.conv_kernel"),
    }


def _kinds(m: Metadata, words: Mapping[str, object]) -> list[str]:
    recurrent = "attention.recurrent_layers"
    if recurrent in m.own:
        return ["linear_attention" if one else "full_attention" for one in m.by_layer(recurrent)]
    every = max(1, m.whole("full_attention_interval", 4))
    return ["linear_attention" if (i + 1) % every else "full_attention" for i in range(_layers(words))]


def _layers(words: Mapping[str, object]) -> int:
    count = words["num_hidden_layers"]
    assert isinstance(count, int), "block_count is an integer"
    return count
