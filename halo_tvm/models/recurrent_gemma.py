"""RecurrentGemma (Griffin): gated linear recurrences in two of three layers, local attention in the third.

References
    arXiv:2402.19427 (Griffin), arXiv:2404.07839 (RecurrentGemma)
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from .decoder import DecoderConfig, GatedRecurrence, Layer, Names, Reader, decoder_family
from .llama import llama

_NAMES = Names(
    attention_norm="temporal_pre_norm",
    attention="temporal_block",
    query="temporal_block.q_proj",
    key="temporal_block.k_proj",
    value="temporal_block.v_proj",
    output="temporal_block.o_proj",
    ffn_norm="channel_pre_norm",
    ffn="mlp_block",
    gate="mlp_block.gate_proj",
    up="mlp_block.up_proj",
    down="mlp_block.down_proj",
    norm="model.final_norm",
)
_POSITIONS = 8192  # as it was trained: its configs name no longest context
_KINDS = ("recurrent", "recurrent", "attention")


def _recurrent_gemma(read: Reader) -> DecoderConfig:
    activation = read.activation("hidden_activation", default="gelu_pytorch_tanh")
    width = read.whole("lru_width", default=read.hidden)
    if width % read.heads:
        read.refuse(f"an lru_width that its {read.heads} heads divide", str(width))
    words = {"max_position_embeddings": _POSITIONS, **read.config}
    words["intermediate_size"] = read.whole("intermediate_size") // 2
    read = Reader(words)
    recurrence = GatedRecurrence(width, read.heads, read.kernel("conv1d_width"), activation)
    local = Layer(read.rope(share=0.5), read.whole("attention_window_size", "sliding_window", default=2048))
    kinds = read.get("block_types", default=_KINDS)
    if not isinstance(kinds, (list, tuple)) or not kinds or any(kind not in _KINDS for kind in kinds):
        read.refuse("block_types of recurrent and attention", repr(kinds)[:80])
    pattern = tuple(
        local if kinds[i % len(kinds)] == "attention" else Layer(mixer=recurrence) for i in range(read.layers)
    )
    return replace(
        llama(read, pattern=pattern),
        output_bias=True,
        ffn_bias=True,
        activation=activation,
        norm_plus_one=True,
        embedding_scale=_rounded(read.hidden**0.5),
        logit_softcap=read.optional("logits_soft_cap", default=30.0),
        tied=read.flag("tie_word_embeddings", default=True),
        names=_NAMES,
    )


def _rounded(value: float) -> float:
    """The nearest number of bfloat16, in which the model has the factor of its embedding."""
    return float(np.float32(value).astype(ml_dtypes.bfloat16))


RECURRENT_GEMMA = decoder_family("recurrent_gemma", _recurrent_gemma, even=("head_dim",))
