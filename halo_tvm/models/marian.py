"""Marian: the translators of OPUS-MT; norms behind, computed positions, a bias of logits, one table or two.

References
    arXiv:1804.00344
"""

from __future__ import annotations

from .decoder import Reader
from .encoder_decoder import EncoderDecoderConfig, Sinusoids, common, encoder_decoder_family


def _read(read: Reader) -> EncoderDecoderConfig:
    source = read.whole("vocab_size")
    return common(
        read,
        vocabulary=read.whole("decoder_vocab_size", default=source),
        source_vocabulary=source,
        shared=read.flag("share_encoder_decoder_embeddings", default=True),
        sinusoids=Sinusoids(),
    )


MARIAN = encoder_decoder_family("marian", _read, heads=("MTModel",))
