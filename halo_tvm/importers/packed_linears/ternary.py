"""Weights of linears that are -1, 0 or 1 times one scale, four in a byte: BitNet.

    w[i * n / 4 + r, k] = ((q[r, k] >> 2 * i & 3) - 1) * scale,   i in 0..3
    bitnet   weight [n / 4, k] uint8, weight_scale of one element: the scale (`linear_class` autobitlinear), or what
             numbers are divided by (bitlinear)
Reference
    transformers (integrations/bitnet.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...weight_groups import Grid, dividing_group
from .method import Layer, Method, Shapes, Tensors

_PACKED = 4  # rows in one of bytes


class Ternary(Method):
    """`divides`: numbers are divided by the stored scale."""

    def __init__(self, *, divides: bool) -> None:
        self.divides = divides

    @property
    def markers(self) -> tuple[str, ...]:
        return ("weight_scale",)

    @property
    def parts(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        packed, scale = shapes.get("weight", ()), shapes["weight_scale"]
        if len(packed) != 2:
            raise ValueError(f"weight of shape {list(packed)}")
        if np.prod(scale) != 1:
            raise ValueError(f"weight_scale of shape {list(scale)}")
        return _TernaryLayer(packed[0] * _PACKED, packed[1], self.divides)


class _TernaryLayer(Layer):
    def __init__(self, n: int, k: int, divides: bool) -> None:
        super().__init__(n, k)
        self._divides = divides

    def grid(self, read: Callable[[str], np.ndarray]) -> Grid | None:
        group = dividing_group(self.k)
        return Grid(4, group, least=False) if group else None

    def floats(self, tensors: Tensors) -> np.ndarray:
        """`ValueError` for weights of other types than bytes, and for a fourth number."""
        packed = tensors["weight"]
        if packed.dtype != np.uint8:
            raise ValueError(f"weight of {packed.dtype}")
        numbers = np.concatenate([packed >> 2 * i & 3 for i in range(_PACKED)])
        if numbers.max(initial=0) > 2:
            raise ValueError("a weight of 2 among -1, 0 and 1")
        scale = tensors["weight_scale"].astype(np.float32).reshape(())
        weight = numbers.astype(np.float32) - 1
        return weight / scale if self._divides else weight * scale


def method_of(about: Mapping[str, object]) -> Method | None:
    """How BitNet's tools store a linear; None where weights are rounded at every call, or rows normed beforehand."""
    if about.get("quant_method") != "bitnet" or about.get("use_rms_norm"):
        return None
    kind = about.get("linear_class", "bitlinear")
    packed = kind == "bitlinear" or about.get("quantization_mode", "offline") == "offline"
    return Ternary(divides=kind == "bitlinear") if packed else None
