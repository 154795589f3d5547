"""Products with weights in groups of integers, as onnxruntime's MatMulNBits: integers and scales are those of GGUF.

Q8_0 is our scheme `w8g32a8g32`, Q4_0 `w4g32a8g32`. Rows are quantised by onnxruntime while it multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ._gguf_numbers import BLOCK, grouped_integers
from ._graph import CONTRIB, Graph

BITS = {"Q8_0": 8, "Q4_0": 4}  # onnxruntime multiplies integers only where zero stands in the middle
# Of an output's largest element. What rounding makes of a model is its own: only what cannot be rounding is refused.
TOLERANCES = {"Q8_0": 0.1, "Q4_0": 1.0}
_INTEGERS, _SCALES = ".integers", ".scales"
_IN_BYTES = 4  # accuracy_level: products of int8 rows


def takes(numbers: str, k: int) -> bool:
    """Whether a weight of depth `k` gets integers."""
    return bool(numbers) and k % BLOCK == 0


def product(g: Graph, x: str, name: str, k: int, n: int, *, transposed: bool) -> str:
    """x @ the weight `name` [k, n], or [n, k] as it is stored if `transposed`."""
    g.in_groups[name] = transposed
    return g.emit(
        "MatMulNBits",
        x,
        name + _INTEGERS,
        name + _SCALES,
        domain=CONTRIB,
        K=k,
        N=n,
        bits=BITS[g.spelling.numbers],
        block_size=BLOCK,
        accuracy_level=_IN_BYTES,
    )


def stored(name: str, weight: np.ndarray, numbers: str, *, transposed: bool) -> Mapping[str, np.ndarray]:
    """What `product` reads: integers [n, k / 32, bytes], two of four bits in one, and scales [n, k / 32]."""
    rows = np.ascontiguousarray(weight if transposed else weight.T)
    integers, scales = grouped_integers(rows, BITS[numbers], False)
    if BITS[numbers] == 4:
        integers = integers[..., ::2] | integers[..., 1::2] << 4
    return {name + _INTEGERS: integers.astype(np.uint8), name + _SCALES: scales[..., 0].astype(np.float32)}
