"""Discrete Fourier transforms of rows or of columns.

Shapes
    x [r, given * parts] float32, table [t] float32   ->   [r, outputs * results] float32
    x [r, given, inner * parts]                       ->   [r, outputs, inner * results], inner at least 8
    a number's real and imaginary part lie side by side; of real numbers (parts or results 1) there is the one alone
Computation
    X[k] = sum over n < used of x[n] exp(-2 pi i n k / length), for k < outputs; of an inverse one with the other sign
    and divided by `length`. One result: x is half a spectrum, whose rest is its mirror image, and X is real
Lifts
    none: importers call it (`importers.meaning.fourier`)
Rejects
    none: importers ask `Transform.is_served` first
Numerics
    float32; a relative error of 1e-7 times the logarithm of the length. `table` is `Transform.table()`. The first and
    the middle number of half a spectrum have the imaginary part 0
References
    J. W. Cooley, J. W. Tukey, An algorithm for the machine calculation of complex Fourier series, 1965; see
    `parts.fast_fourier`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te

from .operator import Operator, attrs_of
from .parts.fast_fourier import transformed
from .parts.fourier_planes import LANES
from .parts.fourier_products import by_products
from .parts.fourier_transform import Transform


class Fourier(Operator):
    """Numbers to their frequencies, or back, along rows or across them."""

    name = "fourier"
    fusible = False
    in_vectors = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:  # type: ignore[override]
        t, (x, table) = _of(attrs_of(call)), (arg.ty for arg in call.args)
        if x.ndim not in (2, 3) or table.ndim != 1 or any(str(ty.dtype) != "float32" for ty in (x, table)):
            raise ValueError(f"halo.fourier: expected float32 x of rank 2 or 3 and table [n], got {x} and {table}")
        rows, *sizes = x.shape.values
        inner = int(sizes[1]) // t.parts if x.ndim == 3 else 1
        wanted = [t.given, inner * t.parts] if x.ndim == 3 else [t.given * t.parts]
        found = [*map(int, sizes)], int(table.shape.values[0])
        if not t.is_served or found != (wanted, t.table_size) or x.ndim == 3 and inner < LANES:
            raise ValueError(
                f"halo.fourier: expected a length of small factors, {wanted} elements of at least {LANES} columns and "
                f"a table of {t.table_size}, got the length {t.length}, {found[0]} and {found[1]}"
            )
        shape = [t.outputs, inner * t.results] if x.ndim == 3 else [t.outputs * t.results]
        return relax.TensorType([rows, *shape], "float32")

    @staticmethod
    def compute(x: te.Tensor, table: te.Tensor, **attrs: Any) -> te.Tensor:
        return transformed(x, table, _of(attrs))

    @staticmethod
    def reference(x: np.ndarray, table: np.ndarray, **attrs: Any) -> np.ndarray:
        t = _of(attrs)
        parts = x.reshape(len(x), t.given, -1, t.parts)[:, : t.used]
        z = parts[..., 0] + (1j * parts[..., 1] if t.parts == 2 else 0)
        if t.results == 1:
            found = np.fft.irfft(z, n=t.length, axis=1)[..., None]
        else:
            z = (np.fft.ifft if t.inverse else np.fft.fft)(z, n=t.length, axis=1)[:, : t.outputs]
            found = np.stack([z.real, z.imag], -1)
        return found.reshape(len(x), -1) if x.ndim == 2 else found.reshape(len(x), t.outputs, -1)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], **attrs: Any) -> int:
        """5 n log2 n, as transforms are counted."""
        t = _of(attrs)
        transforms = math.prod(shapes[0]) // (t.given * t.parts)
        return int(transforms * 5 * t.numbers * math.log2(t.numbers))

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        transforms = (
            (9, Transform(400, 400, 400, 1, 201, 2, False)),  # of a real signal, every step of it
            (8, Transform(512, 400, 400, 1, 257, 2, False)),  # with zeros behind
            (3, Transform(96, 50, 49, 2, 96, 1, True)),  # to a real signal, of more than is read
            (17, Transform(70, 70, 70, 2, 70, 2, True)),  # factors 2, 5, 7
            (8, Transform(99, 99, 99, 1, 50, 2, False)),  # an odd length: 3, 3, 11
            (1, Transform(169, 169, 169, 2, 169, 2, False)),
            (2, Transform(64, 64, 64, 1, 64, 2, False)),  # the whole spectrum of a real signal
        )
        columns = (
            (2, 11, Transform(40, 40, 40, 1, 21, 2, False)),
            (3, 8, Transform(48, 25, 25, 2, 48, 1, True)),
            (1, 20, Transform(21, 19, 19, 2, 21, 2, True)),
            (1, 9, Transform(20, 17, 17, 1, 11, 2, False)),
        )
        return [
            *({"args": [(rows, t.given * t.parts), t.table()], "attrs": t.attributes} for rows, t in transforms),
            *({"args": [(r, t.given, n * t.parts), t.table()], "attrs": t.attributes} for r, n, t in columns),
        ]

    @classmethod
    def expand(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """Products with matrices of waves."""
        t, x = _of(attrs_of(call)), call.args[0]
        rows, *sizes = x.ty.shape.values
        if x.ty.ndim == 2:
            whole = bb.emit(relax.op.reshape(x, [rows, t.given, t.parts]))
            return relax.op.reshape(_products(bb, whole, t), [rows, t.outputs * t.results])
        inner = int(sizes[1]) // t.parts
        whole = bb.emit(relax.op.reshape(x, [rows, t.given, inner, t.parts]))
        found = _products(bb, bb.emit(relax.op.permute_dims(whole, [0, 2, 1, 3])), t)
        found = bb.emit(relax.op.permute_dims(found, [0, 2, 1, 3]))
        return relax.op.reshape(found, [rows, t.outputs, inner * t.results])


def _products(bb: relax.BlockBuilder, x: relax.Expr, t: Transform) -> relax.Expr:
    found = by_products(_Constants(bb), x, t)
    assert found is not None, "matrices of served lengths are small"
    return found


def _of(attrs: Mapping[str, object]) -> Transform:
    return Transform(**{name: value for name, value in attrs.items() if name != "layer"})  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Constants:
    """Tables as constants."""

    bb: relax.BlockBuilder

    def emit(self, expr: relax.Expr) -> relax.Expr:
        return self.bb.emit(expr)

    def te(self, function: Callable[..., te.Tensor], *args: object, name: str) -> relax.Expr:
        return self.bb.emit_te(function, *args, primfunc_name_hint=name)

    def table(self, shape: tuple[int, ...], load: Callable[[], np.ndarray], name: str) -> relax.Expr:
        return relax.const(load(), "float32")
