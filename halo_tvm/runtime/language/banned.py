"""Tokens that may not come next, as those in front of them say: the ends of unwanted words and of repeated runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np


class Banned:
    """What `words` (token ids each) and runs of `repeated` tokens, of which none occurs twice, rule out.

    `seen` are the tokens in front of the answer; they count, as those of the answer do.
    """

    def __init__(self, words: Sequence[tuple[int, ...]], repeated: int | None, seen: Sequence[int]) -> None:
        self._always = [word[0] for word in words if len(word) == 1]
        self._longer = [word for word in words if len(word) > 1]
        self._repeated = repeated or 0
        longest = max((len(word) for word in self._longer), default=1)
        self._reach = max(self._repeated, longest) - 1  # tokens that what comes next depends on
        self._last: list[int] = []
        self._behind: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)  # what followed so many tokens
        for token in seen if self._reach or self._repeated else ():
            self.add(token)

    def __bool__(self) -> bool:
        return bool(self._always or self._longer or self._repeated)

    def add(self, token: int) -> None:
        """Take a token that was read or said."""
        if self._repeated and len(self._last) >= self._repeated - 1:
            self._behind[self._run(self._repeated - 1)].add(int(token))
        self._last = [*self._last, int(token)][-self._reach :] if self._reach else []

    def next(self) -> np.ndarray:
        """The tokens [n] that may not come next."""
        found = set(self._always)
        found |= {word[-1] for word in self._longer if self._run(len(word) - 1) == word[:-1]}
        if self._repeated:
            found |= self._behind.get(self._run(self._repeated - 1), set())
        return np.fromiter(found, np.int64, len(found))

    def _run(self, count: int) -> tuple[int, ...]:
        """The last `count` tokens; fewer where there are no more."""
        return tuple(self._last[-count:]) if count else ()
