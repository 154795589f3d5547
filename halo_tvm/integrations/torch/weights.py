"""Whether a graph's weights are still those a program was made of.

Seen at every call: a weight that is another tensor, that torch changed in place (optimisers, `load_state_dict`), and,
past torch's own count of changes, a write through `.data`, `.detach().numpy()` or DLPack that reaches one of the few
elements sampled here. So an update of a whole weight (an exponential moving average, clipping, a new checkpoint) is
seen; a write of single elements in that way may not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_SAMPLES = 4  # words of each weight that are compared at every call
_WORD = 8  # bytes


class _AddressSpace:
    """All memory of this process, as an array of words: the word at address a is element a / 8 - 1."""

    __array_interface__ = {"data": (_WORD, True), "shape": (1 << 53,), "typestr": "<u8", "version": 3}


_MEMORY = np.asarray(_AddressSpace())


class WatchedWeights:
    """The weights at positions `places` of a graph's arguments, as a program knows them."""

    def __init__(self, places: Sequence[int], args: Sequence[Any]) -> None:
        self.places = tuple(places)
        self.tensors = tuple(args[i].detach() for i in places)  # keeps the memory that is sampled
        self._counting = [t for t in self.tensors if not t.is_inference()]  # those that count their changes
        self._words = np.array([word for tensor in self.tensors for word in _words(tensor)], np.int64)
        self._addresses = self._addresses_of(args)
        self.seen()

    def moved(self, args: Sequence[Any]) -> bool:
        """Whether a weight is at another place than when this was made: it may be another tensor."""
        return self._addresses_of(args) != self._addresses

    def changed(self) -> bool:
        """Whether a value was written since `seen`, as far as can be told."""
        return self._counts() != self._known_counts or self._samples() != self._known_samples

    def seen(self) -> None:
        """Take the present values as known."""
        self._known_counts, self._known_samples = self._counts(), self._samples()

    def _counts(self) -> list[int]:
        return [tensor._version for tensor in self._counting]

    def _samples(self) -> bytes:
        return _MEMORY.take(self._words).tobytes()

    def _addresses_of(self, args: Sequence[Any]) -> list[int]:
        return [args[i].data_ptr() for i in self.places]


def _words(tensor: torch.Tensor) -> list[int]:
    """Elements of `_MEMORY` spread over `tensor`; none of one without a whole word, or on another device."""
    if not tensor.numel() or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return []
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = -(-tensor.data_ptr() // _WORD)
    words = (tensor.data_ptr() + span * tensor.element_size()) // _WORD - first
    return sorted({first - 1 + round(i * (words - 1) / (_SAMPLES - 1)) for i in range(_SAMPLES)}) if words > 0 else []
