"""BitNet b1.58: Llama with a squared ReLU in its gate, and norms in front of both projections back to the stream.

Its weights are -1, 0 or 1 times one scale; `importers/packed_linears/ternary.py` reads a checkpoint of such weights. It
was trained with activations rounded to eight bits, too: that is left to the precision that it is compiled at.
References
    arXiv:2402.17764, arXiv:2504.12285
"""

from __future__ import annotations

from .decoder import DecoderConfig, Names, Reader, decoder_family
from .llama import llama

_NAMES = Names(output_norm="self_attn.attn_sub_norm", down_norm="mlp.ffn_sub_norm")


def _bitnet(read: Reader) -> DecoderConfig:
    return llama(read, activation=read.activation("hidden_act", default="relu2"), names=_NAMES)


BITNET = decoder_family("bitnet", _bitnet, even=("head_dim",))
