"""Threefry-2x32 of 20 rounds: two words of 32 bits for a key of two and a counter of two, as jax draws random bits.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, te, tirx
from tvm.script.ir_builder import tirx as T

from .factorisations import cell, each_matrix, made

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def of_places(keys: te.Tensor, count: ir.Expr | int) -> list[te.Tensor]:
    """uint32 keys [b, 2] -> two words [b, count] each, of the counters 0, 1, .. count - 1."""

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (keys,), (first, second) = ins, outs
        with each_matrix(keys.shape[0]) as b, T.serial(0, count) as i:
            place = i.astype("int64")
            high = tirx.shift_right(place, tirx.const(32, "int64")).astype("uint32")
            first[b, i], second[b, i] = _mixed(keys, b, high, place.astype("uint32"))

    word = ([keys.shape[0], count], "uint32")
    return made("threefry", [keys], [word, word], nest)


def of_numbers(keys: te.Tensor, numbers: te.Tensor) -> te.Tensor:
    """uint32 keys [b, 2] and numbers [b] -> keys [b, 2]: the words of the counters (0, number)."""

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (keys, numbers), (out,) = ins, outs
        with T.serial(0, keys.shape[0]) as b:
            out[b, 0], out[b, 1] = _mixed(keys, b, tirx.const(0, "uint32"), numbers[b])

    return made("threefry_fold", [keys, numbers], [(keys.shape, "uint32")], nest)[0]


def _mixed(keys: Any, b: ir.Expr, high: ir.Expr, low: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The two words, in variables."""
    x, y = cell("uint32"), cell("uint32")
    schedule = [keys[b, 0], keys[b, 1], keys[b, 0] ^ keys[b, 1] ^ tirx.const(_PARITY, "uint32")]
    x[0], y[0] = high + schedule[0], low + schedule[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x[0] = x[0] + y[0]
            left, right = tirx.const(by, "uint32"), tirx.const(32 - by, "uint32")
            y[0] = (tirx.shift_left(y[0], left) | tirx.shift_right(y[0], right)) ^ x[0]
        x[0] = x[0] + schedule[(group + 1) % 3]
        y[0] = y[0] + schedule[(group + 2) % 3] + tirx.const(group + 1, "uint32")
    return x[0], y[0]
