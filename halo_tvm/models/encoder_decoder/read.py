"""Reading the config.json of an encoder-decoder: what the families share, under the words that files use."""

from __future__ import annotations

import math

from ..decoder import Reader
from .config import EncoderDecoderConfig


def common(read: Reader, **differences: object) -> EncoderDecoderConfig:
    """What a config of BART's words says; `differences` are fields of the result."""
    hidden, positions = read.whole("d_model"), read.whole("max_position_embeddings", "max_target_positions")
    heads, decoder_heads = read.whole("encoder_attention_heads"), read.whole("decoder_attention_heads")
    if hidden % max(heads, 1) or hidden % max(decoder_heads, 1):
        read.refuse("d_model as a multiple of the attention heads", f"{hidden}, {heads} and {decoder_heads}")
    vocabulary = read.whole("vocab_size")
    fields: dict[str, object] = {
        "layers": read.whole("encoder_layers"),
        "decoder_layers": read.whole("decoder_layers"),
        "hidden": hidden,
        "heads": heads,
        "decoder_heads": decoder_heads,
        "feed_forward": read.whole("encoder_ffn_dim"),
        "decoder_feed_forward": read.whole("decoder_ffn_dim"),
        "vocabulary": vocabulary,
        "source_vocabulary": vocabulary,
        "positions": positions,
        "answer": positions,
        "embedding_scale": math.sqrt(hidden) if read.flag("scale_embedding") else None,
        "activation": read.activation("activation_function", default="gelu"),
        "tied": read.flag("tie_word_embeddings", default=True),
    }
    return EncoderDecoderConfig(**{**fields, **differences})  # type: ignore[arg-type]
