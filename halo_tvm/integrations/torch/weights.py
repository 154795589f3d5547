"""Whether a graph's weights are still those a program was made of.

Seen at every call: a weight that is another tensor, that torch changed in place (optimisers, `load_state_dict`), and,
past torch's own count of changes, a write through `.data`, `.detach().numpy()` or DLPack that reaches one of the few
elements sampled here. So an update of a whole weight (an exponential moving average, clipping, a new checkpoint) is
seen; a write of single elements in that way may not be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

_SAMPLES = 4  # words of each weight that are compared at every call


class WatchedWeights:
    """The weights at positions `places` of a graph's arguments, as a program knows them."""

    def __init__(self, places: Sequence[int], args: Sequence[Any]) -> None:
        self.places = tuple(places)
        self.tensors = tuple(args[i].detach() for i in places)  # keeps the memory that is sampled
        self._words = [word for tensor in self.tensors for word in _words(tensor)]
        self._addresses = self._addresses_of(args)
        self.seen()

    def moved(self, args: Sequence[Any]) -> bool:
        """Whether a weight is at another place than when this was made: it may be another tensor."""
        return self._addresses_of(args) != self._addresses

    def changed(self) -> bool:
        """Whether a value was written since `seen`, as far as can be told."""
        return self._state() != self._known

    def seen(self) -> None:
        """Take the present values as known."""
        self._known = self._state()

    def _state(self) -> tuple[list[int], list[int]]:
        return [_version(t) for t in self.tensors], [word.value for word in self._words]

    def _addresses_of(self, args: Sequence[Any]) -> list[int]:
        return [args[i].data_ptr() for i in self.places]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference tensors do not count their changes


def _words(tensor: torch.Tensor) -> list[ctypes.c_uint64]:
    """Words spread over the memory of `tensor`; none of one that is smaller than a word or on another device."""
    if not tensor.numel() or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return []
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    words = span * tensor.element_size() // 8
    places = sorted({round(i * (words - 1) / (_SAMPLES - 1)) for i in range(_SAMPLES)}) if words else []
    return [ctypes.c_uint64.from_address(tensor.data_ptr() + 8 * place) for place in places]
