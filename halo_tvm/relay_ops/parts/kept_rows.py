"""How a cache keeps a row of a head: as it is, in float16, or in eight bits with a scale of its own.

In eight bits, int8 [d + 4]: d integers of -127 to 127, the nearest to x * 127 / m with m = max(largest |x|, 1e-20),
then the four bytes, lowest first, of the float32 m / 127 that each is to be multiplied with. What becomes of a row with
a NaN or an infinity is not defined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import ir, te, tirx

NARROW = ("float16", "int8")  # than float32, which is widened again where it is read
_SCALE_BYTES = 4
_LARGEST = 127
_TINY = 1e-20  # least magnitude of a row: 127 over it is a float32 number


def kept_columns(d: int, dtype: str) -> int:
    """The length of a row of `d` numbers in a cache of `dtype`."""
    return d + _SCALE_BYTES if dtype == "int8" else d


def kept(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rows [..., d] as a cache of `dtype` keeps them."""
    if dtype != np.int8:
        return rows.astype(dtype)
    rows = rows.astype(np.float32)
    most = np.maximum(np.abs(rows).max(-1, keepdims=True), np.float32(_TINY))
    integers = np.rint(rows * (np.float32(_LARGEST) / most)).astype(np.int8)
    return np.concatenate([integers, (most / np.float32(_LARGEST)).astype("<f4").view(np.int8)], -1)


def widened(rows: np.ndarray) -> np.ndarray:
    """Rows of a cache as numbers [..., d]; those of eight bits in float64."""
    if rows.dtype != np.int8:
        return rows
    scale = np.ascontiguousarray(rows[..., -_SCALE_BYTES:]).view("<f4")
    return rows[..., :-_SCALE_BYTES].astype(np.float64) * scale.astype(np.float64)


def widened_element(cache: te.Tensor, n: ir.Expr, j: ir.Expr, e: ir.Expr, x: ir.Expr) -> ir.Expr:
    """float32 cache[n, j, e, x] of a cache of any kind."""
    element = cache[n, j, e, x].astype("float32")
    if str(cache.dtype) != "int8":
        return element
    d = cache.shape[-1] - _SCALE_BYTES
    parts = [cache[n, j, e, d + i].astype("uint8").astype("uint32") << (8 * i) for i in range(_SCALE_BYTES)]
    bits = parts[0] | parts[1] | parts[2] | parts[3]
    return element * tirx.reinterpret("float32", bits)


def within(capacity: str, lines: Sequence[str], indent: int) -> str:
    """`lines` where the position `at` is one of the `capacity` of a cache, at an indent."""
    whole = [f"if T.int64(0) <= at and at < {capacity}:", *(f"    {line}" for line in lines)]
    return f"\n{' ' * indent}".join(whole)


def scratch(cache: str, capacity: str, d: int, reads: Sequence[str]) -> list[str]:
    """Lines in front of those of `narrow_stores`: what the block touches, and its thread's own memory for one row."""
    return [
        f"T.reads({', '.join(reads)})",
        f"T.writes({cache}[vn, T.int64(0):{capacity}, ve, T.int64(0):T.int64({kept_columns(d, 'int8')})])",
        f'numbers = T.alloc_buffer((T.int64({d}),), "float32", scope="local")',
        'most = T.alloc_buffer((T.int64(1),), "float32", scope="local")',
    ]


def narrow_stores(cache: str, d: int, fill: Sequence[str]) -> list[str]:
    """Lines of a block that keep a row in eight bits at `cache[vn, at, ve]`; `fill` writes all of numbers[:d]."""
    scale = f"most[0] / T.float32({_LARGEST})"
    return [
        *fill,
        f"most[0] = T.float32({_TINY})",
        f"for c in T.serial(T.int64({d})):",
        "    most[0] = T.max(most[0], T.fabs(numbers[c]))",
        f"for c in T.serial(T.int64({d})):",
        f'    {cache}[vn, at, ve, c] = T.cast(T.nearbyint(numbers[c] * (T.float32({_LARGEST}) / most[0])), "int8")',
        f"for c in T.serial(T.int64({_SCALE_BYTES})):",
        f"    {cache}[vn, at, ve, T.int64({d}) + c] = "
        f'T.cast(T.shift_right(T.reinterpret("uint32", {scale}), T.cast(c * T.int64(8), "uint32")), "int8")',
    ]
