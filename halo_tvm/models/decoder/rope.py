"""Frequencies of rotary positions, plain and scaled for longer contexts, and the tables made of them.

References
    arXiv:2104.09864 (rotary positions), arXiv:2306.15595 (linear), arXiv:2309.00071 (yarn),
    arXiv:2407.21783 (llama3), arXiv:2402.13753 (longrope)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...errors import UnsupportedModel
from .._definition import checked_size
from .config import Rope

Scaling = Mapping[str, object]
# "mrope" turns images by three positions, which texts have the same in all.
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional", "mrope")


def rope_of(dim: int, theta: float, scaling: Scaling, positions: int, *, interleaved: bool = False) -> Rope:
    """The rotation of `dim` channels as a config's `scaling` has it; `UnsupportedModel` for an unknown kind.

    `proportional` turns the first pairs of a head alone, by the angles that they have where all of them turn.
    `dynamic` changes nothing up to `positions`, and contexts end there; `longrope` takes its factors of short
    contexts, as the whole artifact is for contexts up to its original length (`Reader.context`).
    """
    if not (math.isfinite(theta) and theta > 0):
        raise UnsupportedModel(f"expected theta as a finite number above 0, found {theta}: correct or re-export it")
    if dim < 2 or dim % 2:
        raise UnsupportedModel(f"expected head_dim as a multiple of 2 where positions turn it, found {dim}: correct it")
    checked_size("head_dim", dim)  # before tables of its length are made
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    kind = "longrope" if kind == "su" else kind
    if kind == "dynamic" and scaling.get("alpha"):  # a fixed stretch of the base
        theta *= float(scaling["alpha"]) ** (dim / (dim - 2))
    base = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    factor, still = 1.0, 0
    if kind == "linear":
        base = base / float(scaling["factor"])
    elif kind == "llama3":
        base = _llama3(base, *(float(scaling[key]) for key in _LLAMA3))
    elif kind == "yarn":
        base, factor = _yarn(base, theta, scaling, positions)
    elif kind == "longrope":
        base, factor = _longrope(base, scaling, positions)
    elif kind == "proportional":
        still = len(base) - int(float(scaling.get("partial_rotary_factor") or 1.0) * dim // 2)
        base = base / float(scaling.get("factor") or 1.0)
    elif kind not in KINDS:
        raise UnsupportedModel(
            f"expected a rope type among {', '.join(KINDS)}, found {kind!r}: export the model to ONNX instead"
        )
    if not np.all(np.isfinite(base)) or not np.all(base > 0):
        raise ValueError(f"rope {kind!r} gives frequencies that are no finite numbers above 0")
    if not 0 <= still <= len(base):
        raise ValueError(f"rope {kind!r} turns {len(base) - still} of {len(base)} pairs")
    base[len(base) - still :] = 0
    return Rope(tuple(map(float, base)), interleaved, factor)


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _llama3(base: np.ndarray, factor: float, low: float, high: float, original: float) -> np.ndarray:
    """Wavelengths over original/low are stretched, those under original/high kept, between them both are blended."""
    if not low < high:
        raise ValueError(f"{_LLAMA3[1]} {low} is not below {_LLAMA3[2]} {high}")
    smooth = np.clip((original * base / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * base / factor + smooth * base


def _yarn(base: np.ndarray, theta: float, scaling: Scaling, positions: int) -> tuple[np.ndarray, float]:
    """Pairs that turn more often than beta_fast within the original length are kept, slower ones stretched."""
    dim, factor = 2 * len(base), float(scaling["factor"])
    original = float(scaling.get("original_max_position_embeddings") or positions)

    def pair_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (pair_of(float(scaling.get(key) or usual)) for key, usual in (("beta_fast", 32), ("beta_slow", 1)))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretched = np.clip((np.arange(len(base)) - low) / (high - low if high != low else 0.001), 0, 1)
    given = scaling.get("attention_factor")
    scales = [float(scaling.get(key) or 0) for key in ("mscale", "mscale_all_dim")]
    if given is not None:
        temperature = float(given)
    elif all(scales):
        temperature = magnitude(factor, scales[0]) / magnitude(factor, scales[1])
    else:
        temperature = magnitude(factor, 1.0)
    return stretched * base / factor + (1 - stretched) * base, temperature


def magnitude(factor: float, scale: float) -> float:
    """How much yarn raises scores, by the root of it, where it stretches positions by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(base: np.ndarray, scaling: Scaling, positions: int) -> tuple[np.ndarray, float]:
    """Every pair is stretched by a factor of its own."""
    factors = np.array(scaling["short_factor"], np.float64)
    if factors.shape != base.shape:
        raise ValueError(f"short_factor has {factors.size} numbers for {len(base)} pairs")
    original = float(scaling["original_max_position_embeddings"])
    stretch = float(scaling.get("factor") or positions / original)
    given = scaling.get("attention_factor")
    plain = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return base / factors, plain if given is None else float(given)


def tables(rope: Rope, positions: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [positions, head_dim / 2] float32, each rounded once from float64.

    Channels that no position turns are pairs of the angle 0: `turned_channels` puts them there.
    """
    frequencies = np.zeros(head_dim // 2)
    frequencies[: len(rope.frequencies)] = rope.frequencies
    angle = np.outer(np.arange(positions, dtype=np.float64), frequencies)
    scale = np.where(np.arange(head_dim // 2) < len(rope.frequencies), rope.factor, 1.0)
    return (np.cos(angle) * scale).astype(np.float32), (np.sin(angle) * scale).astype(np.float32)


def turned_channels(rope: Rope, head_dim: int) -> tuple[int, ...] | None:
    """Channels of a head in the order in which (i, i + head_dim/2) are the pairs; None where they lie so already.

    Scores do not change when queries and keys have their channels in one other order, so that all kinds of rotation
    become the one that turns halves.
    """
    turned = len(rope.frequencies)
    half, rest = head_dim // 2, list(range(2 * turned, head_dim))
    pairs = [(2 * i, 2 * i + 1) if rope.interleaved else (i, i + turned) for i in range(turned)]
    pairs += list(zip(rest[: half - turned], rest[half - turned :]))
    order = tuple(first for first, _ in pairs) + tuple(second for _, second in pairs)
    return None if order == tuple(range(head_dim)) else order
