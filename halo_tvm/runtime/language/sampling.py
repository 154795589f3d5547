"""Choosing the next token from logits.

The order is that of transformers: repetition penalty, temperature, top_k, top_p, min_p, then a draw. Equal seeds give
equal tokens. Only the candidates that top_k or top_p can leave are ever sorted, so that a choice costs a small part of
a step whatever the size of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...errors import InputError, UsageError

_FIRST = 256  # candidates that are sorted first; four times as many while they do not hold top_p


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: the most likely one unless a field says otherwise.

    A `temperature`, `top_k`, `top_p` or `min_p` asks for a draw; without a temperature it is 1. A temperature of 0 is
    the most likely token.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0, math.inf, "of 0 or more", low_open=False)
        _check("top_k", self.top_k, 0, math.inf, "of at least 1")
        _check("top_p", self.top_p, 0, 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0, 1, "from 0 to 1", low_open=False)
        _check("repetition_penalty", self.repetition_penalty, 0, math.inf, "above 0")

    @property
    def draws(self) -> bool:
        asked = any(x is not None for x in (self.temperature, self.top_k, self.top_p, self.min_p))
        return asked and self.temperature != 0


def _check(name: str, value: float | None, low: float, high: float, wanted: str, *, low_open: bool = True) -> None:
    if value is None:
        return
    fits = isinstance(value, (int, float)) and (low < value if low_open else low <= value) and value <= high
    if not fits or isinstance(value, bool) or value == math.inf or (name == "top_k" and value != int(value)):
        without = "no penalty" if name == "repetition_penalty" else "the likeliest"
        raise UsageError(f"expected {name} {wanted}, found {value!r}: correct it, or leave it out for {without}")


class Sampler:
    """One answer's choices; `seen` are the tokens that a repetition penalty makes less likely."""

    def __init__(self, how: Sampling, seen: list[int]) -> None:
        self.how = how
        self._random = np.random.default_rng(how.seed)
        self._seen = set(seen) if how.repetition_penalty not in (None, 1) else None

    def choose(self, logits: np.ndarray) -> int:
        """The token for `logits` [vocabulary] float32; `InputError` where they have a NaN."""
        how = self.how
        if self._seen is not None:
            logits = self._penalised(logits)
        best = int(logits.argmax())  # of NaN there is none larger: the first one is found
        if not math.isfinite(logits[best]):
            raise InputError(
                f"expected logits to choose a token from, found {logits[best]}: the input, or a precision that its "
                "numbers exceed, gives no distribution; validate the artifact"
            )
        token = self._drawn(logits, best) if how.draws else best
        if self._seen is not None:
            self._seen.add(token)
        return token

    def _penalised(self, logits: np.ndarray) -> np.ndarray:
        assert self._seen is not None and self.how.repetition_penalty is not None
        at = np.fromiter(self._seen, np.int64)
        penalty = np.float32(self.how.repetition_penalty)
        changed = logits.copy()
        changed[at] = np.where(logits[at] < 0, logits[at] * penalty, logits[at] / penalty)
        return changed

    def _drawn(self, logits: np.ndarray, best: int) -> int:
        how = self.how
        scores = (logits.astype(np.float64) - logits[best]) / (1.0 if how.temperature is None else how.temperature)
        tokens = np.arange(len(scores))
        if how.top_k is not None and how.top_k < len(scores):
            tokens = np.argpartition(-scores, int(how.top_k) - 1)[: int(how.top_k)]
        weights = np.exp(scores[tokens])
        if how.top_p is not None and how.top_p < 1:
            kept = _likeliest(weights, how.top_p * weights.sum())
            tokens, weights = tokens[kept], weights[kept]
        if how.min_p:
            kept = np.flatnonzero(weights >= how.min_p * weights.max())
            tokens, weights = tokens[kept], weights[kept]
        order = np.argsort(tokens)  # so that a draw does not depend on how candidates were found
        ends = np.cumsum(weights[order])
        place = int(np.searchsorted(ends, self._random.random() * ends[-1], side="right"))
        return int(tokens[order][min(place, len(ends) - 1)])


def _likeliest(weights: np.ndarray, enough: float) -> np.ndarray:
    """Indices of the fewest of the largest weights whose sum reaches `enough`; at least one."""
    count = _FIRST
    while True:
        whole = count >= len(weights)
        part = np.arange(len(weights)) if whole else np.argpartition(-weights, count)[:count]
        order = part[np.argsort(-weights[part], kind="stable")]
        sums = np.cumsum(weights[order])
        if whole or sums[-1] >= enough:
            return order[: int(np.searchsorted(sums, enough, side="left")) + 1]
        count *= 4


def log_probabilities(logits: np.ndarray, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """The logarithm of the probability of `token`, and the `count` likeliest tokens with theirs."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= math.log(np.exp(scores).sum())
    top = np.argpartition(-scores, min(count, len(scores) - 1))[:count]
    top = top[np.argsort(-scores[top], kind="stable")]
    return float(scores[token]), [(int(i), float(scores[i])) for i in top]
