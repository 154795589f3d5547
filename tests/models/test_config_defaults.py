"""A config.json that leaves a word out means what transformers takes for it."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import MappingProxyType

import pytest

from halo_tvm.errors import UnsupportedModel
from halo_tvm.models import FAMILIES, completed

# What another word of the same config follows, or none can do without.
FOLLOW = {"architectures", "model_type"}
# Sizes without which the definition reads no default configuration.
OPEN = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 8},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 8},
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"), {"head_dim": 128}),
}
READ = [(kind, family) for family in FAMILIES.values() if family.from_huggingface for kind in family.huggingface_types]


@pytest.mark.slow
def test_words_that_are_left_out() -> None:
    """Every word of every model type: read as its default, or missed."""
    transformers = pytest.importorskip("transformers")
    wrong, read = [], 0
    for kind, family in READ:
        if kind not in transformers.CONFIG_MAPPING:  # by the name alone, as Kimi K2
            continue
        usual = {**transformers.CONFIG_MAPPING[kind]().to_dict(), **OPEN.get(kind, {})}
        for word in [None, *usual.keys() - FOLLOW]:
            config = completed({name: value for name, value in usual.items() if name != word})
            try:
                found = family.from_huggingface(config)
            except (KeyError, TypeError, UnsupportedModel):  # a sentence, from the importer
                found = None
            if word is None:
                expected = found
                read += found is not None
            elif expected is not None and found not in (None, expected):
                wrong.append(f"{kind}: {word}")
    assert not wrong, "; ".join(wrong)
    assert read >= 100, "types whose default configuration is read"


def test_what_is_said_stays() -> None:
    config = MappingProxyType({"model_type": "mistral", "sliding_window": None, "num_key_value_heads": 2})
    assert completed(config) == dict(config)
    older = completed({"model_type": "cwm", "rope_theta": 5000.0})
    assert "rope_parameters" not in older and older["rope_theta"] == 5000.0


@pytest.mark.parametrize(
    ("kind", "words", "slides"),
    [
        ("qwen2", {}, "FFFFFF"),
        ("qwen2", {"max_window_layers": 3}, "FFFSSS"),
        ("qwen2_vl_text", {"num_hidden_layers": 82}, "F" * 80 + "SS"),
        ("qwen3", {}, "FFFFFF"),
        ("qwen3", {"max_window_layers": 0, "use_sliding_window": False}, "FFFFFF"),
        ("qwen3", {"layer_types": ["sliding_attention", "full_attention"] * 3}, "SFSFSF"),
        ("qwen3_vl_text", {"max_window_layers": 0}, "FFFFFF"),
        ("qwen2_moe", {"max_window_layers": 6}, "SFSFSF"),
        ("qwen2_moe", {"max_window_layers": 3}, "SFSFFF"),
        ("qwen3_moe", {"max_window_layers": 6}, "SSSSSS"),
        ("qwen3_vl_moe_text", {}, "FFFFFF"),
        ("exaone4", {"sliding_window_pattern": 3}, "SSFSSF"),
        ("exaone4", {"sliding_window_pattern": "LLGL"}, "SSFSSF"),
        ("exaone4", {"sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention"] * 6}, "SSSSSS"),
        ("exaone_moe", {"sliding_window_pattern": "LLLG"}, "SSSFSF"),
    ],
)
def test_windows_are_in_the_layers_of_their_type(kind: str, words: dict[str, object], slides: str) -> None:
    """Qwen's types read the same words in three ways, as transformers does; letters are EXAONE's."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 9}
    sizes |= {"num_hidden_layers": 6, "intermediate_size": 8, "max_position_embeddings": 32, "sliding_window": 4}
    config = {"model_type": kind, **sizes, **experts, "shared_expert_intermediate_size": 8, "use_sliding_window": True}
    found = dict(READ)[kind].from_huggingface(completed({**config, **words}))
    assert "".join("FS"[found.layer(i).window == 4] for i in range(found.layers)) == slides


@pytest.mark.parametrize("kind", ["bloom", "falcon"])
def test_words_of_the_first_configs(kind: str) -> None:
    """The width by another name, which goes before; and no word for the longest text, which Falcon reads."""
    common = {"model_type": kind, "n_layer": 2, "n_head": 4, "vocab_size": 131}
    found = dict(READ)[kind].from_huggingface(completed({**common, "n_embed": 64, "hidden_size": 32}))
    assert found == dict(READ)[kind].from_huggingface(completed({**common, "hidden_size": 64}))
    assert (found.hidden, found.positions) == (64, 2048)


def test_a_context_that_yarn_stretches() -> None:
    """As Qwen's cards tell one to write it, the original length stands in both places."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "num_hidden_layers": 1}
    read = dict(READ)["llama"].from_huggingface
    for longest, factor, wanted in ((32, 4.0, 128), (64, 4.0, 64), (32, 1e30, 1 << 21)):
        config = {"model_type": "llama", **sizes, "intermediate_size": 8, "max_position_embeddings": longest}
        assert read({**config, "rope_scaling": {**yarn, "factor": factor}}).positions == wanted


def test_a_part_of_heads_turns_in_types_that_have_one() -> None:
    """transformers reads the word for those types alone whose module has it."""
    transformers = pytest.importorskip("transformers")
    part = "partial_rotary_factor"
    for kind, family in READ:
        if kind not in transformers.CONFIG_MAPPING:
            continue
        folder = Path(inspect.getfile(transformers.CONFIG_MAPPING[kind])).parent
        turns_a_part = any(part in file.read_text("utf-8") for file in folder.glob("modeling_*.py"))
        rotation = {"rope_type": "default", "rope_theta": 1e4, part: 0.5}
        config = completed({"model_type": kind, "rope_parameters": rotation, part: 0.5})
        kept = [part in config, part in config["rope_parameters"]]
        assert kept == [turns_a_part] * 2, f"{kind}: {family.name}"


def test_older_words_of_nemotron_h_go_before() -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "max_position_embeddings": 32}
    config = {"model_type": "nemotron_h", **sizes, "hybrid_override_pattern": "M*", "intermediate_size": 8}
    older = {"mamba_d_conv": 3, "mamba_conv_bias": False, "conv_kernel": 4, "tie_word_embeddings": True}
    found = dict(READ)["nemotron_h"].from_huggingface(completed({**config, **older}))
    mixer = found.layer(0).mixer
    assert (mixer.kernel, mixer.convolution_bias, found.tied) == (3, False, False)


def test_slices_of_training_change_nothing() -> None:
    """`pretraining_tp` said how linears were cut; transformers does not read it any more."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "num_hidden_layers": 1}
    config = {"model_type": "llama", **sizes, "intermediate_size": 8, "max_position_embeddings": 32}
    read = dict(READ)["llama"].from_huggingface
    assert read({**config, "pretraining_tp": 2}) == read(config)
