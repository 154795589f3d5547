"""Minimal filtering: several results of a kernel of three elements by fewer products than three each.

    y = A^T ((G g) * (B^T d)),   d: neighbours of the input, g: the kernel, y: neighbouring results
Along two axes one after the other, a tile of 6 x 6 gives 4 x 4 results by 36 products instead of 144, one of 4 x 4
gives 2 x 2 by 16 instead of 36. The transforms are written for anything that adds and multiplies: arrays, tensor
expressions, vectors of a kernel.
Numerics
    `FLOATS`: the points of interpolation are 0, +-3/4, +-3/2 and infinity. Small magnitudes near one keep the rounding
    errors of float32 at a few times those of the sum itself; with 0, +-1, +-2 they are five times larger
    `INTEGERS`: the points are 0, +-1 and infinity, and G is doubled, so that everything is an integer and the results
    are twice theirs along each axis: exact, and right as long as these fit, whatever overflows on the way
References
    arXiv:1509.09308 (the method), arXiv:1803.10986 (the choice of points)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KERNEL = 3  # elements of the kernel along an axis

_A, _B = 0.75, 1.5  # the points +-a, +-b; they and their powers are exact in binary
_A2, _B2 = _A * _A, _B * _B

Transform = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Filtering:
    """One choice of how many results a tile has, and of its points."""

    results: int  # of a tile along an axis
    of_kernel: Transform  # G g: the factors of a kernel of three elements
    of_input: Transform  # B^T d: the factors of as many neighbours of the input
    of_products: Transform  # A^T m: the results of as many products
    bits: int = 0  # by which results are to be shifted right, for each axis

    @property
    def tile(self) -> int:
        """Elements of the input that a tile reads along an axis, and products that it takes."""
        return self.results + KERNEL - 1

    def axes(self, factors: int) -> int:
        """Along how many axes a tile is transformed that has so many factors: two or one."""
        return 2 if factors == self.tile**2 else 1


def _of_kernel(g: Sequence[Any]) -> list[Any]:
    """G g: the six factors of a kernel of three elements."""
    even, odd = g[0] + _A2 * g[2], _A * g[1]
    wide_even, wide_odd = g[0] + _B2 * g[2], _B * g[1]
    near, far = 1 / (2 * _A2 * (_A2 - _B2)), 1 / (2 * _B2 * (_B2 - _A2))
    return [
        g[0] * (1 / (_A2 * _B2)),
        (even + odd) * near,
        (even - odd) * near,
        (wide_even + wide_odd) * far,
        (wide_even - wide_odd) * far,
        g[2],
    ]


def _of_input(d: Sequence[Any]) -> list[Any]:
    """B^T d: the six factors of six neighbours of the input."""
    even, odd = d[4] - d[2] * _B2, d[3] - d[1] * _B2
    wide_even, wide_odd = d[4] - d[2] * _A2, d[3] - d[1] * _A2
    return [
        d[4] - d[2] * (_A2 + _B2) + d[0] * (_A2 * _B2),
        even + odd * _A,
        even - odd * _A,
        wide_even + wide_odd * _B,
        wide_even - wide_odd * _B,
        d[5] - d[3] * (_A2 + _B2) + d[1] * (_A2 * _B2),
    ]


def _of_products(m: Sequence[Any]) -> list[Any]:
    """A^T m: the four results of six products."""
    even, odd = m[1] + m[2], m[1] - m[2]
    wide_even, wide_odd = m[3] + m[4], m[3] - m[4]
    return [
        m[0] + even + wide_even,
        odd * _A + wide_odd * _B,
        even * _A2 + wide_even * _B2,
        odd * (_A2 * _A) + wide_odd * (_B2 * _B) + m[5],
    ]


FLOATS = Filtering(4, _of_kernel, _of_input, _of_products)
INTEGERS = Filtering(
    2,
    lambda g: [2 * g[0], g[0] + g[1] + g[2], g[0] - g[1] + g[2], 2 * g[2]],
    lambda d: [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]],
    lambda m: [m[0] + m[1] + m[2], m[1] - m[2] - m[3]],
    bits=1,
)
