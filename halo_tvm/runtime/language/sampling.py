"""Choosing the next token from logits.

The order is that of transformers: logit bias, repetition, frequency and presence penalties, words and repeated runs
that are ruled out, temperature, top_k, top_p, min_p, typical_p, then a draw. Equal seeds give equal tokens. Only the
candidates that top_k or top_p can leave are ever sorted, unless typical_p asks for more, so that a choice costs a small
part of a step whatever the size of the vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ...errors import InputError, UsageError
from .banned import Banned
from .ids import is_whole

Word = str | Sequence[int]  # as text, or as token ids
Option = float | Mapping[int, float] | Sequence[Word] | None  # the value of a field of `Sampling`

_LARGEST = 1e308  # a finite float64
_FIRST = 256  # candidates that are sorted first; four times as many while they do not hold top_p


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: the most likely one unless a field says otherwise.

    A `temperature`, `top_k`, `top_p`, `min_p` or `typical_p` asks for a draw; without a temperature it is 1. A
    temperature of 0 is the most likely token, a `top_k` of 0 no bound.

    The repetition penalty divides logits of tokens that were in the prompt or the answer (multiplies negative ones).
    From a logit are taken `frequency_penalty` for every time that the answer has its token, and once
    `presence_penalty` where it has it at all. `logit_bias` is added to the logits of token ids; -inf: never chosen.

    No run of `no_repeat_ngram_size` tokens, of the prompt or the answer, occurs again. `bad_words`, texts or token ids,
    are never completed. `typical_p` draws among the tokens whose information is nearest to the expected one
    (arXiv:2202.00666).
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    no_repeat_ngram_size: int | None = None
    bad_words: Sequence[Word] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0, _LARGEST, "of 0 or more")
        _check_whole("top_k", self.top_k, "the likeliest")
        _check("top_p", self.top_p, math.ulp(0), 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0, 1, "from 0 to 1")
        _check("typical_p", self.typical_p, math.ulp(0), 1, "above 0 and at most 1")
        _check_whole("no_repeat_ngram_size", self.no_repeat_ngram_size, "repeated runs")
        _check("repetition_penalty", self.repetition_penalty, 1e-3, 1e3, "above 0, from 0.001 to 1000", "no penalty")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(name, getattr(self, name), -1e3, 1e3, "from -1000 to 1000", "no penalty")
        _check_whole("seed", self.seed, "another one each time")
        _check_bias(self.logit_bias)
        _check_words(self.bad_words)

    @property
    def draws(self) -> bool:
        cuts = (self.top_k or None, self.top_p, self.min_p, self.typical_p)
        asked = any(x is not None for x in (self.temperature, *cuts))
        return asked and self.temperature != 0


def _check(
    name: str, value: float | None, low: float, high: float, wanted: str, without: str = "the likeliest"
) -> None:
    fits = isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high
    if value is not None and not fits:
        raise UsageError(f"expected {name} {wanted}, found {value!r}: correct it, or leave it out for {without}")


def _check_whole(name: str, value: int | None, without: str) -> None:
    if value is not None and not (is_whole(value) and value >= 0):
        raise UsageError(
            f"expected {name} as a whole number of 0 or more, found {value!r}: correct it, or leave it out for "
            f"{without}"
        )


def _check_bias(bias: Mapping[int, float] | None) -> None:
    if bias is None:
        return
    if not isinstance(bias, Mapping):
        raise UsageError(f"expected logit_bias as a number by token id, found {bias!r:.80}: pass {{id: number}}")
    for token, value in bias.items():
        if not is_whole(token) or token < 0:
            raise UsageError(f"expected token ids in logit_bias, found {token!r:.80}: correct it")
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not (value == -math.inf or abs(float(value)) <= _LARGEST):
            raise UsageError(f"expected numbers in logit_bias, or -inf for never, found {value!r:.80}: correct it")


def _check_words(words: Sequence[Word] | None) -> None:
    if words is None:
        return
    if isinstance(words, (str, bytes, Mapping)) or not isinstance(words, Iterable):
        raise UsageError(f"expected bad_words as a list of texts, found {words!r:.80}: put one text into a list")
    for word in words:
        ids = isinstance(word, Sequence) and not isinstance(word, bytes)
        if not ids or not len(word) or not (isinstance(word, str) or all(is_whole(i) and i >= 0 for i in word)):
            raise UsageError(
                f"expected bad_words as texts of at least one character, or lists of token ids, found {word!r:.80}: "
                "correct it"
            )


class Sampler:
    """One answer's choices; `seen` are the tokens in front of it, which count for what must not be repeated.

    `words` are the bad words as token ids.
    """

    def __init__(self, how: Sampling, seen: list[int], words: Sequence[tuple[int, ...]] = ()) -> None:
        self.how = how
        self._banned = Banned(words, how.no_repeat_ngram_size, seen)
        self._random = np.random.default_rng(how.seed)
        self._seen = set(seen) if how.repetition_penalty not in (None, 1) else None
        self._said: Counter[int] | None = Counter() if how.presence_penalty or how.frequency_penalty else None
        self._biased = np.array([*(how.logit_bias or ())], np.int64)
        self._bias = np.array([*(how.logit_bias or {}).values()], np.float64)

    def choose(self, logits: np.ndarray) -> int:
        """The token for `logits` [vocabulary] float32; `InputError` where they have a NaN."""
        how = self.how
        logits = self._changed(logits)
        best = int(logits.argmax())  # of NaN there is none larger: the first one is found
        if logits[best] == -math.inf and (self._banned or self._biased.size):
            raise InputError(
                "expected a token that may come next, found none: logit_bias, bad_words and no_repeat_ngram_size rule "
                "out all of them; loosen one"
            )
        if not math.isfinite(logits[best]):
            raise InputError(
                f"expected logits to choose a token from, found {logits[best]}: the input, or a precision that its "
                "numbers exceed, gives no distribution; validate the artifact"
            )
        token = self._drawn(logits, best) if how.draws else best
        if self._seen is not None:
            self._seen.add(token)
        if self._said is not None:
            self._said[token] += 1
        if self._banned:
            self._banned.add(token)
        return token

    def _changed(self, logits: np.ndarray) -> np.ndarray:
        """With bias, penalties and bans: those that were given where there are none, else float64."""
        how = self.how
        if self._seen is None and self._said is None and not self._biased.size and not self._banned:
            return logits
        changed = logits.astype(np.float64)
        changed[self._biased] += self._bias
        if self._seen is not None and how.repetition_penalty is not None:
            at = np.fromiter(self._seen, np.int64)
            penalty = float(how.repetition_penalty)
            changed[at] = np.where(changed[at] < 0, changed[at] * penalty, changed[at] / penalty)
        if self._said:
            at, counts = np.array([*self._said.items()], np.int64).T
            changed[at] -= counts * float(how.frequency_penalty or 0) + float(how.presence_penalty or 0)
        if self._banned:
            changed[self._banned.next()] = -np.inf
        return changed

    def _drawn(self, logits: np.ndarray, best: int) -> int:
        how = self.how
        with np.errstate(over="ignore"):  # a temperature near 0: the others have no chance
            scores = (logits.astype(np.float64) - logits[best]) / float(
                1 if how.temperature is None else how.temperature
            )
        tokens = np.arange(len(scores))
        if how.top_k and how.top_k < len(scores):
            tokens = np.argpartition(-scores, int(how.top_k) - 1)[: int(how.top_k)]
        weights = np.exp(scores[tokens])
        if how.top_p is not None and how.top_p < 1:
            kept = _likeliest(weights, how.top_p * weights.sum())
            tokens, weights = tokens[kept], weights[kept]
        if how.min_p:
            kept = np.flatnonzero(weights >= how.min_p * weights.max())
            tokens, weights = tokens[kept], weights[kept]
        if how.typical_p is not None and how.typical_p < 1:
            kept = _typical(weights, float(how.typical_p))
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


def _typical(weights: np.ndarray, enough: float) -> np.ndarray:
    """Indices of the fewest weights, those first whose information is nearest to the expected one, of that share."""
    shares = weights / weights.sum()
    with np.errstate(divide="ignore"):
        information = -np.log(shares)
    expected = (shares * np.where(shares > 0, information, 0)).sum()
    order = np.argsort(np.abs(information - expected), kind="stable")
    sums = np.cumsum(shares[order])
    found: np.ndarray = order[: int(np.searchsorted(sums, enough, side="left")) + 1]
    return found


def log_probabilities(logits: np.ndarray, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """The logarithm of the probability of `token`, and the `count` likeliest tokens with theirs."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= math.log(np.exp(scores).sum())
    top = np.argpartition(-scores, min(count, len(scores) - 1))[:count]
    top = top[np.argsort(-scores[top], kind="stable")]
    return float(scores[token]), [(int(i), float(scores[i])) for i in top]
