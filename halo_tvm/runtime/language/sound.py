"""Sound as what a speech model reads: WAV files, another sample rate, and the logarithmic mel spectrum.

    samples [n] at 16 kHz   ->   spectra [pieces, bands, frames], a frame every 10 ms

Numerics
    as the feature extractor of transformers: periodic Hann windows of 400 samples over the signal mirrored at its ends,
    powers, triangular bands of equal area on Slaney's mel scale up to 8 kHz, log10, at most 8 below the loudest
    of the piece, then (x + 4) / 4
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...errors import InputError

RATE = 16000
_HOP, _WINDOW = 160, 400
_LARGEST = 1 << 31  # bytes of a file
_TAPS = 32  # zero crossings to each side of the filter that changes the rate
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


def samples_of(path: Path | str) -> np.ndarray:
    """The samples float32 [n] at 16 kHz of a WAV file, its channels averaged; `InputError` for anything else."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST)
    except OSError as error:
        raise InputError(f"expected a WAV file at {path}, but {error.strerror or error}: check the path") from None
    try:
        samples, rate = _wave(raw)
    except (ValueError, struct.error) as reason:
        raise InputError(
            f"expected {path} to be a WAV file of PCM or floating-point samples, found {reason}: convert it, as with "
            "ffmpeg -i FILE -ar 16000 -ac 1 OUT.wav"
        ) from None
    return resampled(samples, rate)


def _wave(raw: bytes) -> tuple[np.ndarray, int]:
    """Samples float32 [n] and their rate; `ValueError` for what is no WAV file of a known form."""
    if raw[:4] != b"RIFF" or raw[8:12] != b"WAVE":
        raise ValueError(f"a file that begins with {raw[:4]!r}")
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(raw):
        name, size = struct.unpack_from("<4sI", raw, at)
        chunks.setdefault(name, raw[at + 8 : at + 8 + size])  # a data chunk of a stream says more than there is
        at += 8 + size + size % 2
    if b"fmt " not in chunks or b"data" not in chunks:
        raise ValueError("no format or no data")
    kind, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    if kind == _EXTENSIBLE:
        (kind,) = struct.unpack_from("<H", chunks[b"fmt "], 24)
    width = bits // 8
    if not 1 <= channels <= 64 or not 1000 <= rate <= 1_000_000 or bits % 8 or align != channels * width:
        raise ValueError(f"{channels} channels of {bits} bits at {rate} Hz in blocks of {align} bytes")
    data = chunks[b"data"][: len(chunks[b"data"]) // align * align] if align else b""
    samples: np.ndarray
    if kind == _FLOAT and width in (4, 8):
        samples = np.frombuffer(data, f"<f{width}").astype(np.float32)
    elif kind == _PCM and width in (2, 4):
        samples = np.frombuffer(data, f"<i{width}") / np.float32(1 << (bits - 1))
    elif kind == _PCM and width == 1:
        samples = (np.frombuffer(data, np.uint8) - np.float32(128)) / np.float32(128)
    elif kind == _PCM and width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0] / np.float32(1 << 31)
    else:
        raise ValueError(f"samples of the format {kind} in {bits} bits")
    return samples.reshape(-1, channels).mean(1, dtype=np.float32), rate


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    """`samples` [n] at `rate` as float32 at 16 kHz, by a windowed sinc below both Nyquist frequencies."""
    if rate == RATE:
        return np.asarray(samples, np.float32)
    common = math.gcd(rate, RATE)
    up, down = RATE // common, rate // common
    cut = min(1.0, RATE / rate)  # of the input's Nyquist frequency
    reach = math.ceil(_TAPS / cut)
    padded = np.pad(np.asarray(samples, np.float32), (reach, reach + 1))
    count = -(-len(samples) * up // down)
    out = np.empty(count, np.float32)
    windows = sliding_window_view(padded, 2 * reach + 1)
    for phase in range(min(up, count)):  # outputs phase, phase + up, ... lie at one fraction of an input
        first, part = divmod(phase * down, up)
        at = np.arange(-reach, reach + 1) - part / up
        taps = cut * np.sinc(cut * at) * np.cos(np.clip(at / (reach + 1), -1, 1) * np.pi / 2) ** 2
        taps /= taps.sum()
        mine = windows[first::down][: -(-(count - phase) // up)]
        out[phase::up][: len(mine)] = mine @ taps.astype(np.float32)
    return out


def spectra(samples: np.ndarray, bands: int, frames: int) -> Iterator[np.ndarray]:
    """The spectrum float32 [bands, frames] of one piece of the sound after another; the last is filled with silence.

    Raises `InputError` for no sound, and for samples that are no finite numbers.
    """
    if samples.ndim != 1 or not samples.size or samples.dtype.kind not in "fiu":
        raise InputError(
            f"expected a sound as numbers [samples], found {samples.dtype} {list(samples.shape)}: pass one channel"
        )
    if not np.isfinite(samples).all():
        raise InputError("expected a sound of finite numbers, found NaN or infinity: check what recorded it")
    filters, piece = _filters(bands), frames * _HOP
    for begin in range(0, len(samples), piece):
        part = np.zeros(piece)
        found = samples[begin : begin + piece]
        part[: len(found)] = found
        yield _spectrum(part, filters)


def _spectrum(samples: np.ndarray, filters: np.ndarray) -> np.ndarray:
    mirrored = np.pad(samples, _WINDOW // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    rows = sliding_window_view(mirrored, _WINDOW)[::_HOP][: len(samples) // _HOP]
    powers = np.abs(np.fft.rfft(rows * window)) ** 2
    logs = np.log10(np.maximum(powers @ filters, 1e-10))
    logs = np.maximum(logs, logs.max() - 8.0)
    return np.ascontiguousarray(((logs + 4.0) / 4.0).T, np.float32)


def _filters(bands: int) -> np.ndarray:
    """Triangles [frequencies, bands] of equal area, whose corners are equally far apart in mel."""
    linear, steps = 3 / 200, 27 / math.log(6.4)  # mel per Hz below 1 kHz, and per e-fold above
    knee = 1000 * linear
    top = knee + math.log(RATE / 2 / 1000) * steps
    mels = np.linspace(0, top, bands + 2)
    corners = np.where(mels < knee, mels / linear, 1000 * np.exp((mels - knee) / steps))
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    slopes = corners - frequencies[:, None]
    widths = np.diff(corners)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))
