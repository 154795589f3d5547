"""How far a language model is from its source on a passage of text: divergence, perplexity, equal choices.

The reference (`text_reference.text_cases`) has, for every position, the logarithm of the sum of the exponentials of the
source's logits and its 64 largest logits. The divergence of the artifact's distribution q from the source's p is

    KL(p | q) = sum over the 64 of p log(p / q)  +  r log(r / s)        r, s: what p and q give to all other tokens

which is at most that over the whole vocabulary, and all but equal to it where 64 tokens hold nearly all of p.

Caches that keep keys and values in few bits are seen by single steps behind them: what these lose more than `main` does
at the very same positions is added to what `main` loses over the whole passage. The difference of pairs is far
steadier than either mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..cases import PREFIX

_KEYS = ("ids", "logsum", "top", "logits", "next")
_LEAST = 1e-9  # shares below are rounding of float32
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TextCheck:
    """An artifact on the passage, beside its source; `divergence` is in nats per token."""

    tokens: int
    divergence: float  # mean over all positions
    divergence_99: float  # 99 of 100 positions are below
    perplexity: float
    source_perplexity: float
    top1: float  # share of positions with the same likeliest token
    bound: float  # on `divergence`
    behind_caches: float | None = None  # the same behind caches of few bits; None where they keep float32
    caches_bound: float | None = None  # on `behind_caches`

    @property
    def passed(self) -> bool:
        return bool(self.divergence <= self.bound) and not self.lost_in_caches

    @property
    def lost_in_caches(self) -> bool:
        """Whether the caches cost more than they may."""
        if self.behind_caches is None or self.caches_bound is None:
            return False
        return not self.behind_caches <= self.caches_bound


def text_of(arrays: Arrays) -> dict[str, np.ndarray] | None:
    """The reference of the passage among `arrays`; None where there is none. `ValueError` for parts that do not fit."""
    found = {key: arrays[PREFIX + key] for key in _KEYS if PREFIX + key in arrays}
    if not found:
        return None
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise ValueError(f"{PREFIX}{missing[0]} is missing beside {PREFIX}{next(iter(found))}")
    shape = found["ids"].shape
    kept = found["top"].shape
    wanted = {"ids": shape, "logsum": shape, "top": (*shape, *kept[2:]), "logits": kept}
    wanted["next"] = (shape[0], shape[1] - 1) if len(shape) == 2 else ()
    for key, wished in wanted.items():
        if len(shape) != 2 or len(kept) != 3 or found[key].shape != wished:
            raise ValueError(f"{PREFIX}{key} is {list(found[key].shape)} where {PREFIX}ids is {list(shape)}")
    return found


def compare_text(
    run: Callable[[np.ndarray], np.ndarray],
    text: Arrays,
    rows: int,
    bound: float,
    *,
    behind: Callable[[np.ndarray], np.ndarray] | None = None,
    caches_bound: float | None = None,
) -> TextCheck:
    """`run` gives logits [rows, t, vocabulary] of token ids [rows, t]; `text` is that of `text_of`.

    `behind` gives logits [n, vocabulary] of the last n positions of a window's ids [t], read behind caches.
    """
    divergences, own, source, equal = [], 0.0, 0.0, 0
    added = []
    windows, tokens = text["ids"].shape
    for begin in range(0, windows, rows):
        for at, logits in enumerate(run(text["ids"][begin : begin + rows]), begin):
            sums = _log_sum(logits)
            top = text["top"][at].astype(np.int64)
            p = text["logits"][at].astype(np.float64) - text["logsum"][at][:, None].astype(np.float64)
            q = np.take_along_axis(logits, top, 1).astype(np.float64) - sums[:, None]
            divergences.append(_divergence(p, q))
            if behind is not None:
                found = behind(text["ids"][at])
                last = slice(len(logits) - len(found), None)
                q = np.take_along_axis(found, top[last], 1).astype(np.float64) - _log_sum(found)[:, None]
                added.append(_divergence(p[last], q) - divergences[-1][last])
            following = text["ids"][at][1:, None].astype(np.int64)
            own += float((np.take_along_axis(logits[:-1], following, 1)[:, 0].astype(np.float64) - sums[:-1]).sum())
            source += float((text["next"][at].astype(np.float64) - text["logsum"][at][:-1]).sum())
            equal += int((logits.argmax(-1) == top[:, 0]).sum())
    every = np.concatenate(divergences)
    followed = windows * (tokens - 1)
    return TextCheck(
        tokens=windows * tokens,
        divergence=float(every.mean()),
        divergence_99=float(np.quantile(every, 0.99)),
        perplexity=math.exp(min(700.0, -own / followed)),
        source_perplexity=math.exp(min(700.0, -source / followed)),
        top1=equal / every.size,
        bound=bound,
        behind_caches=_behind(float(every.mean()), added) if added else None,
        caches_bound=caches_bound if added else None,
    )


def _behind(divergence: float, added: list[np.ndarray]) -> float:
    """What is lost behind caches, of what is lost without and what they add; infinite where either is no number."""
    total = divergence + float(np.concatenate(added).mean())
    return max(0.0, total) if math.isfinite(total) else math.inf


def _log_sum(logits: np.ndarray) -> np.ndarray:
    """log(sum(exp(row))) of every row [t, vocabulary], in float64, a row at a time: logits are large."""
    found = np.empty(len(logits))
    for i, row in enumerate(logits):
        peak = float(row.max())
        found[i] = peak + math.log(np.exp(row.astype(np.float64) - peak).sum())
    return found


def _divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL per row of logarithms [t, kept] of probabilities; a NaN of q is an infinite divergence."""
    shares = np.exp(p)
    rest, others = (np.maximum(1 - np.exp(x).sum(-1), _LEAST) for x in (p, q))
    total = (shares * (p - q)).sum(-1) + rest * (np.log(rest) - np.log(others))
    return np.where(np.isnan(total), np.inf, np.maximum(total, 0.0))
