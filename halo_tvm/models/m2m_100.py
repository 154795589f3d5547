"""M2M-100 and NLLB: translators between many languages; norms in front, positions from the one behind padding's on.

References
    arXiv:2010.11125; arXiv:2207.04672 (NLLB)
"""

from __future__ import annotations

from .decoder import Reader
from .encoder_decoder import EncoderDecoderConfig, Sinusoids, common, encoder_decoder_family


def _read(read: Reader) -> EncoderDecoderConfig:
    padding = read.whole("pad_token_id", default=1)
    return common(read, norm_front=True, position_offset=padding + 1, sinusoids=Sinusoids(whole=True, silent=padding))


M2M_100 = encoder_decoder_family("m2m_100", _read)
