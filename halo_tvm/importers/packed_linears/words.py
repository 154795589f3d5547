"""Weights of linears as integers in words of 32 bits, as GPTQ, AWQ and compressed-tensors pack them.

A weight [n, k] lies in several tensors under the name of its layer. Its numbers are
    w[n, k] = (q[n, k] - zero[n, g]) * scale[n, g],   g the group of k: of neighbours, unless the file orders them
    gptq                 qweight int32 [k / per, n], qzeros int32 [groups, n / per], scales [groups, n], g_idx int32 [k]
                         zero points are stored one less, but in the format "gptq_v2"
    awq                  qweight int32 [k, n / 8], qzeros int32 [groups, n / 8], scales [groups, n]; version "gemm"
    compressed-tensors   weight_packed int32 [n, k / per], weight_scale [n, groups], weight_zero_point int32
                         [n / per, groups], weight_g_idx int32 [k]
with `per` integers of 4 or 8 bits in a word of 32, lowest first; AWQ's columns have an order of their own in it.
References
    the packing of GPTQModel (nn_modules/qlinear), AutoAWQ (utils/packing_utils.py) and compressed-tensors (compressors)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...weight_groups import Grid, dividing_group
from .._bits import unpacked
from .method import Layer, Method, Shapes, Tensors

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where the columns 0 to 7 of a word lie in it


@dataclass(frozen=True)
class Stored:
    """What a layer's tensors hold: a weight [n, k], so many bits an integer, so many groups along k."""

    n: int
    k: int
    bits: int
    groups: int

    @property
    def per(self) -> int:
        """Integers in a word."""
        return 32 // self.bits

    @property
    def size(self) -> int:
        """Columns of a group; the last may have fewer."""
        return -(-self.k // self.groups)

    @property
    def neighbours(self) -> np.ndarray:
        """The group of every k where no file orders them."""
        return np.arange(self.k) // self.size


class Words(Method):
    """Packed integers, by the ends of their tensors' names."""

    integers: str
    scale: str
    zero: str
    order: str  # the group of every k; optional
    zeros_needed = True
    symmetric = False  # zero points say no more than that the middle of the integers means 0

    @abstractmethod
    def stored(self, shapes: Shapes) -> Stored:
        """What tensors of these shapes hold, by those of the integers and the scales; they may not fit each other."""

    @abstractmethod
    def expected(self, stored: Stored) -> Shapes:
        """The shapes that all tensors have which hold that."""

    @abstractmethod
    def unpack(self, tensors: Tensors, stored: Stored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The integers [n, k], zero points and scales [n, groups]."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.integers,)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.integers, self.scale, self.zero, self.order)

    def least(self, shapes: Shapes) -> bool:
        """Whether zero points are data."""
        return not self.symmetric

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        for end in (self.integers, self.scale):
            if len(shapes.get(end, ())) != 2:
                raise ValueError(f"{end} of shape {list(shapes.get(end, ()))}")
        if self.zeros_needed and self.zero not in shapes:
            raise ValueError(f"no {self.zero}")
        stored = self.stored(shapes)
        expected = self.expected(stored)
        wrong = next((end for end, shape in shapes.items() if end in expected and shape != expected[end]), None)
        if wrong:
            raise ValueError(f"{wrong} of shape {list(shapes[wrong])} where {list(expected[wrong])} belongs")
        if not 0 < stored.groups <= stored.k or (stored.k % stored.groups and self.order not in shapes):
            raise ValueError(f"{stored.groups} groups of {stored.k} columns")
        return _PackedLayer(self, stored, ordered=self.order in shapes, least=self.least(shapes))


class _PackedLayer(Layer):
    def __init__(self, method: Words, stored: Stored, *, ordered: bool, least: bool) -> None:
        super().__init__(stored.n, stored.k)
        self._method, self._stored, self._ordered, self._least = method, stored, ordered, least

    def grid(self, read: Callable[[str], np.ndarray]) -> Grid | None:
        """None where no group of a scheme is a part of the file's."""
        group = dividing_group(self._stored.size)
        if group is None:
            return None
        if self._ordered and not np.array_equal(read(self._method.order), self._stored.neighbours):
            return None
        return Grid(self._stored.bits, group, self._least)

    def floats(self, tensors: Tensors) -> np.ndarray:
        """`ValueError` for an order that names no group, and for floats where integers belong."""
        method, stored = self._method, self._stored
        for end, tensor in tensors.items():
            if end != method.scale and tensor.dtype.kind not in "iu":
                raise ValueError(f"{end} of {tensor.dtype}")
        numbers, zeros, scales = method.unpack(tensors, stored)
        order = tensors.get(method.order)
        if order is None:
            order = stored.neighbours
        elif order.min() < 0 or order.max() >= stored.groups:
            raise ValueError(f"{method.order} from {order.min()} to {order.max()}, of {stored.groups} groups")
        weight = numbers.astype(np.float32)
        weight -= zeros.astype(np.float32)[:, order]
        weight *= scales.astype(np.float32)[:, order]
        return weight


class Gptq(Words):
    """`above`: what is added to a stored zero point."""

    integers, scale, zero, order = "qweight", "scales", "qzeros", "g_idx"

    def __init__(self, *, above: int, symmetric: bool, bits: int) -> None:
        self.above, self.symmetric, self.bits = above, symmetric, bits

    def stored(self, shapes: Shapes) -> Stored:
        (words, n), (groups, _) = shapes[self.integers], shapes[self.scale]
        return Stored(n, words * 32 // self.bits, self.bits, groups)

    def expected(self, stored: Stored) -> Shapes:
        n, k, per, groups = stored.n, stored.k, stored.per, stored.groups
        return {
            self.integers: (k // per, n),
            self.scale: (groups, n),
            self.zero: (groups, n // per),
            self.order: (k,),
        }

    def unpack(self, tensors: Tensors, stored: Stored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        numbers = _spread(tensors[self.integers].T, stored.bits)
        zeros = _spread(tensors[self.zero], stored.bits).T.astype(np.int32) + self.above
        return numbers, zeros & ((1 << stored.bits) - 1), tensors[self.scale].T


class Awq(Words):
    integers, scale, zero, order = "qweight", "scales", "qzeros", "g_idx"

    def stored(self, shapes: Shapes) -> Stored:
        (k, words), (groups, _) = shapes[self.integers], shapes[self.scale]
        return Stored(words * 8, k, 4, groups)

    def expected(self, stored: Stored) -> Shapes:
        n, groups = stored.n, stored.groups
        return {self.integers: (stored.k, n // 8), self.scale: (groups, n), self.zero: (groups, n // 8)}

    def unpack(self, tensors: Tensors, stored: Stored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        def columns(words: np.ndarray) -> np.ndarray:
            placed = _spread(words, 4).reshape(len(words), -1, 8)
            return placed[:, :, _AWQ_PLACES].reshape(len(words), -1).T

        return columns(tensors[self.integers]), columns(tensors[self.zero]), tensors[self.scale].T


class CompressedTensors(Words):
    integers, scale, zero, order = "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"
    zeros_needed = False

    def __init__(self, *, bits: int) -> None:
        self.bits = bits

    def stored(self, shapes: Shapes) -> Stored:
        (n, words), (_, groups) = shapes[self.integers], shapes[self.scale]
        return Stored(n, words * 32 // self.bits, self.bits, groups)

    def expected(self, stored: Stored) -> Shapes:
        n, k, per, groups = stored.n, stored.k, stored.per, stored.groups
        return {
            self.integers: (n, k // per),
            self.scale: (n, groups),
            self.zero: (-(-n // per), groups),
            self.order: (k,),
            "weight_shape": (2,),
        }

    def unpack(self, tensors: Tensors, stored: Stored) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.zero in tensors:
            zeros = _spread(tensors[self.zero].T, stored.bits).T[: stored.n]
        else:
            zeros = np.full((stored.n, stored.groups), 1 << (stored.bits - 1), np.uint8)
        return _spread(tensors[self.integers], stored.bits), zeros, tensors[self.scale]

    @property
    def parts(self) -> tuple[str, ...]:
        return (*super().parts, "weight_shape")

    def least(self, shapes: Shapes) -> bool:
        return self.zero in shapes


def method_of(about: Mapping[str, object]) -> Method | None:
    """How the tool that a quantization_config names stores a linear; None for what this module does not read."""
    name = about.get("quant_method")
    bits = about.get("bits", about.get("w_bit"))
    if name == "gptq" and isinstance(bits, int) and bits in (4, 8):
        above = 0 if about.get("checkpoint_format") == "gptq_v2" else 1
        return Gptq(above=above, symmetric=about.get("sym") is True, bits=bits)
    if name == "awq" and bits == 4 and str(about.get("version", "gemm")).lower() == "gemm":
        return Awq()
    if name == "compressed-tensors" and about.get("format") == "pack-quantized":
        widths = _widths(about)
        for width in (4, 8):
            if widths == {width}:
                return CompressedTensors(bits=width)
    return None


def _widths(about: Mapping[str, object]) -> set[int | None]:
    """The bits of weights in all groups of layers that compressed-tensors speaks of."""
    groups = about.get("config_groups")
    layers = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [layer.get("weights") if isinstance(layer, Mapping) else None for layer in layers]
    bits = [found.get("num_bits") if isinstance(found, Mapping) else None for found in weights]
    return {number if isinstance(number, int) else None for number in bits}


def _spread(words: np.ndarray, bits: int) -> np.ndarray:
    """int32 [rows, m] -> uint8 [rows, m * 32 / bits], lowest bits first."""
    return unpacked(np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8), bits)
