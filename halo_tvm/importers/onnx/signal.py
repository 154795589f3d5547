"""Signals: discrete Fourier transforms, windows, mel filters."""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax, te, tirx

from ..meaning.fourier import transform
from ..meaning.sizes import Dim, prim
from . import _folding
from ._node import Node
from ._registry import converter
from ._values import element_dtype


@converter("DFT", since=17)
def dft_17(node: Node) -> relax.Expr:
    return _dft(node, int(node.attr("axis", 1)))


@converter("DFT", since=20)
def dft(node: Node) -> relax.Expr:
    return _dft(node, int(node.scalar(2)) if node.has(2) else -2)


def _dft(node: Node, axis: int) -> relax.Expr:
    shape, inverse, onesided = list(node.shape(0)), bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    rank = len(shape)
    axis = node.axis(axis, rank)
    node.refuse_unless(axis != rank - 1, "expected an axis in front of the last, which holds real and imaginary parts")
    node.refuse_unless(shape[-1] in (1, 2), f"expected a last axis of 1 or 2, found {shape[-1]}")
    if node.has(1):
        (length,) = node.dims(1)
    else:
        length = node.sizes.simplify((shape[axis] - 1) * 2) if inverse and onesided else shape[axis]
    return transform(node, node.x(0), length, inverse, onesided, axis)


@converter("STFT", since=17)
def stft(node: Node) -> relax.Expr:
    """Frames of the signal, weighted by the window, each transformed.

    A signal [batch, length] is real, as onnxruntime takes it, though the specification has a last dimension of 1.
    """
    shape = list(node.shape(0))
    parts = shape[2] if len(shape) == 3 else 1
    node.refuse_unless(
        len(shape) in (2, 3) and parts in (1, 2), f"expected a signal [batch, length, 1 or 2], found {shape}"
    )
    (step,) = node.dims(1)
    if node.has(3):
        (width,) = node.dims(3)
    else:
        width = node.shape(2)[0] if node.has(2) else shape[1]
    node.refuse_unless(isinstance(step, int) and step > 0, "expected a known frame_step above 0")
    onesided = bool(node.attr("onesided", 1))
    frames = node.sizes.simplify(node.sizes.floordiv(shape[1] - width, step) + 1)

    def framed(x: te.Tensor, count: Dim, width: Dim, *window: te.Tensor) -> te.Tensor:
        def element(b, f, n, p):
            value = x[b, f * step + n, p] if len(shape) == 3 else x[b, f * step + n]
            return value * window[0][n] if window else value

        return te.compute([x.shape[0], prim(count), prim(width), parts], element, name="frames")

    x = node.te(framed, node.x(0), frames, width, *([node.x(2)] if node.has(2) else []))
    return transform(node, x, width, False, onesided)


@converter("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window(node: Node) -> relax.Expr:
    """A sum of cosines over one period; not periodic: the last element is as the first."""
    (size,) = node.runtime_dims(0)
    dtype = element_dtype(node.attr("output_datatype", 1))
    node.refuse_unless(
        dtype in ("float32", "float64", "float16"), f"expected a floating output_datatype, found {dtype}"
    )
    periodic = bool(node.attr("periodic", 1))
    shares = {
        "HannWindow": (0.5, -0.5, 0.0),
        "HammingWindow": (25 / 46, 25 / 46 - 1, 0.0),
        "BlackmanWindow": (0.42, -0.5, 0.08),
    }[node.op]

    def compute(size: Dim) -> te.Tensor:
        def element(i):
            period = prim(size).astype("float64") - tirx.const(0.0 if periodic else 1.0, "float64")
            angle = i.astype("float64") * tirx.const(2 * math.pi, "float64") / period
            total: ir.Expr = tirx.const(shares[0], "float64") + tirx.const(shares[1], "float64") * te.cos(angle)
            if shares[2]:
                total = total + tirx.const(shares[2], "float64") * te.cos(angle * tirx.const(2.0, "float64"))
            return total.astype(dtype)

        return te.compute([prim(size)], element, name="window")

    return node.te(compute, size)


@converter("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> np.ndarray:
    """Triangular filters; all inputs are numbers that must be known."""
    return _folding.evaluate(node, [node.constant(i) for i in range(5)])[0]


@converter("ImageDecoder", since=20)
def image_decoder(node: Node) -> object:
    node.refuse("reading image files is no work for a compiled model: decode in front of it")
