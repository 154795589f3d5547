"""Gemma 4: heads of two sizes, layers that read an earlier one's keys and values, vectors of tokens for each layer.

References
    Gemma 4 (its model cards); arXiv:2405.12981 (keys and values shared across layers)
"""

from __future__ import annotations

from collections.abc import Mapping

from .decoder import DecoderConfig, ExpertNames, Layer, LayerEmbeddings, Mixture, Names, Reader, decoder_family
from .decoder.family import further
from .decoder.rope import rope_of
from .llama import llama
from .mixtures import mixture_of

NAMES = Names(
    embedding="embed_tokens",
    layer="layers.{}",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    attention_post_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    ffn_post_norm="post_feedforward_layernorm",
    norm="norm",
)
_EXPERTS = ExpertNames(
    router="router.proj",
    router_scale="router.scale",
    expert_scale="router.per_expert_scale",
    stacked_gate_up="experts.gate_up_proj",
    stacked_down="experts.down_proj",
    feed_forward_post_norm="post_feedforward_layernorm_1",
    norm="pre_feedforward_layernorm_2",
    post_norm="post_feedforward_layernorm_2",
)
_WIDTH, _VOCABULARY = 1 << 16, 1 << 24
_ROTATIONS: dict[str, Mapping[str, object]] = {
    "sliding_attention": {"rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


def _gemma4(read: Reader) -> DecoderConfig:
    read.refuse_unless(attention_bias=False)
    if read.get("use_bidirectional_attention") == "all":
        read.refuse("use_bidirectional_attention of vision or null", "'all'")
    return llama(
        read,
        pattern=_layers(read),
        scale=1.0,
        embedding_scale=read.hidden**0.5,
        logit_softcap=read.optional("final_logit_softcapping"),
        activation=read.activation("hidden_activation", default="gelu_pytorch_tanh"),
        query_key_norm="head",
        value_norm=True,
        layer_embeddings=_embeddings(read),
        layer_scale="layer_scalar",
        mixture=_mixture(read) if read.flag("enable_moe_block") else None,
        tied=read.flag("tie_word_embeddings", default=True),
        names=NAMES,
    )


def _embeddings(read: Reader) -> LayerEmbeddings | None:
    width = read.whole("hidden_size_per_layer_input", default=0)
    vocabulary = read.whole("vocab_size_per_layer_input", default=read.whole("vocab_size"))
    if not 0 <= width <= _WIDTH:
        read.refuse(f"hidden_size_per_layer_input from 0 to {_WIDTH}", str(width))
    if not read.whole("vocab_size") <= vocabulary <= _VOCABULARY:
        read.refuse(f"vocab_size_per_layer_input from vocab_size to {_VOCABULARY}", str(vocabulary))
    return LayerEmbeddings(width, vocabulary) if width else None


def _layers(read: Reader) -> tuple[Layer, ...]:
    kinds = _kinds(read)
    shared = shared_layers(read)
    first = read.layers - shared
    if shared and not set(kinds[first:]) <= set(kinds[:first]):
        read.refuse("num_kv_shared_layers that leave a layer of each kind its keys and values", str(shared))
    same = read.flag("attention_k_eq_v")
    wide = 2 * read.whole("intermediate_size") if read.flag("use_double_wide_mlp") else None
    found = []
    for index, kind in enumerate(kinds):
        dim, heads = _sizes(read, index, kind)
        keys_of = None if index < first else first - 1 - kinds[:first][::-1].index(kind)
        slides = kind == "sliding_attention"
        rotation = read.scaling(kind) or _ROTATIONS[kind]
        theta = float(rotation.get("rope_theta") or _ROTATIONS[kind]["rope_theta"])  # type: ignore[arg-type]
        layer = Layer(
            rope_of(dim, theta, rotation, read.whole("max_position_embeddings")),
            read.whole("sliding_window", default=512) if slides else None,
            head_dim=dim,
            kv_heads=heads,
            feed_forward=None if keys_of is None else wide,
            keys_of=keys_of,
            values_are_keys=same and not slides and keys_of is None,
        )
        found.append(layer)
    return tuple(found)


def _kinds(read: Reader) -> list[str]:
    """What each layer is: where nothing says it, every sixth attends to all keys. The last one does in any case."""
    kinds = read.layer_types(("sliding_attention", "full_attention"))
    if kinds is None:
        kinds = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(read.layers)]
    return [*kinds[:-1], "full_attention"]


def shared_layers(read: Reader) -> int:
    """Layers at the end that read an earlier one's keys and values."""
    shared = read.whole("num_kv_shared_layers", default=0)
    if not 0 <= shared < read.layers:
        read.refuse(f"num_kv_shared_layers from 0 to {read.layers - 1}", str(shared))
    return shared


def _sizes(read: Reader, index: int, kind: str) -> tuple[int, int]:
    """The size of a layer's heads, and how many of keys it has.

    A list of layers has those that are not the model's, else those of layers that attend to all keys are said once.
    """
    listed = read.get("per_layer_config")
    own: object = {}
    if listed is None and kind == "full_attention":
        heads = read.get("num_global_key_value_heads") if read.flag("attention_k_eq_v") else None
        own = {"head_dim": read.whole("global_head_dim", default=512), "num_key_value_heads": heads}
    elif isinstance(listed, Mapping):
        own = next((sizes for key, sizes in listed.items() if int(key) == index), {})  # "05" where there are thirty
    elif listed is not None:
        own = listed
    if not isinstance(own, Mapping):
        raise TypeError(f"per_layer_config {own!r:.40} has no sizes of layers")
    words = Reader({**own, "model_type": read.kind})
    kv_heads = words.whole("num_key_value_heads", default=read.whole("num_key_value_heads"))
    if kv_heads < 1 or read.heads % kv_heads:
        read.refuse(f"num_key_value_heads of layer {index} that divide its {read.heads} heads", str(kv_heads))
    return words.head_size("head_dim", read.head_dim), kv_heads


def _mixture(read: Reader) -> Mixture:
    """Experts beside the feed-forward that all layers have."""
    words = Reader({**read.config, "num_experts_per_tok": read.whole("top_k_experts"), "norm_topk_prob": True})
    return mixture_of(words, width="moe_intermediate_size", parallel=True, names=(_EXPERTS,))


def unread(config: Mapping[str, object]) -> tuple[str, ...]:
    """Keys and values of layers that read an earlier one's, which some checkpoints have nevertheless."""
    read = Reader(config)
    first = read.layers - shared_layers(read)
    parts = ("k_proj", "v_proj", "k_norm", "v_norm")
    return (
        *further(config),
        *(f"model.layers.{i}.self_attn.{part}." for i in range(first, read.layers) for part in parts),
    )


SHARED = {
    "prefixes": ("model.", ""),
    "tied": ("embed_tokens", "lm_head"),
    "even": ("head_dim",),
}
GEMMA4 = decoder_family("gemma4", _gemma4, types=("gemma4_text", "gemma4_unified_text"), beside=unread, **SHARED)  # type: ignore[arg-type]
