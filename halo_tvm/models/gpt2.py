"""GPT-2: pre-norm decoder with learned positions and a language-model head tied to the embedding; GPT-BigCode.

`gpt2-last` gives logits [batch, vocabulary] of the last position, which is what a prompt is read for.
References
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019; arXiv:2301.03988 (one head of keys)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family

NAMES = Names(
    embedding="wte",
    positions="wpe",
    layer="h.{}",
    attention_norm="ln_1",
    attention="attn",
    joined="attn.c_attn",
    output="attn.c_proj",
    ffn_norm="ln_2",
    up="mlp.c_fc",
    down="mlp.c_proj",
    norm="ln_f",
    layout="kn",
)


def gpt2(layers: int = 12, hidden: int = 768, heads: int = 12, **sizes: object) -> DecoderConfig:
    """A GPT-2 of these sizes; `sizes` are further fields of the configuration."""
    usual = {
        "feed_forward": 4 * hidden,
        "vocabulary": 50257,
        "positions": 1024,
        "position_offset": 0,
        "norm": "layer",
        "query_key_value_bias": True,
        "output_bias": True,
        "ffn_bias": True,
        "activation": "gelu_tanh",
        "gated": False,
        "names": NAMES,
    }
    return DecoderConfig(layers=layers, hidden=hidden, heads=heads, **{**usual, **sizes})  # type: ignore[arg-type]


def _read(read: Reader, usual_activation: str = "gelu_new") -> DecoderConfig:
    read.refuse_unless(add_cross_attention=False)
    hidden, layers = read.hidden, read.layers
    scale = read.head_dim**-0.5 if read.flag("scale_attn_weights", default=True) else 1.0
    pattern: tuple[Layer, ...] = (Layer(),)
    if read.flag("scale_attn_by_inverse_layer_idx") and read.kind == "gpt2":  # BigCode has the word, and no use of it
        pattern = tuple(Layer(scale=scale / (i + 1)) for i in range(layers))
    return gpt2(
        layers,
        hidden,
        read.heads,
        scale=scale,
        pattern=pattern,
        vocabulary=read.whole("vocab_size"),
        positions=read.whole("n_positions"),
        feed_forward=read.whole("n_inner", default=4 * hidden),
        activation=read.activation("activation_function", default=usual_activation),
        eps=read.number("layer_norm_epsilon", default=1e-5),
        tied=read.flag("tie_word_embeddings", default=True),
    )


def _big_code(read: Reader) -> DecoderConfig:
    """All queries share one head of keys and values, and matrices lie the other way."""
    few = read.flag("multi_query", default=True)
    names = replace(NAMES, layout="nk", grouped=not few)
    return replace(_read(read, "gelu_pytorch_tanh"), kv_heads=1 if few else None, names=names)


GPT2 = decoder_family(
    "gpt2",
    _read,
    presets={
        "gpt2": gpt2(),
        "gpt2-last": gpt2(last_only=True),
        "gpt2-medium": gpt2(24, 1024, 16),
        "gpt2-large": gpt2(36, 1280, 20),
        "gpt2-xl": gpt2(48, 1600, 25),
    },
    prefixes=("", "transformer."),
    tied=("wte", "lm_head"),
)
BIG_CODE = decoder_family("gpt_bigcode", _big_code, prefixes=("", "transformer."), tied=("wte", "lm_head"))
