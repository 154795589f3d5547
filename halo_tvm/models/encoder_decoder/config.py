"""What tells one encoder-decoder from another, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sinusoids:
    """A table of positions that is computed: sines in the first half of a row, cosines in the second.

    Wavelengths grow geometrically from 2 pi to 10000 * 2 pi, which the last pair reaches where `whole`; the row
    `silent` is zero.
    """

    whole: bool = False
    silent: int | None = None


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """A transformer that reads a text, or the spectrum of a sound, and answers behind it."""

    layers: int
    decoder_layers: int
    hidden: int
    heads: int
    decoder_heads: int
    feed_forward: int
    decoder_feed_forward: int
    vocabulary: int  # of the answer
    source_vocabulary: int  # of the text
    positions: int  # the longest text, or the states of a sound
    answer: int  # the longest answer
    position_offset: int = 0  # the row of the tables of positions that position 0 reads
    sinusoids: Sinusoids | None = None  # None: learned tables
    norm_front: bool = False  # norms stand in front of what is added, and one behind the last layer
    embedding_norm: bool = False
    norm_tokens: bool = False  # that norm of the decoder sees tokens alone; positions are added behind it
    embedding_scale: float | None = None
    activation: str = "gelu"
    key_bias: bool = True
    tied: bool = True  # the head is the decoder's table
    shared: bool = True  # one table for both texts
    bands: int | None = None  # of the spectrum [bands, 2 * positions] of a sound that is read instead of a text
    eps: float = 1e-5
