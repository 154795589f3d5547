"""Weights of linears as numbers of eight bits, float8 or int8, and scales for the whole, for rows, columns or blocks.

    w[n, k] = (q[n, k] - zero[a, b]) * scale[a, b],   [a, b] the block of [n, k]
    fp8 (FineGrained)    weight, weight_scale_inv [blocks of n, blocks of k] or one: what q is multiplied with, despite
                         its name; blocks of `weight_block_size`, the last ones narrower
    fp8, fbgemm_fp8, modelopt (FP8)    weight, weight_scale: one, or [n, 1]
    compressed-tensors   weight, weight_scale: one, [n, 1], [n, groups of k] or blocks of `block_structure`;
                         weight_zero_point of that shape where int8 is not symmetric
A scale of unsigned integers or of float8 without mantissa (MXFP8) is an exponent of two, 127 above it.
References
    transformers (integrations/finegrained_fp8.py, fbgemm_fp8.py), compressed-tensors (naive_quantized, mxfp8),
    TensorRT Model Optimizer (export/quant_utils.py), OCP Microscaling Formats 1.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...weight_groups import Grid, dividing_group
from .method import Layer, Method, Shapes, Tensors

_COMPRESSED = ("float-quantized", "int-quantized", "naive-quantized", "mxfp8-quantized")
_EXPONENT_OF_ONE = 127
Block = tuple[int, int]


class Scaled(Method):
    """`block`: the rows and columns that a scale of blocks is for, where the configuration says it."""

    def __init__(self, block: Block | None = None, *, integers: bool = False) -> None:
        self.block, self.integers = block, integers

    @property
    def markers(self) -> tuple[str, ...]:
        return ("weight_scale", "weight_scale_inv")

    @property
    def parts(self) -> tuple[str, ...]:
        return ("weight", *self.markers, "weight_zero_point")

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        if len(shapes.get("weight", ())) != 2:
            raise ValueError(f"weight of shape {list(shapes.get('weight', ()))}")
        n, k = shapes["weight"]
        name = next(end for end in self.markers if end in shapes)
        scale = shapes[name]
        blocks = (1, 1) if np.prod(scale) == 1 else (*scale, 1)[:2] if len(scale) < 3 else scale
        if len(blocks) != 2:
            raise ValueError(f"{name} of shape {list(scale)}")
        sizes = [_size(count, whole, known) for count, whole, known in zip(blocks, (n, k), self.block or (None, None))]
        if sizes[0] is None or sizes[1] is None:
            raise ValueError(f"{name} of shape {list(scale)} beside weight of shape {[n, k]}")
        if shapes.get("weight_zero_point", scale) != scale:
            raise ValueError(f"weight_zero_point of shape {list(shapes['weight_zero_point'])}")
        return _ScaledLayer(self, (n, k), (sizes[0], sizes[1]), (blocks[0], blocks[1]), name)


class _ScaledLayer(Layer):
    def __init__(self, method: Scaled, shape: Block, block: Block, blocks: Block, scale: str) -> None:
        super().__init__(*shape)
        self._integers, self._block, self._blocks, self._scale = method.integers, block, blocks, scale

    def grid(self, read: Callable[[str], np.ndarray]) -> Grid | None:
        """Of int8, whose numbers are whole steps; those of float8 are not."""
        group = dividing_group(self._block[1])
        return Grid(8, group, least=False) if group and self._integers else None

    def floats(self, tensors: Tensors) -> np.ndarray:
        """`ValueError` for weights of other types than int8 and float8."""
        numbers = tensors["weight"]
        if numbers.dtype.itemsize != 1 or numbers.dtype == np.uint8:
            raise ValueError(f"weight of {numbers.dtype}")
        weight = numbers.astype(np.float32)
        if "weight_zero_point" in tensors:
            weight -= self._spread(tensors["weight_zero_point"].astype(np.float32))
        weight *= self._spread(scales(tensors[self._scale]))
        return weight

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """One value for each element [n, k] of the weight, or for rows and columns of one block."""
        spread = values.reshape(self._blocks)
        for axis, (size, whole) in enumerate(zip(self._block, (self.n, self.k))):
            if size != whole:
                spread = np.repeat(spread, size, axis)[(slice(None),) * axis + (slice(whole),)]
        return spread


def scales(stored: np.ndarray) -> np.ndarray:
    """Scales in float32: as they are, or of exponents of two."""
    if stored.dtype.kind == "u":
        return np.exp2(stored.astype(np.float32) - _EXPONENT_OF_ONE)
    return stored.astype(np.float32)


def method_of(about: Mapping[str, object]) -> Method | None:
    """How the tool that a quantization_config names stores a linear; None for what this module does not read."""
    name = about.get("quant_method")
    if name == "fp8":
        return Scaled(_pair(about.get("weight_block_size")))
    if name == "fbgemm_fp8" or (name == "modelopt" and about.get("quant_algo") == "FP8"):
        return Scaled()
    if name == "compressed-tensors" and about.get("format") in _COMPRESSED:
        weights = _weights(about)
        return Scaled(_pair(weights.get("block_structure")), integers=weights.get("type", "int") == "int")
    return None


def _weights(about: Mapping[str, object]) -> Mapping[str, object]:
    """What the first group of layers says about its weights."""
    groups = about.get("config_groups")
    for layer in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(layer, Mapping) and isinstance(weights := layer.get("weights"), Mapping):
            return weights
    return {}


def _pair(block: object) -> Block | None:
    if isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block):
        return block[0], block[1]
    return None


def _size(count: int, whole: int, known: int | None) -> int | None:
    """Elements of a block where `count` blocks are `whole` elements; None where they cannot be."""
    if count == 1:
        return whole
    if known is not None and -(-whole // known) == count:
        return known
    return whole // count if count and whole % count == 0 else None
