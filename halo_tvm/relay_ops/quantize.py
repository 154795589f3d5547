"""Rows as unsigned 8-bit integers, one scale a row: the activation of an int8 linear.

Shapes
    x [..., k] float32   ->   q [..., k] uint8, scale [...] float32
Computation
    a = max(max_k |x[..., k]|, 1e-20)
    scale[...] = a / 127
    q[..., k] = int32(nearbyint(x[..., k] * (127 / a))) + 128
    The zero point is 128: x is about (q - 128) * scale. A row of zeros is 128 everywhere.
Lifts
    none: the pass `quantise` makes it, one for all linears that read the same x
Rejects
    none
Numerics
    exact by definition: every step is one float32 operation, rounded to nearest, ties to even, and none is a
    product whose sum a compiler may contract. The integers are the same on every instruction set, and for every
    number of rows. A row with an infinity has an infinite scale, one with a NaN the scale NaN, so that what is made
    of it is NaN; its integers are not defined.
References
    none: the definition
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from .operator import Operator

ZERO_POINT = 128
LARGEST = 127.0  # of an int8 without its lowest value
TINY = 1e-20  # least magnitude of a row: its reciprocal, and that times 127, are finite float32 numbers
_TINY = int(np.float32(TINY).view(np.int32))


class Quantize(Operator):
    """Per-row symmetric quantisation with the zero point 128."""

    name = "quantize"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TupleType:
        x = call.args[0].ty
        if len(call.args) != 1 or str(x.dtype) != "float32" or not isinstance(x.shape, relax.ShapeExpr) or x.ndim < 1:
            found = ", ".join(str(arg.ty) for arg in call.args)
            raise ValueError(f"halo.quantize: expected one float32 tensor of rows of known shape, got {found}")
        rows = list(x.shape.values)
        return relax.TupleType([relax.TensorType(rows, "uint8"), relax.TensorType(rows[:-1], "float32")])

    @staticmethod
    def compute(x: te.Tensor) -> list[te.Tensor]:
        k = te.reduce_axis((0, x.shape[-1]), "k")
        # Magnitudes are in the order of their bits, where NaN is above all: the largest is found among integers.
        largest = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda dtype: tirx.const(_TINY, dtype), name="largest")
        rest = tirx.const(0x7FFFFFFF, "int32")  # without the sign

        def magnitude(*i):
            return largest(tirx.reinterpret("int32", x[(*i, k)]) & rest, axis=k)

        bound = te.compute(x.shape[:-1], magnitude, name="bound")
        most = tirx.const(LARGEST, "float32")
        scale = te.compute(x.shape[:-1], lambda *i: tirx.reinterpret("float32", bound[i]) / most, name="scale")
        inverse = te.compute(x.shape[:-1], lambda *i: most / tirx.reinterpret("float32", bound[i]), name="inverse")

        def integer(*i):
            rounded = te.nearbyint(x[i] * inverse[i[:-1]]).astype("int32")
            return (rounded + tirx.const(ZERO_POINT, "int32")).astype("uint8")

        q = te.compute(x.shape, integer, name="quantize", attrs={"halo.op": "quantize"})
        return [q, scale]

    @staticmethod
    def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The integers are defined by float32 arithmetic, so that is what a float64 x is taken back to.
        x = x.astype(np.float32)
        bound = np.maximum(np.abs(x).max(-1, initial=0.0), np.float32(TINY))
        rounded = np.rint(x * (np.float32(LARGEST) / bound)[..., None])
        return (rounded.astype(np.int32) + ZERO_POINT).astype(np.uint8), bound / np.float32(LARGEST)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]]) -> int:
        return 4 * int(np.prod(shapes[0]))

    @staticmethod
    def cases():
        rng = np.random.default_rng(0)
        uneven = rng.standard_normal((3, 5, 67)).astype("float32")
        uneven[0, 0] = 0.0  # a row of zeros
        uneven[1] *= 1e-30  # smaller than the least magnitude
        uneven[2] *= 1e30
        ties = np.arange(-127, 128, dtype="float32")[None] * np.float32(0.5)
        ties[0, 0] = 127.0  # halves are rounded to even
        return (
            {"args": [(5, 64)], "attrs": {}},
            {"args": [uneven], "attrs": {}},
            {"args": [ties], "attrs": {}},
            {"args": [(1, 3)], "attrs": {}},
        )
