"""What is in each slot of a language model's caches, as tokens: how an answer begins, and what it can keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ...errors import InputError, UsageError
from .answer import Answer, Wanted
from .ids import check_length, is_whole, shorter, whole_ids
from .recomputed import Recomputed
from .spec import LanguageSpec
from .steps import Steps
from .text import Text


class Held:
    """The tokens behind which each slot goes on and, of an encoder-decoder, the text or sound that it answers.

    They are what counts: whatever a call that did not end left behind them in the caches is not read.
    """

    def __init__(self, spec: LanguageSpec, text: Text, steps: Steps | Recomputed) -> None:
        self._spec, self._text, self._steps = spec, text, steps
        self._tokens: list[list[int]] = [[] for _ in steps.filled]
        self._read: list[np.ndarray | None] = [None for _ in steps.filled]

    def begin(
        self,
        asked: Sequence[int] | np.ndarray,
        wanted: Wanted,
        slot: int,
        how: tuple[str | None, bool] = (None, False),
    ) -> tuple[Answer, np.ndarray]:
        """The answer to `asked` in `slot`, and the logits that its first token is chosen from.

        `how` is the language of speech, if it is known, and whether it is translated; of a text, that of its answer.
        """
        wanted.check(self._spec.vocabulary)
        self.check([slot])
        if not len(asked):
            raise InputError("expected at least one token, found an empty prompt: pass some text")
        if self._steps.source is None:
            ids = list(asked)
            kept = self.keep_common(ids, slot)
            answer = Answer(wanted, self._spec, self._text, ids, kept, seen=ids)
            return answer, self.feed(ids[kept:], slot)
        speech = self._spec.speech
        start = self._spec.start if speech is not None else self._spec.start_in(how[0])
        if speech is not None:
            token = None if how[0] is None else speech.language(how[0])
            start = speech.asked(start, token, how[1])
        before = self._read[slot]
        known = before is not None and np.array_equal(before, asked)
        counted = start if speech else list(asked)
        answer = Answer(wanted, self._spec, self._text, counted, len(counted) if known else 0, seen=start)
        if not known:
            self.read(asked, slot)
        self.forget(0, slot)
        if speech is not None and speech.languages and how[0] is None:
            logits = self.feed(self._spec.start, slot)
            likeliest = max(speech.languages.values(), key=lambda token: float(logits[token]))
            start = speech.asked(self._spec.start, likeliest, how[1])[len(self._spec.start) :]
        return answer, self.feed(start, slot)

    def read(self, asked: Sequence[int] | np.ndarray, slot: int) -> None:
        """Take the text or spectrum that the slot answers from now on."""
        self.check([slot])
        self._read[slot], self._tokens[slot] = None, []  # should reading fail
        assert isinstance(self._steps, Steps)  # an encoder-decoder keeps its answer in caches
        self._steps.read(asked, slot)
        self._read[slot] = np.array(asked)

    def is_full(self, slot: int) -> bool:
        return self.length(slot) == self._steps.context

    def length(self, slot: int) -> int:
        return len(self._tokens[slot])

    def keep_common(self, asked: Sequence[int], slot: int) -> int:
        """Truncate to the beginning that `asked` shares with the caches; at least its last token is to be read."""
        if len(asked) > self._steps.context:
            raise InputError(
                f"expected a prompt of at most {self._steps.context} tokens, which the context holds, found "
                f"{len(asked)}: {shorter(self._steps.context, self._steps.longest)}"
            )
        common = self.common(asked, slot)
        self.forget(common, slot)
        return common

    def common(self, asked: Sequence[int], slot: int) -> int:
        """How many of the tokens in front of the last of `asked` the slot can keep: those that it begins with.

        A state that tokens overwrite is of use where all of its tokens are among them, else there are none.
        """
        held = self._tokens[slot]
        pairs = zip(asked[:-1], held)
        found = next((i for i, (a, b) in enumerate(pairs) if a != b), max(0, min(len(asked) - 1, len(held))))
        return 0 if self._steps.overwrites and found < len(held) else found

    def feed(self, tokens: Sequence[int] | np.ndarray, slot: int) -> np.ndarray:
        """The logits [vocabulary] behind `tokens`, which follow those in the slot."""
        self._prepare([slot])
        ids = whole_ids(tokens).tolist()
        logits = self._steps.feed(ids, slot)
        self._tokens[slot] += ids
        return logits

    def feed_together(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        self._prepare(tokens)
        found = self._steps.feed_together(tokens)
        for slot, token in tokens.items():
            self._tokens[slot].append(int(token))
        return found

    def _prepare(self, slots: Collection[int]) -> None:
        """Let the caches of `slots` be what tokens can follow; of an encoder-decoder those that answer something."""
        self.check(slots)
        if self._steps.source is not None and any(self._read[slot] is None for slot in slots):
            raise UsageError(
                "expected a text or sound that these tokens answer, found none yet: pass one to encode or prefill first"
            )
        for slot in slots:
            self._restore(slot)

    def forget(self, count: int, slot: int) -> None:
        """Keep the first `count` tokens; where a state cannot be made shorter, they are read again."""
        self.check([slot])
        held = self._tokens[slot]
        check_length(count, len(held))
        del held[count:]
        self._restore(slot)

    def _restore(self, slot: int) -> None:
        """Let the caches hold the slot's tokens: of more, or of a call without an end, they are truncated.

        A state that tokens overwrite cannot be: it reads the slot's tokens again.
        """
        held = self._tokens[slot]
        if self._steps.filled[slot] == len(held):
            return
        if not self._steps.overwrites:
            self._steps.truncate(len(held), slot)
            return
        self._steps.truncate(0, slot)
        if held:
            self._steps.feed(held, slot)

    def check(self, slots: Iterable[int]) -> None:
        for slot in slots:
            if not is_whole(slot) or not 0 <= slot < len(self._tokens):
                raise UsageError(
                    f"expected a slot from 0 to {len(self._tokens) - 1}, found {slot!r}: load the model with more slots"
                )

    def fork(self, slot: int, to: int) -> None:
        """Copy what is in `slot` into `to`."""
        self.check([slot, to])
        if slot == to:
            raise UsageError(f"expected two slots, found {slot} twice: load the model with more slots")
        self._tokens[to] = []  # should copying fail
        self._restore(slot)
        self._steps.fork(slot, to)
        self._tokens[to] = list(self._tokens[slot])
