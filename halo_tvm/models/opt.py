"""OPT: learned positions from row 2 on, ReLU; the smallest has an embedding of another width and norms behind.

References
    arXiv:2205.01068
"""

from __future__ import annotations

from ._decoder import DecoderConfig, Names, Reader, decoder_family


def _read(read: Reader) -> DecoderConfig:
    read.refuse_unless(_remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
    bias, front = read.flag("enable_bias", default=True), read.flag("do_layer_norm_before", default=True)
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        feed_forward=read.whole("ffn_dim"),
        vocabulary=read.whole("vocab_size"),
        positions=read.whole("max_position_embeddings"),
        embedding_width=read.whole("word_embed_proj_dim", default=read.hidden),
        position_offset=2,
        norm="layer",
        norm_behind=not front,
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        activation=read.activation("activation_function", default="relu"),
        gated=False,
        tied=read.flag("tie_word_embeddings", default=True),
        names=Names(
            embedding="decoder.embed_tokens",
            project_in="decoder.project_in",
            project_out="decoder.project_out",
            positions="decoder.embed_positions",
            layer="decoder.layers.{}",
            attention_norm="self_attn_layer_norm",
            output="self_attn.out_proj",
            ffn_norm="final_layer_norm",
            up="fc1",
            down="fc2",
            norm="decoder.final_layer_norm" if front else "",
        ),
    )


OPT = decoder_family("opt", _read, prefixes=("", "model."), tied=("decoder.embed_tokens", "lm_head"))
