"""Gemma 3n: several residual streams, vectors of tokens for each layer, gates that open for few, shared keys.

References
    its model cards (google/gemma-3n-E4B), as transformers reads it; arXiv:2301.13310, arXiv:2411.07501
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

from .decoder import DecoderConfig, Layer, LayerEmbeddings, Reader, Streams, decoder_family
from .gemma4 import NAMES, SHARED, shared_layers, unread
from .llama import llama

_MOST_STREAMS = 16


def _gemma3n(read: Reader) -> DecoderConfig:
    read.refuse_unless(attention_bias=False, use_bidirectional_attention=False)
    count, active = read.whole("altup_num_inputs", default=4), read.whole("altup_active_idx", default=0)
    if not 1 <= count <= _MOST_STREAMS or not 0 <= active < count:
        read.refuse(f"altup_num_inputs to {_MOST_STREAMS} and an altup_active_idx below it", f"{count} and {active}")
    said = read.get("intermediate_size")
    widths = (
        [int(width) for width in said]
        if isinstance(said, list)
        else [read.whole("intermediate_size", default=16384)] * read.layers
    )
    if len(widths) < read.layers:
        read.refuse("intermediate_size of every layer", repr(said)[:80])
    read = Reader({**read.config, "intermediate_size": widths[0]})
    return llama(
        read,
        pattern=_layers(read, widths),
        scale=1.0,
        embedding_scale=read.hidden**0.5,
        logit_softcap=read.optional("final_logit_softcapping", default=30.0),
        activation=read.activation("hidden_activation", default="gelu_pytorch_tanh"),
        query_key_norm="head",
        value_norm=True,
        layer_embeddings=LayerEmbeddings(
            read.whole("hidden_size_per_layer_input", default=256),
            read.whole("vocab_size_per_layer_input", default=262144),
        ),
        streams=Streams(
            count, active, read.whole("laurel_rank", default=64), read.flag("altup_correct_scale", default=True)
        ),
        tied=read.flag("tie_word_embeddings", default=True),
        names=NAMES,
    )


def _layers(read: Reader, widths: list[int]) -> tuple[Layer, ...]:
    """Every fifth layer attends to all keys, where nothing else is said; the last ones read an earlier one's."""
    kinds = read.layer_types(("sliding_attention", "full_attention"))
    kinds = kinds or ["sliding_attention" if (i + 1) % 5 else "full_attention" for i in range(read.layers)]
    shared = shared_layers(read)
    first = read.layers - shared
    if shared and not set(kinds[first:]) <= set(kinds[:first]):
        read.refuse("num_kv_shared_layers that leave a layer of each kind its keys and values", str(shared))
    local = read.local_rope("rope_local_base_freq", theta=10000.0)
    usual = {
        "sliding_attention": Layer(local, read.whole("sliding_window", default=512)),
        "full_attention": Layer(read.rope("full_attention", theta=1e6)),
    }
    found = []
    for index, (kind, share) in enumerate(zip(kinds, _shares(read))):
        keys_of = None if index < first else first - 1 - kinds[:first][::-1].index(kind)
        sparsity = NormalDist().inv_cdf(share) if share else None
        found.append(replace(usual[kind], keys_of=keys_of, sparsity=sparsity, feed_forward=widths[index]))
    return tuple(found)


def _shares(read: Reader) -> list[float]:
    """Of every layer, which share of its gates is shut: where nothing is said, 95 % in the first ten of more."""
    usual = [0.95 if read.layers > 10 and i < 10 else 0.0 for i in range(read.layers)]
    found = read.get("activation_sparsity_pattern", default=usual)
    if not isinstance(found, list) or len(found) != read.layers or not all(0 <= share < 1 for share in found):
        read.refuse("activation_sparsity_pattern of a number from 0 to below 1 for every layer", repr(found)[:80])
    return found


GEMMA3N = decoder_family("gemma3n", _gemma3n, types=("gemma3n_text",), beside=unread, **SHARED)  # type: ignore[arg-type]
