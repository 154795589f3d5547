"""Activations that feed-forward operators name: as TE expression, as NumPy, as Relax call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, te, tirx

from ...extremes import at_least


@dataclass(frozen=True)
class Activation:
    op: str | None  # the Relax operator a lift looks for; None where Relax has none
    relax: Callable[[relax.Expr], relax.Expr]
    te: Callable[[tvm.ir.Expr], tvm.ir.Expr]
    numpy: Callable[[np.ndarray], np.ndarray]


QUICK = 1.702  # quick_gelu(x) = x * sigmoid(1.702 * x)


# Quotients of polynomials, the highest power first: of erf(x) / x in x^2 up to 0.5, of exp(x^2) * erfc(x) in x up to 4,
# and of the rest of its asymptotic series in 1 / x^2 beyond (W. J. Cody, Mathematics of Computation 23, 1969).
_ERF_NEAR = (
    (0.185777706184603153, 3.16112374387056560, 113.864154151050156, 377.485237685302021, 3209.37758913846947),
    (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062),
)
_ERFC_MIDDLE = (
    (
        *(2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295, 298.635138197400131),
        *(881.952221241769090, 1712.04761263407058, 2051.07837782607147, 1230.33935479799725),
    ),
    (
        *(1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019),
        *(3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942),
    ),
)
_ERFC_FAR = (
    (
        *(0.0163153871373020978, 0.305326634961232344, 0.360344899949804439, 0.125781726111229246),
        *(0.0160837851487422766, 6.58749161529837803e-4),
    ),
    (
        *(1.0, 2.56852019228982242, 1.87295284992346047, 0.527905102951428412),
        *(0.0605183413124413191, 0.00233520497626869185),
    ),
)


def erf(x: np.ndarray) -> np.ndarray:
    """Error function at the precision of `x`, computed in float64; NumPy has none."""
    wide = np.atleast_1d(np.asarray(x, np.float64))
    size = np.abs(wide)
    found = np.sign(wide)  # beyond 6; a NaN stays one
    near, middle, far = size <= 0.5, (size > 0.5) & (size <= 4), (size > 4) & (size < 6)
    found[near] = wide[near] * _quotient(_ERF_NEAR, size[near] ** 2)
    y = size[middle]
    found[middle] *= 1 - np.exp(-y * y) * _quotient(_ERFC_MIDDLE, y)
    z = 1 / size[far] ** 2
    rest = (1 / math.sqrt(math.pi) - z * _quotient(_ERFC_FAR, z)) / size[far]
    found[far] *= 1 - np.exp(-1 / z) * rest
    return found.reshape(np.shape(x)).astype(x.dtype)


def _quotient(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: np.ndarray) -> np.ndarray:
    above, below = (np.polyval(p, x) for p in polynomials)
    return above / below


def _gelu(x):
    return x * 0.5 * (1.0 + te.erf(x * tirx.const(math.sqrt(0.5), x.dtype)))


def _gelu_tanh(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return x * 0.5 * (1.0 + te.tanh(inner))


def _quick_gelu(x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(x, relax.op.sigmoid(relax.op.multiply(x, relax.const(QUICK, str(x.ty.dtype)))))


def _gelu_tanh_numpy(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _squared_relu(x: relax.Expr) -> relax.Expr:
    positive = relax.op.nn.relu(x)
    return relax.op.multiply(positive, positive)


def _squared_relu_te(x: tvm.ir.Expr) -> tvm.ir.Expr:
    positive = at_least(x, tirx.const(0, x.dtype))
    return positive * positive


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation("relax.nn.gelu", relax.op.nn.gelu, _gelu, lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))),
    "gelu_tanh": Activation("relax.nn.gelu_tanh", relax.op.nn.gelu_tanh, _gelu_tanh, _gelu_tanh_numpy),
    "quick_gelu": Activation(
        None, _quick_gelu, lambda x: x * te.sigmoid(tirx.const(QUICK, x.dtype) * x), lambda x: x * sigmoid(QUICK * x)
    ),
    "relu": Activation(
        "relax.nn.relu", relax.op.nn.relu, lambda x: at_least(x, tirx.const(0, x.dtype)), lambda x: np.maximum(x, 0)
    ),
    "relu2": Activation(None, _squared_relu, _squared_relu_te, lambda x: np.maximum(x, 0) ** 2),
    "silu": Activation("relax.nn.silu", relax.op.nn.silu, lambda x: x * te.sigmoid(x), lambda x: x * sigmoid(x)),
}
