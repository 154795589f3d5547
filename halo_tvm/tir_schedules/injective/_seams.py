"""Where the last axis of an injective function has seams, as a concatenation or padding has, and what lies between.

y[.., i] = if 24 <= i: c[.., i - 24]  elif 8 <= i: b[.., i - 8]  else a[.., i]
    ->   a for i in 0..8;   b for i in 8..24;   c for i in 24..extent:   no condition is left, and vectors end at a seam
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..blocks import is_choice
from ..code.lanes import constant, index, simplify
from .nest import Nest

_MOST = 256  # parts: each has code of its own

# how a comparison of an axis with a constant c is true from c + this on, or up to there
_AFTER = {tirx.GE: 0, tirx.LT: 0, tirx.GT: 1, tirx.LE: 1}
_TURNED = {tirx.GE: tirx.LE, tirx.LE: tirx.GE, tirx.LT: tirx.GT, tirx.GT: tirx.LT}


@dataclass(frozen=True)
class Part:
    """Elements first <= i < end of the last axis, and their value."""

    first: int
    end: int
    value: Expr


def parts_of(nest: Nest) -> list[Part]:
    """The parts between the seams of the last axis, in their order; one where there are no seams, or too many."""
    extent = constant(nest.extents[-1]) if nest.extents else None
    seams = sorted({0, *_seams(nest, extent), extent}) if extent else []
    if not 2 < len(seams) <= _MOST + 1:
        return [Part(0, extent or 0, nest.value)]
    return [Part(first, end, _between(nest, first, end)) for first, end in zip(seams, seams[1:])]


def _seams(nest: Nest, extent: int) -> set[int]:
    """The elements inside of the last axis at which a condition changes."""
    axis, found = nest.axes[-1], set()

    def compared(node: ir.Call) -> None:
        if is_choice(node):
            for kind in _AFTER:
                tvm_ffi.structural_walk(node.args[0], (kind, side), order="post")

    def side(node: Any) -> None:
        node = simplify(node)
        if type(node) not in _AFTER:
            return
        kind, a, b = type(node), node.a, node.b
        if b.same_as(axis):
            kind, a, b = _TURNED[kind], b, a
        at = constant(b)
        if a.same_as(axis) and at is not None and 0 < at + _AFTER[kind] < extent:
            found.add(at + _AFTER[kind])

    tvm_ffi.structural_walk(nest.value, (ir.Call, compared), order="post")
    return found


def _between(nest: Nest, first: int, end: int) -> Expr:
    """The value from `first` to `end`, without the conditions that are known there."""
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(nest.axes[-1], ir.Range(index(first), index(end)))

    def chosen(node: ir.Call) -> Expr:
        if not is_choice(node):
            return node
        known = constant(analyzer.simplify(node.args[0]))
        return node if known is None else node.args[1 if known else 2]

    return tvm_ffi.structural_map(nest.value, (ir.Call, chosen), order="post")
