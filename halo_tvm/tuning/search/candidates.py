"""Which decision to try next: records of others, then the rule's space, then steps from the best so far."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence


class Candidates:
    """Hands out each decision once. A ranking by a model will reorder `_waiting`; nothing else changes then."""

    def __init__(
        self,
        default: object,
        space: Sequence[object],
        hints: Iterable[object],
        avoid: Iterable[object],
        *,
        descend: bool,
        seed: int,
    ) -> None:
        self._space = tuple(space)
        self._descend = descend
        self._known = {default, *avoid}
        self.avoided = sum(1 for d in self._space if d in self._known and d != default)
        near = sorted(self._space, key=lambda d: _distance(d, default))
        # One field away from the default first: the analytic decision is seldom far off. The rest at random.
        single = [d for d in near if _distance(d, default) <= 1]
        far = [d for d in near if _distance(d, default) > 1]
        random.Random(seed).shuffle(far)
        self._waiting = list(dict.fromkeys([*hints, *single, *far]))

    def next_batch(self, size: int, best: object) -> list[object]:
        """Up to `size` decisions not tried yet; none when everything was tried."""
        batch: list[object] = []
        while self._waiting and len(batch) < size:
            self._take(self._waiting.pop(0), batch)
        if self._descend and len(batch) < size and not self._waiting:
            for decision in self._steps(best):
                if len(batch) == size:
                    break
                self._take(decision, batch)
        return batch

    def _take(self, decision: object, batch: list[object]) -> None:
        if decision not in self._known:
            self._known.add(decision)
            batch.append(decision)

    def _steps(self, best: object) -> Iterator[object]:
        """`best` with one field changed to a value that some decision of the space has there.

        A rule declines what it cannot apply, so a step may leave the listed space.
        """
        for field in dataclasses.fields(best):
            for value in dict.fromkeys(getattr(d, field.name) for d in self._space):
                yield dataclasses.replace(best, **{field.name: value})


def _distance(a: object, b: object) -> int:
    """The number of fields in which two decisions differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in dataclasses.fields(a))
