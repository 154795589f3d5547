"""BART and what shares its words: mBART and Pegasus have norms in front, Blenderbot and Pegasus no norm of embeddings.

PLBart is BART for programs, Blenderbot small has BART's layers.

References
    arXiv:1910.13461 (BART), arXiv:2001.08210 (mBART), arXiv:1912.08777 (Pegasus), arXiv:2004.13637 (Blenderbot),
    arXiv:2103.06333 (PLBart)
"""

from __future__ import annotations

from .decoder import Reader
from .encoder_decoder import EncoderDecoderConfig, Sinusoids, common, encoder_decoder_family

_DIFFERENCES: dict[str, dict[str, object]] = {
    "bart": {"position_offset": 2, "embedding_norm": True},
    "mbart": {"position_offset": 2, "embedding_norm": True, "norm_front": True},
    "pegasus": {"sinusoids": Sinusoids(), "norm_front": True},
    "blenderbot": {"norm_front": True},
    "blenderbot-small": {"embedding_norm": True, "norm_tokens": True},
    "plbart": {"position_offset": 2, "embedding_norm": True},
}


def _read(read: Reader) -> EncoderDecoderConfig:
    return common(read, **_DIFFERENCES[read.kind])


BART = encoder_decoder_family("bart", _read, types=tuple(_DIFFERENCES))
