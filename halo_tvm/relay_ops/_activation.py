"""Activations that feed-forward operators name: as TE expression, as NumPy, as Relax call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..extremes import at_least


@dataclass(frozen=True)
class Activation:
    op: str | None  # the Relax operator a lift looks for; None where Relax has none
    relax: Callable[[relax.Expr], relax.Expr]
    te: Callable[[tvm.ir.Expr], tvm.ir.Expr]
    numpy: Callable[[np.ndarray], np.ndarray]


QUICK = 1.702  # quick_gelu(x) = x * sigmoid(1.702 * x)


def erf(x: np.ndarray) -> np.ndarray:
    """Error function at the precision of `x`; NumPy has none."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


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
