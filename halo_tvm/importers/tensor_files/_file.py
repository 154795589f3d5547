"""A file of named tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping

import numpy as np


class TensorFile(ABC):
    """Shapes at once, numbers when they are asked for."""

    shapes: Mapping[str, tuple[int, ...]]

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """The tensor `name`; `UnsupportedModel` where the file does not hold what it says."""

    def same(self, name: str) -> Hashable:
        """What is equal for names of one and the same tensor."""
        return name
