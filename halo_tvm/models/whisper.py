"""Whisper: the spectrum of half a minute of sound in, its words out.

References
    arXiv:2212.04356
"""

from __future__ import annotations

from .decoder import Reader
from .encoder_decoder import EncoderDecoderConfig, common, encoder_decoder_family


def _read(read: Reader) -> EncoderDecoderConfig:
    return common(
        read,
        positions=read.whole("max_source_positions"),
        answer=read.whole("max_target_positions"),
        norm_front=True,
        key_bias=False,
        bands=read.whole("num_mel_bins", default=80),
    )


WHISPER = encoder_decoder_family("whisper", _read)
