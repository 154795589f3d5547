"""Whether a graph's weights are still those a program was made of.

Seen at every call: a weight that is another tensor, that torch changed in place (optimisers, `load_state_dict`), and,
past torch's own count of changes, a write through `.data`, `.detach().numpy()` or DLPack. Small weights are compared
whole, of large ones a few words: an update of a whole weight (an exponential moving average, clipping, a new
checkpoint) is seen, a write of single elements or rows (pruning) of a large one may not be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, starmap
from typing import Any

import numpy as np
import torch

_WHOLE = 1 << 18  # bytes of a graph's smallest weights that are compared at every call: 8 us
_OF_EACH = 1 << 13  # bytes that take as long to compare as to begin with a weight
_SAMPLES = 4  # words of each other weight that are compared
_WORD = 8  # bytes


class _AddressSpace:
    """All memory of this process, as an array of words: the word at address a is element a / 8 - 1."""

    __array_interface__ = {"data": (_WORD, True), "shape": (1 << 53,), "typestr": "<u8", "version": 3}


_MEMORY = np.asarray(_AddressSpace())
_differ = ctypes.PyDLL(None).memcmp
_differ.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)


class WatchedWeights:
    """The weights at positions `places` of a graph's arguments, as a program knows them."""

    def __init__(self, places: Sequence[int], args: Sequence[Any]) -> None:
        self.places = tuple(places)
        self.tensors = tuple(args[i].detach() for i in places)  # keeps the memory that is sampled
        self._counting = [t for t in self.tensors if not t.is_inference()]  # those that count their changes
        self._whole, sampled = _small(list(filter(None, map(_span, self.tensors))))
        self._words = np.array([word for span in sampled for word in _words(*span)], np.int64)
        self._addresses = self._addresses_of(args)
        self.seen()

    def moved(self, args: Sequence[Any]) -> bool:
        """Whether a weight is at another place than when this was made: it may be another tensor."""
        return self._addresses_of(args) != self._addresses

    def changed(self) -> bool:
        """Whether a value was written since `seen`, as far as can be told."""
        return (
            self._counts() != self._known_counts
            or any(starmap(_differ, self._copies))
            or self._sampled() != self._known_words
        )

    def seen(self) -> None:
        """Take the present values as known."""
        self._known_counts, self._known_words = self._counts(), self._sampled()
        self._copies = [(at, ctypes.string_at(at, size), size) for at, size in self._whole]

    def _counts(self) -> list[int]:
        return [tensor._version for tensor in self._counting]

    def _sampled(self) -> bytes:
        return _MEMORY.take(self._words).tobytes()

    def _addresses_of(self, args: Sequence[Any]) -> list[int]:
        return [args[i].data_ptr() for i in self.places]


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Address and bytes of the memory that `tensor` lies in; None without any, or on another device."""
    if not tensor.numel() or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    elements = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), elements * tensor.element_size()


def _small(spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The smallest spans, which take no longer than one of `_WHOLE` bytes together, and the others."""
    ordered = sorted(spans, key=lambda span: span[1])
    count = sum(total <= _WHOLE for total in accumulate(_OF_EACH + size for _, size in ordered))
    return ordered[:count], ordered[count:]


def _words(address: int, size: int) -> set[int]:
    """Elements of `_MEMORY` spread over so many bytes."""
    first = -(-address // _WORD)
    words = (address + size) // _WORD - first
    return {first - 1 + round(i * (words - 1) / (_SAMPLES - 1)) for i in range(_SAMPLES)} if words > 0 else set()
