"""A language model that keeps nothing of a call for the next one: every token reads the whole text in front of it.

So a model speaks whose layers have no definition here, and so no caches: as transformers generates without a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from ...artifact import FunctionSpec
from ...errors import InputError, UsageError
from ..session import Session
from ..tensors import aligned_empty, numpy_dtype, to_arrays, to_tensor
from .ids import check_length, ids_of, with_room
from .source import Source
from .spec import MASK, WHOLE


class Recomputed:
    """Sequences of tokens, one per slot, with the interface of `Steps`.

    `main` takes a text of at least some tokens: a shorter one is filled up behind its end, where its last token, which
    sees what is in front of it alone, does not look.
    """

    source: Source | None = None
    overwrites = False
    cache_bytes = 0

    def __init__(
        self,
        session: Session,
        functions: Mapping[str, FunctionSpec],
        weights: Mapping[str, Sequence[tvm_ffi.Tensor]],
        context: int,
        longest: int,
        slots: int = 1,
    ) -> None:
        main = functions[WHOLE]
        if slots != 1:
            raise UsageError(
                f"expected one slot of a model without caches, found {slots}: answer the prompts one after another"
            )
        self.context, self.longest = context, longest
        self._tokens: list[list[int]] = [[]]
        self._inputs = main.inputs
        self._highest = next(tensor.values for tensor in main.inputs if tensor.name != MASK)
        length = main.inputs[0].shape[1]
        self._least = main.ranges[length][0] if isinstance(length, str) else int(length)
        self._run = session.bind(WHOLE, weights[WHOLE])

    @property
    def filled(self) -> list[int]:
        """How many tokens are in each slot."""
        return [len(tokens) for tokens in self._tokens]

    def feed(self, tokens: Sequence[int], slot: int = 0) -> np.ndarray:
        """Logits [vocabulary] behind `tokens`, which follow those in the slot; raises as `Steps.feed` does."""
        ids = self.checked(tokens, slot)
        logits: np.ndarray = self._logits([*self._tokens[slot], *ids.tolist()])[-1]
        self._tokens[slot] += ids.tolist()
        return logits

    def feed_together(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Logits [vocabulary] by slot behind one more token in each slot of `tokens`."""
        return {slot: self.feed([token], slot) for slot, token in tokens.items()}

    def score(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [tokens, vocabulary] behind every one of `tokens`; the slots stay as they are."""
        ids = self.checked(tokens, None)
        if len(ids) > self.context:
            raise InputError(f"expected 1 to {self.context} tokens, found {len(ids)}: score them in parts")
        return self._logits(ids.tolist())

    def truncate(self, count: int, slot: int = 0) -> None:
        """Forget all but the first `count` tokens."""
        check_length(count, self.filled[slot])
        del self._tokens[slot][count:]

    def fork(self, slot: int, to: int) -> None:
        """Let `to` go on from what is in `slot`."""
        self._tokens[to] = list(self._tokens[slot])

    def checked(self, tokens: Sequence[int], slot: int | None) -> np.ndarray:
        """`tokens` as an array of ids that the model has, and that there is room for behind those in `slot`."""
        ids = ids_of(tokens, self._highest)
        return ids if slot is None else with_room(ids, self.filled[slot], self.context, self.longest)

    def _logits(self, tokens: Sequence[int]) -> np.ndarray:
        row = [*tokens, *[tokens[-1]] * (self._least - len(tokens))]
        given = []
        for tensor in self._inputs:
            array = aligned_empty((1, len(row)), numpy_dtype(tensor.dtype))
            array[0] = 1 if tensor.name == MASK else row
            given.append(to_tensor(array))
        logits: np.ndarray = to_arrays(self._run(given))[0][0][: len(tokens)]
        return logits
