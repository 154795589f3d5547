"""Arguments without elements (a prefix of no tokens, no registers): programs make them themselves.

Nothing can be read of them, so a program does not take them; what counts is their shape, open sizes included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Place = tuple[int, int]  # which run-time tensor, and which of its axes


@dataclass(frozen=True)
class EmptyTensor:
    """One argument's shape; an open size is that of an axis of a run-time tensor."""

    shape: tuple[int | Place, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: torch.Tensor, symbols: Sequence[object], places: Mapping[object, Place]) -> EmptyTensor:
        """`symbols`: of each axis, as keys of `places`; sizes of others are fixed."""
        return cls(tuple(places.get(s, n) for s, n in zip(symbols, tensor.shape, strict=True)), tensor.dtype)

    def made(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.empty(self._sizes(inputs), dtype=self.dtype)

    def serves(self, tensor: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether `tensor` is what `made` gives for these run-time tensors."""
        return tensor.dtype == self.dtype and list(tensor.shape) == self._sizes(inputs)

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> list[int]:
        return [size if isinstance(size, int | torch.SymInt) else inputs[size[0]].shape[size[1]] for size in self.shape]
