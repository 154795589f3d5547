"""Encoder-decoders in the manner of BART: one definition, driven by a configuration; a family reads config.json."""

from .config import EncoderDecoderConfig, Sinusoids
from .family import encoder_decoder_family
from .read import common

__all__ = ["EncoderDecoderConfig", "Sinusoids", "common", "encoder_decoder_family"]
