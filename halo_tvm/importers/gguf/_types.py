"""The number formats of GGUF tensors: their blocks, and what their bytes mean as float32.

A block is so many neighbours along the innermost dimension with what they share: a scale d, for some a least value m,
both float16. "K" formats have blocks of 256 in parts of 16 or 32 whose own scales are small integers times d.
References
    ggml's block structures, ggml/src/ggml-common.h in github.com/ggml-org/ggml
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...weight_groups import Grid
from ..packed_linears.four_bit_floats import NUMBERS
from ._codebooks import looked_up

Floats = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TensorType:
    """A format: `size` bytes hold `block` numbers; `floats` gives [blocks, block] float32 of [blocks, size] bytes."""

    name: str
    block: int
    size: int
    floats: Floats | None = None  # None: listed, and refused
    grid: Grid | None = None  # the smallest of a scheme that holds its numbers, or nearly
    books: bool = False  # its numbers are those of the package gguf


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, [blocks, 1] float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _scaled(step: np.ndarray, numbers: np.ndarray, least: np.ndarray | None = None) -> np.ndarray:
    """step * numbers, and the least value where there is one, in float32."""
    found: np.ndarray = step * numbers
    return found if least is None else np.asarray(found + least)


def _nibbles(data: np.ndarray) -> np.ndarray:
    """[..., n] bytes -> [..., 2 n] numbers to 15: all low halves, then all high ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _plain(dtype: str) -> Floats:
    def floats(blocks: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(blocks).view(dtype).astype(np.float32)

    return floats


def _bf16(blocks: np.ndarray) -> np.ndarray:
    halves = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return np.asarray(halves << 16).view(np.float32)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), blocks[:, 2:].view(np.int8))


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _nibbles(blocks[:, 4:]), _half(blocks, 2))


def _fifth(blocks: np.ndarray, at: int) -> np.ndarray:
    """Numbers to 31: a word of 32 fifth bits at byte `at`, the low four behind it."""
    high = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return np.asarray(_nibbles(blocks[:, at + 4 :]) | high << 4)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _fifth(blocks, 2).astype(np.int8) - np.int8(16))


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _fifth(blocks, 4), _half(blocks, 2))


def _pairs(data: np.ndarray) -> np.ndarray:
    """[blocks, 64] bytes of four two-bit numbers -> [blocks, 256]: 32 bytes give 128, lowest bits first."""
    halves = data.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (halves & 3).reshape(-1, 256)


def _spread(scales: np.ndarray) -> np.ndarray:
    """One number per part -> one per element of 256."""
    return np.repeat(scales, 256 // scales.shape[1], axis=1)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    scales = blocks[:, :16]
    step, least = _half(blocks, 80) * (scales & 15), _half(blocks, 82) * (scales >> 4)
    return _scaled(_spread(step), _pairs(blocks[:, 16:80]), -_spread(least))


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    """A clear bit in the mask of 32 bytes, bit i for part i of 32, takes 4 off."""
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    mask = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    numbers = _pairs(blocks[:, 32:96]).astype(np.int8) - ((1 - mask).astype(np.int8) << 2)
    return _scaled(_spread(_half(blocks, 108) * scales), numbers)


def six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[blocks, 12] bytes -> the scales and the least values of eight parts, [blocks, 8] each, numbers to 63.

    Parts 0 to 3 have six bits in the first two fours of bytes; the others four bits in the last four and their upper
    two where the first ones leave room.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    least = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, least


def _parts(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Step and least value of every element of a block with a scale, a factor of least values and `six_bits`."""
    scales, least = six_bits(blocks[:, 4:16])
    return _spread(_half(blocks, 0) * scales), _spread(_half(blocks, 2) * least)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    step, least = _parts(blocks)
    return _scaled(step, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256), -least)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    step, least = _parts(blocks)
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    return _scaled(step, _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 256) | high << 4, -least)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    numbers = (low | _pairs(blocks[:, 128:192]) << 4).astype(np.int8) - np.int8(32)
    return _scaled(_spread(_half(blocks, 208) * blocks[:, 192:208].view(np.int8)), numbers)


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _IQ4[_nibbles(blocks[:, 2:])])


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """Eight parts of 32, each with four low bits of its scale in four bytes, two high ones in a word in front."""
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    words = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = (words >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    numbers = _IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)]
    return _scaled(_spread(_half(blocks, 0) * scales), numbers)


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    """A power of two, and 32 numbers of four bits (OCP Microscaling), which are taken twice, so that no power is beyond
    float32."""
    step = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return _scaled(step, 2 * NUMBERS[_nibbles(blocks[:, 1:])])


def _nvfp4(blocks: np.ndarray) -> np.ndarray:
    """Four parts of 16 numbers as those of MXFP4, each with a float8 (E4M3) without a sign in front of all."""
    bits = blocks[:, :4].astype(np.int32)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    step = np.ldexp(np.where(exponent, mantissa + 8, mantissa).astype(np.float32), np.maximum(exponent, 1) - 10)
    step[bits == 127] = 0  # which would be no number
    return _scaled(np.repeat(step, 16, axis=1), NUMBERS[_nibbles(blocks[:, 4:].reshape(-1, 4, 8)).reshape(-1, 64)])


def _tq1_0(blocks: np.ndarray) -> np.ndarray:
    """-1, 0 and 1, five in a byte as digits of base 3 of a fraction; the last 16 are four in a byte."""
    digits = [_thirds(part, 5 if i < 2 else 4) for i, part in enumerate(np.split(blocks[:, :52], [32, 48], axis=1))]
    return _scaled(_half(blocks, 52), np.concatenate(digits, axis=1))


def _thirds(data: np.ndarray, count: int) -> np.ndarray:
    """[blocks, n] bytes of `count` digits -> [blocks, count n] of -1 to 1: the first digit of all, then the second."""
    powers = 3 ** np.arange(count, dtype=np.uint8)
    rest = data[:, None, :] * powers[:, None]  # modulo 256: what is left behind the first digits
    digits = (rest.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return digits.reshape(len(data), -1)


def _tq2_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 64), _pairs(blocks[:, :64]).astype(np.int8) - np.int8(1))


_FOUR, _FOUR_LEAST, _EIGHT = Grid(4, 32, False), Grid(4, 32, True), Grid(8, 32, False)
TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4, _plain("<f4")),
    1: TensorType("F16", 1, 2, _plain("<f2")),
    2: TensorType("Q4_0", 32, 18, _q4_0, _FOUR),
    3: TensorType("Q4_1", 32, 20, _q4_1, _FOUR_LEAST),
    6: TensorType("Q5_0", 32, 22, _q5_0, _EIGHT),
    7: TensorType("Q5_1", 32, 24, _q5_1, _EIGHT),
    8: TensorType("Q8_0", 32, 34, _q8_0, _EIGHT),
    10: TensorType("Q2_K", 256, 84, _q2_k, _EIGHT),
    11: TensorType("Q3_K", 256, 110, _q3_k, _EIGHT),
    12: TensorType("Q4_K", 256, 144, _q4_k, _FOUR_LEAST),
    13: TensorType("Q5_K", 256, 176, _q5_k, _EIGHT),
    14: TensorType("Q6_K", 256, 210, _q6_k, _EIGHT),
    16: TensorType("IQ2_XXS", 256, 66, looked_up(16), _EIGHT, books=True),
    17: TensorType("IQ2_XS", 256, 74, looked_up(17), _EIGHT, books=True),
    18: TensorType("IQ3_XXS", 256, 98, looked_up(18), _EIGHT, books=True),
    19: TensorType("IQ1_S", 256, 50, looked_up(19), _EIGHT, books=True),
    20: TensorType("IQ4_NL", 32, 18, _iq4_nl, _EIGHT),
    21: TensorType("IQ3_S", 256, 110, looked_up(21), _EIGHT, books=True),
    22: TensorType("IQ2_S", 256, 82, looked_up(22), _EIGHT, books=True),
    23: TensorType("IQ4_XS", 256, 136, _iq4_xs, _EIGHT),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8, _plain("<f8")),
    29: TensorType("IQ1_M", 256, 56, looked_up(29), _EIGHT, books=True),
    30: TensorType("BF16", 1, 2, _bf16),
    34: TensorType("TQ1_0", 256, 54, _tq1_0, _FOUR),
    35: TensorType("TQ2_0", 256, 66, _tq2_0, _FOUR),
    39: TensorType("MXFP4", 32, 17, _mxfp4, _EIGHT),
    40: TensorType("NVFP4", 64, 36, _nvfp4, _EIGHT),
}
