"""Signals: discrete Fourier transforms, windows, mel filters. A transform is a product with a matrix of waves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import ir, relax, te, tirx

from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim, prim
from . import _folding
from ._node import Node
from ._registry import converter

_LARGEST_MATRIX = 1 << 22  # elements; longer transforms compute their waves


@converter("DFT", since=17)
def dft_17(node: Node) -> relax.Expr:
    return _dft(node, int(node.attr("axis", 1)))


@converter("DFT", since=20)
def dft(node: Node) -> relax.Expr:
    return _dft(node, int(node.scalar(2)) if node.has(2) else -2)


def _dft(node: Node, axis: int) -> relax.Expr:
    shape, inverse, onesided = list(node.shape(0)), bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    rank = len(shape)
    axis = axis % rank
    node.refuse_unless(axis != rank - 1, "expected an axis in front of the last, which holds real and imaginary parts")
    node.refuse_unless(shape[-1] in (1, 2), f"expected a last axis of 1 or 2, found {shape[-1]}")
    if node.has(1):
        (length,) = node.dims(1)
    else:
        length = node.sizes.simplify((shape[axis] - 1) * 2) if inverse and onesided else shape[axis]
    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    x = node.x(0)
    if axis != rank - 2:
        x = node.emit(relax.op.permute_dims(x, order))
    out = transform(node, x, length, inverse, onesided)
    if axis != rank - 2:
        out = node.emit(relax.op.permute_dims(out, [order.index(i) for i in range(rank)]))
    return out


def transform(node: Node, x: relax.Expr, length: Dim, inverse: bool, onesided: bool) -> relax.Expr:
    """The transform of length `length` along the axis in front of the last, which holds 1 or 2 parts."""
    *lead, given, parts = expr_shape(x)
    dtype = str(x.ty.dtype)
    half = node.sizes.simplify(node.sizes.floordiv(length, 2) + 1)
    back = inverse and onesided  # half a spectrum to a real signal
    outputs = half if onesided and not inverse else length
    results = 1 if back else 2
    used = node.sizes.minimum(given, half if back else length)
    sizes = (given, used, length, outputs)
    if (
        all(isinstance(s, int) for s in sizes)
        and given * parts * outputs * results <= _LARGEST_MATRIX
        and dtype == "float32"
    ):
        flat = node.emit(relax.op.reshape(x, [*lead, given * parts]))
        name = f"dft_{given}x{parts}_{length}_{outputs}x{results}_{int(inverse)}"
        matrix = Constant(
            (given * parts, outputs * results),
            dtype,
            lambda: _matrix(given, used, parts, length, outputs, results, inverse, back),
            name,
        )
        product = node.emit(relax.op.matmul(flat, node.graph.expr_of(matrix)))
        return node.emit(relax.op.reshape(product, [*lead, outputs, results]))
    return node.te(_summed(parts, results, inverse, back), x, used, length, outputs)


def _matrix(
    given: int, used: int, parts: int, length: int, outputs: int, results: int, inverse: bool, back: bool
) -> np.ndarray:
    """[given * parts, outputs * results]: input part p of element n to output part q of element k."""
    n, k = np.arange(given)[:, None], np.arange(outputs)[None, :]
    angle = (2 * np.pi / length) * ((n * k) % length)
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if not inverse else 1)
    share = np.where(n < used, 1.0, 0.0)
    if back:
        ends = (n == 0) | ((length % 2 == 0) & (n == length // 2))
        share = share * np.where(ends, 1.0, 2.0)
    share = share / length if inverse else share
    out = np.zeros((given, parts, outputs, results))
    out[:, 0, :, 0] = cos * share
    if results == 2:
        out[:, 0, :, 1] = sin * share
    if parts == 2:
        out[:, 1, :, 0] = -sin * share
        if results == 2:
            out[:, 1, :, 1] = cos * share
    return out.reshape(given * parts, outputs * results).astype(np.float32)


def _summed(parts: int, results: int, inverse: bool, back: bool) -> Callable:
    """The same sums with waves from a table of one period, for lengths that are symbolic or long."""

    def compute(x: te.Tensor, used: Dim, length: Dim, outputs: Dim) -> te.Tensor:
        wide = "float64"
        used, length, outputs = prim(used), prim(length), prim(outputs)
        step = tirx.const(2 * math.pi, wide) / length.astype(wide)
        cos = te.compute([length], lambda i: te.cos(i.astype(wide) * step), name="cos")
        sin = te.compute([length], lambda i: te.sin(i.astype(wide) * step), name="sin")
        n = te.reduce_axis((0, used), "n")
        sign = 1.0 if inverse else -1.0

        def element(*index):
            lead, k, part = index[:-2], index[-2], index[-1]
            at = tirx.floormod(n * k, length)
            real = x[(*lead, n, 0)].astype(wide)
            c, s = cos[at], sin[at] * tirx.const(sign, wide)
            first, second = real * c, real * s
            if parts == 2:
                imaginary = x[(*lead, n, 1)].astype(wide)
                first, second = first - imaginary * s, second + imaginary * c
            value = first if results == 1 else tirx.Select(part == 0, first, second)
            if back:
                ends = tirx.any(n == 0, n * 2 == length)
                value = value * tirx.Select(ends, tirx.const(1.0, wide), tirx.const(2.0, wide))
            return te.sum(value, axis=n)

        total = te.compute([*x.shape[:-2], outputs, results], element, name="transform")
        scale = (lambda v: v / length.astype(wide)) if inverse else (lambda v: v)
        return te.compute(total.shape, lambda *i: scale(total[i]).astype(x.dtype), name="scaled")

    return compute


@converter("STFT", since=17)
def stft(node: Node) -> relax.Expr:
    """Frames of the signal, weighted by the window, each transformed."""
    shape = list(node.shape(0))
    node.refuse_unless(
        len(shape) == 3 and shape[2] in (1, 2), f"expected a signal [batch, length, 1 or 2], found {shape}"
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
            value = x[b, f * step + n, p]
            return value * window[0][n] if window else value

        return te.compute([x.shape[0], prim(count), prim(width), shape[2]], element, name="frames")

    x = node.te(framed, node.x(0), frames, width, *([node.x(2)] if node.has(2) else []))
    return transform(node, x, width, False, onesided)


@converter("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window(node: Node) -> relax.Expr:
    """A sum of cosines over one period; not periodic: the last element is as the first."""
    import onnx

    (size,) = node.runtime_dims(0)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.attr("output_datatype", 1))).name
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
