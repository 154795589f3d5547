"""What is made of the weights of convolutions: panels that windows, or tiles of them, are multiplied with."""

from __future__ import annotations

import numpy as np

from .winograd import FLOATS, INTEGERS, KERNEL, Filtering


def pack_convolution(weight: np.ndarray, *, groups: int, joined: int, nr: int, abreast: int = 1) -> np.ndarray:
    """[m, c / groups, *kernel] -> float32 [groups / joined, panels, prod(kernel) * joined * c / groups, nr].

    `joined` groups, which it divides, become one with zeros between them; columns behind the last are zero. Where
    groups lie `abreast`, [ceil(groups / abreast), 1, prod(kernel) * c / groups, nr]: a panel has the columns of so many
    groups, the last one those of the last ones.
    """
    if abreast > 1:
        columns = weight.reshape(weight.shape[0], weight.shape[1], -1).astype(np.float32)
        last = weight.shape[0] - nr
        panels = [columns[begin : begin + nr] for begin in (min(at, last) for at in range(0, weight.shape[0], nr))]
        return np.stack(panels).transpose(0, 3, 2, 1).reshape(len(panels), 1, -1, nr)
    m, inner = weight.shape[:2]
    outer, taps, wide = m // groups, int(np.prod(weight.shape[2:])), groups // joined
    panels = -(-outer * joined // nr)
    whole = np.zeros((wide, taps, joined, inner, panels * nr), np.float32)
    parts = weight.reshape(wide, joined, outer, inner, taps)
    for j in range(joined):
        whole[:, :, j, :, j * outer : (j + 1) * outer] = parts[:, j].transpose(0, 3, 2, 1)
    return whole.reshape(wide, taps * joined * inner, panels, nr).transpose(0, 2, 1, 3)


def pack_convolution_bf16(weight: np.ndarray, **how: int) -> np.ndarray:
    """The same in pairs along the depth, an even number: bfloat16 [.., depth / 2, nr, 2], rounded to nearest even."""
    import ml_dtypes  # a dependency of TVM

    return _side_by_side(pack_convolution(weight, **how).astype(ml_dtypes.bfloat16), 2)


def pack_convolution_int8(weight: np.ndarray, *, joined: int, nr: int, **how: int) -> np.ndarray:
    """The same of int8 in fours along the depth: int8 [groups / joined, panels, prod(kernel) * c' / 4, nr, 4].

    c' is the channels of `joined` groups in whole fours, with rows of zeros behind them.
    """
    taps, inner = int(np.prod(weight.shape[2:])), joined * weight.shape[1]
    panels = pack_convolution(weight, joined=joined, nr=nr, **how).astype(np.int8)
    panels = panels.reshape(*panels.shape[:2], taps, inner, nr)
    panels = np.pad(panels, [(0, 0)] * 3 + [(0, -inner % 4), (0, 0)])
    return _side_by_side(panels.reshape(*panels.shape[:2], -1, nr), 4)


def pack_winograd(weight: np.ndarray, *, axes: int, nr: int) -> np.ndarray:
    """[m, c, *front, 3, 3] -> float32 [panels, 36, prod(front) * c, nr]: factors of each kernel, made in float64.

    Along the last two axes, or with `axes` = 1 along the last one, by 6 factors.
    """
    return _winograd_panels(weight.astype(np.float64), FLOATS, axes, nr).astype(np.float32)


def pack_winograd_integers(weight: np.ndarray, *, axes: int, nr: int) -> np.ndarray:
    """[m, c, *front, 3, 3] of int8 -> int16 [panels, 16, prod(front) * c / 2, nr, 2]; along one axis by 4 factors."""
    return _side_by_side(_winograd_panels(weight.astype(np.int16), INTEGERS, axes, nr), 2)


def _side_by_side(panels: np.ndarray, count: int) -> np.ndarray:
    """[.., depth, nr] -> [.., depth / count, nr, count]: so many steps of a column side by side."""
    *outer, depth, nr = panels.shape
    return np.ascontiguousarray(panels.reshape(*outer, depth // count, count, nr).swapaxes(-1, -2))


def _winograd_panels(weight: np.ndarray, filtering: Filtering, axes: int, nr: int) -> np.ndarray:
    """[m, c, *front, 3, 3] -> factors [panels, factors, prod(front) * c, nr], zeros behind m."""
    m, c = weight.shape[:2]
    taps = weight.reshape(m, c, -1, *[KERNEL] * axes)
    factors = [taps]
    for _ in range(axes):
        made = [filtering.of_kernel([part[:, :, :, k] for k in range(KERNEL)]) for part in factors]
        factors = [factor for each in made for factor in each]
    panels, depth = -(-m // nr), taps.shape[2] * c
    whole = np.zeros((len(factors), depth, panels * nr), weight.dtype)
    for at, factor in enumerate(factors):
        whole[at, :, :m] = factor.transpose(2, 1, 0).reshape(depth, m)
    return np.ascontiguousarray(whole.reshape(len(factors), depth, panels, nr).transpose(2, 0, 1, 3))


def side_by_side(weight: np.ndarray, *, count: int, step: int) -> np.ndarray:
    """[m, c, *kernel] -> [count * m, c, *kernel but the last axis longer]: windows that begin `step` elements apart."""
    m, width = weight.shape[0], weight.shape[-1]
    made = np.zeros((count, *weight.shape[:-1], width + (count - 1) * step), weight.dtype)
    for at in range(count):
        made[at, ..., at * step : at * step + width] = weight
    return made.reshape(count * m, *made.shape[2:])
