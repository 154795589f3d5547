"""One answer as it grows: the choice of each token, its text, and why it ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ...errors import UnknownName, UsageError
from .ids import is_whole
from .sampling import Option, Sampler, Sampling, log_probabilities
from .spec import LanguageSpec
from .text import Pieces, Text

_OPTIONS = (
    "max_new_tokens",
    "min_new_tokens",
    "stop",
    "logprobs",
    "special",
    "ignore_eos",
)  # of every answer, beside those of `Sampling`
LogProbabilities = tuple[float, list[tuple[int, float]]]  # of the token chosen, and of the likeliest


@dataclass(frozen=True)
class Generation:
    """An answer, why it ended and how long it took."""

    text: str
    tokens: tuple[int, ...]
    ended: str  # "end" (the model's own token), "stop" (a stop string), "length" (max_new_tokens or a full context)
    prompt_tokens: int
    kept_tokens: int  # of the prompt, those that were in the caches from before
    prompt_seconds: float
    answer_seconds: float  # behind the first token, which the prompt gives
    logprobs: tuple[LogProbabilities, ...] = ()

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt per second, without those that were kept."""
        return (self.prompt_tokens - self.kept_tokens) / self.prompt_seconds

    @property
    def answer_rate(self) -> float:
        """Tokens of the answer per second."""
        return max(0, len(self.tokens) - 1) / self.answer_seconds if self.answer_seconds else 0.0


@dataclass(frozen=True)
class Wanted:
    """How an answer is made: `UsageError` for what cannot be meant."""

    how: Sampling
    most: int | None = None  # tokens; None: to the end of the context
    least: int = 0  # tokens in front of one that ends the answer
    stop: tuple[str, ...] = ()
    logprobs: int = 0  # of the likeliest tokens, reported at each place
    special: bool = False  # the text has that of special tokens
    ignore_eos: bool = False  # no token that ends an answer is chosen

    @classmethod
    def of(
        cls,
        bounds: tuple[int | None, int],
        stop: Sequence[str] | None,
        logprobs: int,
        shown: tuple[bool, bool],
        sampling: Mapping[str, Option],
    ) -> Wanted:
        """From the options of `generate`: most and least tokens are `bounds`, `special` and `ignore_eos` `shown`.

        `UnknownName` for one that `Sampling` lacks.
        """
        known = {field.name for field in fields(Sampling)}
        for name in sampling:
            if name not in known:
                raise UnknownName("option", name, (*_OPTIONS, *known))
        if isinstance(stop, (bytes, Mapping)) or not isinstance(stop, (Iterable, type(None))):
            raise UsageError(f"expected stop as a text or a list of texts, found {stop!r:.80}: correct it")
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        return cls(Sampling(**sampling), *bounds, stops, logprobs, *shown)  # type: ignore[arg-type]

    def check(self, vocabulary: int) -> None:
        if self.most is not None and not (is_whole(self.most) and self.most >= 1):
            raise UsageError(
                f"expected max_new_tokens of at least 1, found {self.most!r}: pass a whole number, or leave it out to "
                "fill the context"
            )
        if not is_whole(self.least) or not 0 <= self.least <= (self.least if self.most is None else self.most):
            raise UsageError(
                f"expected min_new_tokens from 0 to max_new_tokens, found {self.least!r}: correct it, or leave it out"
            )
        if not is_whole(self.logprobs) or not 0 <= self.logprobs <= vocabulary:
            raise UsageError(f"expected logprobs from 0 to {vocabulary}, found {self.logprobs!r}: correct it")
        highest = max(self.how.logit_bias or (0,))
        if highest >= vocabulary:
            raise UsageError(
                f"expected token ids from 0 to {vocabulary - 1} in logit_bias, found {highest}: correct it"
            )
        ids = [token for word in self.how.bad_words or () if not isinstance(word, str) for token in word]
        if max(ids, default=0) >= vocabulary:
            raise UsageError(
                f"expected token ids from 0 to {vocabulary - 1} in bad_words, found {max(ids)}: correct it"
            )

    def words(self, text: Text) -> list[tuple[int, ...]]:
        """The bad words as token ids: a text as it is at the beginning of another, and behind a space."""
        found: list[tuple[int, ...]] = []
        for word in self.how.bad_words or ():
            spelled = [word, " " + word] if isinstance(word, str) else []
            found += [tuple(text.tokens(each, special=False)) for each in spelled] or [tuple(map(int, word))]
        return list(dict.fromkeys(filter(None, found)))


class Answer:
    """The answer to `asked`, of which the first `kept` tokens were read before.

    `seen` are the tokens in front of the answer, which a repetition penalty makes less likely.
    """

    def __init__(
        self, wanted: Wanted, spec: LanguageSpec, text: Text, asked: Sequence[int], kept: int, seen: Sequence[int]
    ) -> None:
        self._wanted, self._end = wanted, spec.end
        never = (*spec.never, *(spec.end if wanted.ignore_eos else ()))
        self._never = np.array(never, np.int64)
        self._never_early = np.array([*never, *(spec.end if wanted.least else ())], np.int64)
        first = spec.speech.first_never if spec.speech else ()
        self._never_first = np.array([*self._never_early, *first], np.int64)
        self._pieces = Pieces(text, wanted.stop, special=wanted.special)
        special = text.special_tokens() if wanted.stop else {}
        self._stops = {special[stop] for stop in wanted.stop if stop in special}
        self._sampler = Sampler(wanted.how, list(seen), wanted.words(text))
        self._asked, self._kept = len(asked), kept
        self._written: list[str] = []
        self._reported: list[LogProbabilities] = []
        self._began = self._first = self._last = time.perf_counter()
        self.said: list[int] = []
        self.ended = ""

    def take(self, logits: np.ndarray, full: bool) -> str:
        """Choose the next token; the text that is certain with it. `full` ends it: there is no room for the token."""
        if not self.said:
            self._first = time.perf_counter()
        never = self._never_first if not self.said else self._never
        if 0 < len(self.said) < self._wanted.least:
            never = self._never_early
        token = self._sampler.choose(_without(logits, never))
        self.said.append(token)
        if self._wanted.logprobs:
            self._reported.append(log_probabilities(logits, token, self._wanted.logprobs))
        piece = ""
        if token in self._end:
            self.ended = "end"
        elif token in self._stops:
            self.ended = "stop"
        else:
            piece = self._pieces.add(token)
            if self._pieces.stopped:
                self.ended = "stop"
            elif len(self.said) == self._wanted.most or full:
                self.ended = "length"
        if self.ended:
            self._last = time.perf_counter()
            piece += self._pieces.rest()
        self._written.append(piece)
        return piece

    @property
    def generation(self) -> Generation:
        """Once it has ended."""
        return Generation(
            text="".join(self._written),
            tokens=tuple(self.said),
            ended=self.ended,
            prompt_tokens=self._asked,
            kept_tokens=self._kept,
            prompt_seconds=self._first - self._began,
            answer_seconds=self._last - self._first,
            logprobs=tuple(self._reported),
        )


def joined(answers: Sequence[Generation]) -> Generation:
    """The answers to pieces of one sound as one."""
    return Generation(
        text="".join(answer.text for answer in answers),
        tokens=tuple(token for answer in answers for token in answer.tokens),
        ended=answers[-1].ended,
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        kept_tokens=sum(answer.kept_tokens for answer in answers),
        prompt_seconds=sum(answer.prompt_seconds for answer in answers),
        answer_seconds=sum(answer.answer_seconds for answer in answers),
        logprobs=tuple(place for answer in answers for place in answer.logprobs),
    )


def _without(logits: np.ndarray, never: np.ndarray) -> np.ndarray:
    """`logits` in which the tokens `never` have no chance."""
    if not never.size:
        return logits
    changed = logits.copy()
    changed[never] = -np.inf
    return changed
