"""Weights of linears as floats of four bits (E2M1), two in a byte, with a scale for every 16 or 32 along k.

    w[n, k] = e2m1(q[n, k]) * scale[n, k / group] * whole,   the even k in a byte's low half
    nvfp4-pack-quantized (compressed-tensors)   weight_packed, weight_scale float8, weight_global_scale: 1 / whole
    mxfp4-pack-quantized (compressed-tensors)   weight_packed, weight_scale an exponent of two
    NVFP4 (modelopt)                            weight, weight_scale float8, weight_scale_2: whole
    mxfp4 (gpt-oss)                             of all experts [e, k, n] alone: NAME_blocks [e, n, k / 32, 16], and
                                                NAME_scales [e, n, k / 32], exponents of two
References
    OCP Microscaling Formats 1.0 (E2M1), compressed-tensors (nvfp4, mxfp4), TensorRT Model Optimizer (nvfp4_tensor.py)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .._bits import unpacked
from .method import Layer, Method, Shapes, Tensors
from .scaled import scales

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
NUMBERS = np.concatenate([_E2M1, -_E2M1])


class FourBitFloats(Method):
    """`whole`: the end of the name of one scale for all, if there is one, which may be `inverted`."""

    def __init__(self, numbers: str, whole: str | None, *, inverted: bool = False) -> None:
        self.numbers, self.whole, self.inverted = numbers, whole, inverted

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.whole or self.numbers,)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.numbers, "weight_scale", *filter(None, [self.whole]))

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        numbers, groups = (shapes.get(end, ()) for end in (self.numbers, "weight_scale"))
        if len(numbers) != 2 or len(groups) != 2 or not numbers[1] or not groups[1]:
            raise ValueError(f"{self.numbers} of shape {list(numbers)}, weight_scale of shape {list(groups)}")
        n, k = numbers[0], numbers[1] * 2
        if groups[0] != n or k % groups[1]:
            raise ValueError(f"weight_scale of shape {list(groups)} where [{n}, a part of {k}] belongs")
        if self.whole and np.prod(shapes[self.whole]) != 1:
            raise ValueError(f"{self.whole} of shape {list(shapes[self.whole])}")
        return _FourBitLayer(n, k, self)


class _FourBitLayer(Layer):
    def __init__(self, n: int, k: int, method: FourBitFloats) -> None:
        super().__init__(n, k)
        self._method = method

    def floats(self, tensors: Tensors) -> np.ndarray:
        """`ValueError` for numbers of other types than bytes."""
        method, packed = self._method, tensors[self._method.numbers]
        if packed.dtype != np.uint8:
            raise ValueError(f"{method.numbers} of {packed.dtype}")
        scale = scales(tensors["weight_scale"])
        if method.whole:
            whole = np.float32(tensors[method.whole].reshape(()))
            scale = scale / whole if method.inverted else scale * whole
        weight: np.ndarray = NUMBERS[unpacked(packed, 4)]
        grouped = weight.reshape(self.n, scale.shape[1], -1)
        grouped *= scale[:, :, None]
        return weight


class FourBitExperts(Method):
    """Experts in groups of 32; linears are as they are."""

    markers = ()
    parts = ()
    of_experts = ("_blocks", "_scales")

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        raise ValueError("a linear in parts")

    def check_experts(self, shapes: Shapes, shape: tuple[int, ...]) -> None:
        e, k, n = shape
        wanted = (e, n, k // 32)
        blocks, exponents = (shapes[end] for end in self.of_experts)
        if k % 32 or blocks != (*wanted, 16) or exponents != wanted:
            raise ValueError(f"_blocks of shape {list(blocks)}, _scales of shape {list(exponents)}")

    def experts(self, tensors: Tensors, shape: tuple[int, ...]) -> np.ndarray:
        blocks, exponents = (tensors[end] for end in self.of_experts)
        e, k, n = shape
        if {blocks.dtype, exponents.dtype} != {np.dtype(np.uint8)}:
            raise ValueError(f"_blocks of {blocks.dtype}, _scales of {exponents.dtype}")
        weight = np.empty((e, k, n), np.float32)
        for expert in range(e):  # one at a time: all of them are large
            values = NUMBERS[unpacked(blocks[expert].reshape(-1, 16), 4)].reshape(n, -1, 32)
            values *= scales(exponents[expert])[:, :, None]
            weight[expert] = values.reshape(n, k).T
        return weight


def method_of(about: Mapping[str, object]) -> Method | None:
    """How the tool that a quantization_config names stores a linear; None for what this module does not read."""
    name, form = about.get("quant_method"), about.get("format")
    if name == "modelopt" and about.get("quant_algo") == "NVFP4":
        return FourBitFloats("weight", "weight_scale_2")
    if name == "compressed-tensors" and form == "nvfp4-pack-quantized":
        return FourBitFloats("weight_packed", "weight_global_scale", inverted=True)
    if name == "compressed-tensors" and form == "mxfp4-pack-quantized":
        return FourBitFloats("weight_packed", None)
    if name == "mxfp4":
        return FourBitExperts()
    return None
