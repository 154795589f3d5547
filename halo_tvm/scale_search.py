"""Scales of groups of four-bit integers that lose less than rounding to the extremes of a group does.

Shapes
    weight [groups, group, n] float32   importance [groups, group] float32 (None: all alike)
    start: scale, least [groups, n] float16   ->   scale, least of the same shapes
Computation
    of each group and column a scale and a least value with a small sum of   importance * (q * scale + least - w)**2
    over the group, where q is the nearest of the integers to (w - least) / scale. From several first steps, q and the
    least squares of (scale, least) for that q take turns; a try counts as it is stored, rounded to float16. The start
    is kept where none is better, so numbers that lie on its grid stay on it.
    Without least values w is near (q - 8) * scale.
Numerics
    float32; groups whose start is not finite or has no scale keep it
References
    arXiv:2309.05516 and arXiv:2306.00978 search for scales, too; mean squares of the inputs as importance are the
    diagonal of the Hessian of arXiv:2210.17323
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_STEPS_LEAST = (13.0, 14.0, 15.0, 16.0, 17.0)  # first steps: the span of a group over each
_STEPS = (6.75, 7.25, 7.75, 8.25, 9.0)  # and without least values its largest magnitude
_TURNS = 2
_BLOCK = 1 << 18  # numbers at once: the arrays of a turn stay in a core's cache, and each call has much to do
_LEAST_SHARE = np.float32(1e-4)  # of the mean importance: an input that the text never used still counts a little


def searched(
    weight: np.ndarray, importance: np.ndarray | None, scale: np.ndarray, least: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Scales, and least values where `least` starts with some, for `weight`; see the module."""
    groups, group, n = weight.shape
    h = np.ones((groups, group), np.float32) if importance is None else importance.astype(np.float32)
    h = np.maximum(h / max(float(h.mean()), 1e-30), _LEAST_SHARE)[:, None]  # [groups, 1, group]: rows of a product
    scale, least = scale.copy(), None if least is None else least.copy()
    wide = max(1, _BLOCK // (groups * group))

    def search(begin: int) -> None:
        part = np.s_[:, begin : begin + wide]
        block = np.ascontiguousarray(weight[:, :, begin : begin + wide])
        start = None if least is None else least[part]
        scale[part], found = _Block(block, h, scale[part], start).best()
        if least is not None:
            least[part] = found

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # NumPy lets others run while it computes
        list(threads.map(search, range(0, n, wide)))
    return scale, least


class _Block:
    """Some columns of a weight: `h` [groups, 1, group] beside `w` [groups, group, columns]."""

    def __init__(self, w: np.ndarray, h: np.ndarray, scale: np.ndarray, least: np.ndarray | None) -> None:
        self.w, self.h = w, h
        self.hw = h.swapaxes(1, 2) * w
        self.weight, self.first = h.sum(-1), (h @ w)[:, 0]  # sums of h [groups, 1] and of h * w [groups, columns]
        self.scale, self.least = scale, least
        self.low, self.high = (0.0, 15.0) if least is not None else (-8.0, 7.0)
        self._q, self._e = np.empty_like(w), np.empty_like(w)

    def best(self) -> tuple[np.ndarray, np.ndarray | None]:
        with np.errstate(all="ignore"):
            usable = np.isfinite(self.scale) & (self.scale != 0)
            if self.least is not None:
                usable &= np.isfinite(self.least)
            smallest = np.where(usable, self._error(self.scale, self.least), -np.inf)
            low, high = self.w.min(1), self.w.max(1)
            for steps in _STEPS if self.least is None else _STEPS_LEAST:
                if self.least is None:
                    scale, least = np.where(high > -low, high, low) / np.float32(-steps), None
                else:
                    scale = (high - low) / np.float32(steps)
                    least = (low + high - 15 * scale) / 2
                for _ in range(_TURNS):
                    self._round(scale, least)
                    scale, least = self._least_squares(scale, least)
                scale = scale.astype(np.float16)
                least = None if least is None else least.astype(np.float16)
                error = self._error(scale, least)
                better = (error < smallest) & (scale != 0)
                smallest = np.where(better, error, smallest)
                self.scale = np.where(better, scale, self.scale)
                if least is not None and self.least is not None:
                    self.least = np.where(better, least, self.least)
        return self.scale, self.least

    def _round(self, scale: np.ndarray, least: np.ndarray | None) -> np.ndarray:
        """The integers for a scale and a least value, left in `_q`."""
        inverse = (1 / scale.astype(np.float32))[:, None]
        if least is None:
            np.multiply(self.w, inverse, out=self._q)
        else:
            np.subtract(self.w, least.astype(np.float32)[:, None], out=self._q)
            np.multiply(self._q, inverse, out=self._q)
        np.rint(self._q, out=self._q)
        return np.clip(self._q, self.low, self.high, out=self._q)

    def _error(self, scale: np.ndarray, least: np.ndarray | None) -> np.ndarray:
        q = self._round(scale, least)
        np.multiply(q, scale.astype(np.float32)[:, None], out=self._e)
        np.subtract(self._e, self.w, out=self._e)
        if least is not None:
            np.add(self._e, least.astype(np.float32)[:, None], out=self._e)
        np.square(self._e, out=self._e)
        lost: np.ndarray = self.h @ self._e
        return lost[:, 0]

    def _least_squares(self, scale: np.ndarray, least: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """The best scale and least value for the integers in `_q`; those given where these do not decide."""
        np.multiply(self._q, self.hw, out=self._e)
        product = self._e.sum(1)
        np.square(self._q, out=self._e)
        square = (self.h @ self._e)[:, 0]
        if least is None:
            return np.where(square > 0, product / square, scale), None
        plain = (self.h @ self._q)[:, 0]
        determinant = self.weight * square - plain * plain
        decided = determinant > 1e-6 * self.weight * square
        found = np.where(decided, (self.weight * product - plain * self.first) / determinant, scale)
        return found, np.where(decided, (self.first - found * plain) / self.weight, least)
