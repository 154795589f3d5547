"""What all tools have in common that store a linear's weight as something else than one tensor of floats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from ...weight_groups import Grid

Shapes = Mapping[str, tuple[int, ...]]
Tensors = Mapping[str, np.ndarray]
# Scales of activations and caches: those are found at run time here.
ACTIVATIONS = (
    *("input_scale", "input_zero_point", "input_global_scale", "input_scale_ub", "activation_scale"),
    *("output_scale", "output_zero_point", "k_scale", "v_scale"),
)


class Layer(ABC):
    """One linear: its weight [n, k], in tensors that are known by the ends of their names."""

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k

    def grid(self, read: Callable[[str], np.ndarray]) -> Grid | None:
        """What the weight's numbers lie on, by the tensors that `read` gives; None for none that a scheme has."""
        return None

    @abstractmethod
    def floats(self, tensors: Tensors) -> np.ndarray:
        """The weight in float32; `ValueError` with what does not fit."""


class Method(ABC):
    """How one tool stores its linears."""

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Ends of tensors' names: a linear that has one of them is stored so."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """The ends of all tensors' names, `markers` among them."""

    @property
    def of_experts(self) -> tuple[str, ...]:
        """The ends behind the name of a tensor of all experts that is stored in parts; () where none are."""
        return ()

    def check_experts(self, shapes: Shapes, shape: tuple[int, ...]) -> None:
        """`ValueError` unless parts of these shapes make a tensor of `shape`."""
        raise ValueError("parts of experts")

    def experts(self, tensors: Tensors, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor in float32; `ValueError` with what does not fit."""
        raise ValueError("parts of experts")

    @abstractmethod
    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        """What tensors of these shapes hold where [n, k] is expected; `ValueError` with what does not fit."""
