"""Answers that are asked for by several threads, decoded together in the slots of one model.

No thread of its own: one of those that wait runs the steps of all, and hands on when its own answer is there. A stream
whose reader is away is answered `AHEAD` tokens further, then rests. It loses its slot to whoever needs one, and reads
its tokens again when its reader is back: no reader that stays away, or has gone, holds up the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from .answer import Answer, Generation, Wanted
from .held import Held

AHEAD = 8  # tokens that a stream is answered beyond what its reader took


class _Asked:
    """One answer: what it is to, and how far it is. Only who runs a step changes it, but for `waits` and `read`."""

    def __init__(self, ids: Sequence[int], wanted: Wanted, streamed: bool = False) -> None:
        self.ids, self.wanted, self.streamed = ids, wanted, streamed
        self.answer: Answer | None = None
        self.slot: int | None = None
        self.behind = False  # its slot does not hold its tokens yet
        self.error: Exception | None = None
        self.dropped = False
        self.waits = False  # its reader
        self.pieces: deque[tuple[str, int]] = deque()  # and how many tokens were said with each
        self.read = 0  # tokens that its reader took

    @property
    def tokens(self) -> list[int]:
        """Those that its slot holds when the next one is chosen."""
        return [*self.ids, *(self.answer.said if self.answer else ())]

    @property
    def ended(self) -> bool:
        return self.dropped or self.error is not None or (self.answer is not None and bool(self.answer.ended))

    @property
    def goes_on(self) -> bool:
        """In a slot."""
        return self.slot is not None and not self.ended

    @property
    def rests(self) -> bool:
        return not self.waits and self.answer is not None and len(self.answer.said) - self.read >= AHEAD

    @property
    def has_news(self) -> bool:
        return self.ended or (self.streamed and bool(self.pieces))

    @property
    def generation(self) -> Generation:
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer.generation


class Together:
    """The queue in front of `slots` slots of `held`."""

    def __init__(self, held: Held, slots: int) -> None:
        self._held = held
        self._changed = threading.Condition(threading.Lock())
        self._asked: list[_Asked] = []  # in the order in which they came
        self._used = list(range(slots))  # the slots, that which was taken longest ago first
        self._busy = False  # someone runs a step, or is alone
        self._apart = 0  # threads that wait to be alone

    def answers(self, asked: Sequence[tuple[Sequence[int], Wanted]]) -> list[Generation]:
        """The answers to token ids; the first error of one of them."""
        mine = [_Asked(ids, wanted) for ids, wanted in asked]
        try:
            self._until(mine, lambda: all(one.ended for one in mine) or any(one.error for one in mine))
            failed = [one for one in mine if one.error is not None]
            return [one.generation for one in failed or mine]
        finally:
            for one in mine:
                one.dropped = True

    def stream(self, ids: Sequence[int], wanted: Wanted) -> Generator[str, None, Generation]:
        """The pieces of an answer."""
        mine = _Asked(ids, wanted, streamed=True)
        try:
            while not mine.ended or mine.pieces:
                self._until([mine], lambda: mine.has_news)
                while mine.pieces:
                    piece, mine.read = mine.pieces.popleft()
                    yield piece
            return mine.generation
        finally:
            mine.dropped = True  # no lock: a generator may be collected anywhere

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Between answers: when those that have begun and are waited for are there, before others begin."""
        with self._changed:
            self._apart += 1
            try:
                while self._busy or any(one.waits and one.goes_on for one in self._asked):
                    self._changed.wait()
                self._busy = True
            finally:
                self._apart -= 1
                self._changed.notify_all()
        try:
            self._leave_slots()  # whatever is done to them
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _until(self, mine: Sequence[_Asked], ready: Callable[[], bool]) -> None:
        """Wait for, or run, the steps until `ready`, which they change."""
        with self._changed:
            self._asked += [one for one in mine if one not in self._asked]
            for one in mine:
                one.waits = True
            try:
                while not ready():
                    if self._busy or (self._apart and not any(one.goes_on for one in mine)):
                        self._changed.wait()
                        continue
                    self._busy = True
                    self._changed.release()
                    try:
                        news = self._step()
                    finally:
                        self._changed.acquire()
                        self._busy = False
                    if news or self._apart:  # for which this thread may stop before its answer is there
                        self._changed.notify_all()
            finally:
                for one in mine:
                    one.waits = False
                self._changed.notify_all()  # someone else runs the steps now

    # ---------------------------------------------------------------- by one thread at a time

    def _step(self) -> bool:
        """One token more for each answer that goes on, the first of those that get a slot; whether there is news."""
        with self._changed:
            self._asked = [one for one in self._asked if not one.ended]
            asked = list(self._asked)
        try:
            if not self._apart:
                self._give_slots(asked)
            going = [one for one in asked if one.slot is not None and not one.rests]
            begun = [one for one in going if not one.behind]
            for one in going:
                if one.behind:
                    self._begin(one)
            self._go_on(begun)
        except BaseException:  # whoever runs this step is interrupted: the others read again what they have
            self._leave_slots()
            raise
        return any(one.has_news for one in going)

    def _give_slots(self, asked: Sequence[_Asked]) -> None:
        """To those that wait, in their order: the free slot that holds most of their tokens, or that of a rest."""
        for one in asked:
            if one.slot is not None or not one.waits:
                continue
            taken = {other.slot for other in asked}
            free = [slot for slot in self._used if slot not in taken]
            if not free:
                resting = next((other for other in asked if other.slot is not None and other.rests), None)
                if resting is None or resting.slot is None:
                    return
                free, resting.slot = [resting.slot], None
            tokens = one.tokens
            one.slot, one.behind = max(free, key=lambda slot: self._held.common(tokens, slot)), True
            self._used = [*(slot for slot in self._used if slot != one.slot), one.slot]

    def _begin(self, one: _Asked) -> None:
        """Read the tokens of an answer into its slot, and take the one behind them."""
        assert one.slot is not None
        try:
            if one.answer is None:
                one.answer, logits = self._held.begin(one.ids, one.wanted, one.slot)
            else:
                tokens = one.tokens
                logits = self._held.feed(tokens[self._held.keep_common(tokens, one.slot) :], one.slot)
        except Exception as error:  # noqa: BLE001 - one answer's boundary: raised in its reader's thread
            one.error = error
            return
        one.behind = False
        self._take(one, logits)

    def _go_on(self, going: Sequence[_Asked]) -> None:
        """One more token for each, in one step."""
        said = {one.slot: one.answer.said[-1] for one in going if one.slot is not None and one.answer is not None}
        if not said:
            return
        try:
            behind = self._held.feed_together(said)
        except Exception as error:  # noqa: BLE001 - the boundary of all: nothing says whose it is
            for one in going:
                one.error = error
            return
        for one in going:
            if one.slot is not None:
                self._take(one, behind[one.slot])

    def _take(self, one: _Asked, logits: np.ndarray) -> None:
        assert one.slot is not None and one.answer is not None
        try:
            piece = one.answer.take(logits, self._held.is_full(one.slot))
        except Exception as error:  # noqa: BLE001 - one answer's boundary: raised in its reader's thread
            one.error = error
            return
        if one.streamed and piece:
            one.pieces.append((piece, len(one.answer.said)))

    def _leave_slots(self) -> None:
        for one in list(self._asked):
            one.slot = None
