"""GPT-J and CodeGen (parallel residual, neighbouring channels turned), GPT-Neo (unscaled scores, local layers).

References
    github.com/kingoflolz/mesh-transformer-jax; doi:10.5281/zenodo.5297715; arXiv:2203.13474 (CodeGen)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family
from .decoder.rope import rope_of
from .gpt2 import NAMES, gpt2

_GPTJ = Names(
    embedding="transformer.wte",
    layer="transformer.h.{}",
    attention_norm="ln_1",
    attention="attn",
    query="attn.q_proj",
    key="attn.k_proj",
    value="attn.v_proj",
    output="attn.out_proj",
    ffn_norm="",
    up="mlp.fc_in",
    down="mlp.fc_out",
    norm="transformer.ln_f",
)
_GPT_NEO = replace(
    NAMES,
    joined="",
    query="attn.attention.q_proj",
    key="attn.attention.k_proj",
    value="attn.attention.v_proj",
    output="attn.attention.out_proj",
    layout="nk",
)


_CODEGEN = replace(_GPTJ, joined="attn.qkv_proj")
_BLOCKS = 4  # of heads, one for each processor that CodeGen was trained on


def _gptj(read: Reader) -> DecoderConfig:
    dim = read.whole("rotary_dim", default=64)
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        feed_forward=read.whole("n_inner", default=4 * read.hidden),
        vocabulary=read.whole("vocab_size"),
        positions=read.context,
        pattern=(Layer(rope_of(dim, 10000.0, {}, read.context, interleaved=True)),),
        norm="layer",
        eps=read.number("layer_norm_epsilon", default=1e-5),
        parallel=True,
        ffn_bias=True,
        head_bias=True,
        activation=read.activation("activation_function", default="gelu_new"),
        gated=False,
        tied=read.flag("tie_word_embeddings"),
        names=_GPTJ,
    )


def _codegen(read: Reader) -> DecoderConfig:
    if read.heads % _BLOCKS:
        read.refuse(f"an n_head that {_BLOCKS} divides", str(read.heads))
    return replace(_gptj(read), joined_blocks=_BLOCKS, names=_CODEGEN)


def _masks(config: Mapping[str, object]) -> tuple[str, ...]:
    """The masks that older checkpoints of CodeGen have beside their weights."""
    return tuple(f"transformer.h.{i}.attn.causal_mask" for i in range(Reader(config).layers))


def _gpt_neo(read: Reader) -> DecoderConfig:
    kinds = read.get("attention_layers")
    if kinds is None:
        types = read.get("attention_types", default=[[["global", "local"], read.layers // 2]])
        kinds = [kind for names, count in types for _ in range(count) for kind in names]  # type: ignore[attr-defined]
    if len(kinds) < read.layers or set(kinds) - {"global", "local"}:  # type: ignore[arg-type, call-overload]
        raise ValueError(f"attention_layers {kinds!r} are not global or local for every layer")
    window = read.whole("window_size", default=256)
    pattern = tuple(Layer(window=window if kind == "local" else None) for kind in kinds[: read.layers])  # type: ignore[index]
    return gpt2(
        read.layers,
        read.hidden,
        read.whole("num_heads"),
        feed_forward=read.whole("intermediate_size", default=4 * read.hidden),
        vocabulary=read.whole("vocab_size"),
        positions=read.whole("max_position_embeddings"),
        pattern=pattern,
        scale=1.0,
        query_key_value_bias=False,
        activation=read.activation("activation_function", default="gelu_new"),
        eps=read.number("layer_norm_epsilon", default=1e-5),
        tied=read.flag("tie_word_embeddings", default=True),
        names=_GPT_NEO,
    )


GPTJ = decoder_family("gptj", _gptj)
CODEGEN = decoder_family("codegen", _codegen, beside=_masks)
GPT_NEO = decoder_family("gpt_neo", _gpt_neo, prefixes=("", "transformer."), tied=("wte", "lm_head"))
