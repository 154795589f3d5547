"""One decoder for all families of language models: a frozen configuration decides what is in it.

A family is a file of this package's parent that maps config.json and the names of tensors (see `llama`).
"""

from __future__ import annotations

from .config import Alibi, DecoderConfig, ExpertNames, Latent, Layer, LayerEmbeddings, Mixture, Names, Rope, Streams
from .family import decoder_family
from .mixer_kinds import ChannelStates, DeltaRule, GatedRecurrence, HeadStates, ShortConvolution
from .read import Reader

__all__ = [
    "Alibi",
    "ChannelStates",
    "DecoderConfig",
    "DeltaRule",
    "ExpertNames",
    "GatedRecurrence",
    "HeadStates",
    "Latent",
    "Layer",
    "LayerEmbeddings",
    "Mixture",
    "Names",
    "Reader",
    "Rope",
    "ShortConvolution",
    "Streams",
    "decoder_family",
]
