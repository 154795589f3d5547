"""Activations of recurrent cells: NumPy and TIR side by side, each with its default alpha and beta.

relu max(x, 0)   tanh   sigmoid   softsign x / (1 + |x|)   softplus log(1 + e^x)
affine alpha x + beta          leaky_relu x or, below 0, alpha x      thresholded_relu x or, below alpha, 0
scaled_tanh alpha tanh(beta x) hard_sigmoid clamp(alpha x + beta, 0, 1)   elu x or, below 0, alpha (e^x - 1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from ....extremes import at_least, at_most


@dataclass(frozen=True)
class CellActivation:
    """`numpy` and `tir` take x, alpha, beta; None as default says that the parameter has no meaning."""

    numpy: Callable[[np.ndarray, float, float], np.ndarray]
    tir: Callable[[Expr, Expr, Expr], Expr]
    alpha: float | None = None
    beta: float | None = None


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _constant(x: Expr, value: float) -> Expr:
    return tirx.const(value, x.ty.dtype)


def _softplus(x: Expr) -> Expr:
    zero = _constant(x, 0.0)
    return tirx.max(x, zero) + tirx.log1p(tirx.exp(zero - tirx.abs(x)))


def _elu(x: Expr, alpha: Expr) -> Expr:
    # The exponent is clamped: the branch not taken must not overflow into a NaN.
    grown = alpha * (tirx.exp(tirx.min(x, _constant(x, 0.0))) - _constant(x, 1.0))
    return tirx.Select(x < _constant(x, 0.0), grown, x)


CELL_ACTIVATIONS: dict[str, CellActivation] = {
    "relu": CellActivation(lambda x, a, b: np.maximum(x, 0), lambda x, a, b: at_least(x, _constant(x, 0.0))),
    "tanh": CellActivation(lambda x, a, b: np.tanh(x), lambda x, a, b: tirx.tanh(x)),
    "sigmoid": CellActivation(lambda x, a, b: _sigmoid(x), lambda x, a, b: tirx.sigmoid(x)),
    "affine": CellActivation(lambda x, a, b: a * x + b, lambda x, a, b: a * x + b, 1.0, 0.0),
    "leaky_relu": CellActivation(
        lambda x, a, b: np.where(x < 0, a * x, x),
        lambda x, a, b: tirx.Select(x < _constant(x, 0.0), a * x, x),
        0.01,
    ),
    "thresholded_relu": CellActivation(
        lambda x, a, b: np.where(x < a, 0, x), lambda x, a, b: tirx.Select(x < a, _constant(x, 0.0), x), 1.0
    ),
    "scaled_tanh": CellActivation(lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: a * tirx.tanh(b * x), 1.0, 1.0),
    "hard_sigmoid": CellActivation(
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: at_least(at_most(a * x + b, _constant(x, 1.0)), _constant(x, 0.0)),
        0.2,
        0.5,
    ),
    "elu": CellActivation(
        lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), lambda x, a, b: _elu(x, a), 1.0
    ),
    "softsign": CellActivation(
        lambda x, a, b: x / (1 + np.abs(x)), lambda x, a, b: x / (tirx.abs(x) + _constant(x, 1.0))
    ),
    "softplus": CellActivation(lambda x, a, b: np.logaddexp(x, 0), lambda x, a, b: _softplus(x)),
}
