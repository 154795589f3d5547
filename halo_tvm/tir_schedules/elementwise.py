"""Injective functions: element-wise chains, broadcasts, transposes, gathers, concatenations, slices.

Serves
    functions without a reduction whose blocks each store one value at their own iterators
Before -> after
    a[i] = f(x[i]); y[i] = g(a[i])             ->   y[i] = g(f(x[i]))
    for i0..in: y                              ->   parallel for runs of rows: for j over the trailing axes
                                                    that are contiguous everywhere: vectors, exact tails
    y[i, j] = f(x[j, i])                       ->   tiles of `tile` x `tile`, so that cache lines are used whole;
                                                    32-bit elements turned in registers (`_tiles`)
Declines
    reductions; blocks with a predicate or several stores; a store whose place is not one iterator per
    axis (scatter); an intermediate that grows beyond `MAX_NODES` expression nodes when it is inlined
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..errors import Declined
from ..targets import Target
from ._blocks import Block, blocks, is_scheduled, loads, uses
from ._lanes import (
    ceil_div,
    constant,
    in_parallel_when_large,
    index,
    is_var,
    parallel_rows,
    product,
    replace_body,
    seq,
    simplify,
    unravel,
    vector_loop,
)
from ._nest import Nest, bits, store_at, substituted
from ._rule import Rule, check_range
from ._tiles import is_turned, swapped_axis, tiles

_SERIAL = (1 << 12, 1 << 13, 1 << 15)  # elements below which one thread may do it all
# Out of memory, tiles of several cache lines use each page that they open four times: 1.4 times faster at
# 4096 x 4096; within a few per cent from 768 x 768 on.
_TURNED_FAR, _FAR_ELEMENTS = 64, 1 << 20
MAX_NODES = 20_000  # of one inlined expression: beyond, compilation takes seconds


@dataclass(frozen=True)
class ElementwiseDecision:
    """How the elements of an injective function are cut."""

    lanes: int  # elements of one vector
    unroll: int  # vectors per iteration
    tasks: int  # at most so many parallel runs
    serial_below: int  # elements; less work than this runs on one thread
    tile: int  # edge of a transposition's tiles


class Elementwise(Rule[ElementwiseDecision]):
    """Maps, broadcasts and data movement."""

    name = "elementwise"
    Decision = ElementwiseDecision

    def default(self, func: tirx.PrimFunc, target: Target) -> ElementwiseDecision:
        nests = _analyse(func)
        # The widest element decides: a vector of 16 int64 would be two registers, and gathers of them four.
        widest = max(
            (bits(v) for nest in nests for v in (nest.output, *(x.source for x in loads(nest.value)))), default=32
        )
        lanes = max(1, target.isa.vector_bits // max(widest, 32))
        # A launch costs 0.75 us, in which one core copies about 16 KiB out of its cache.
        tile = _TURNED_FAR if any(_is_far(nest) for nest in nests) else 16
        return ElementwiseDecision(lanes=lanes, unroll=2, tasks=8 * target.cores, serial_below=8192, tile=tile)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[ElementwiseDecision]:
        base, cores = self.default(func, target), target.cores
        edges = (8, 16, 32, 64) if any(swapped_axis(nest) is not None for nest in _analyse(func)) else (base.tile,)
        values = itertools.product(
            (base.lanes, max(1, base.lanes // 2)), (1, 2, 4), (cores, 4 * cores, 8 * cores), _SERIAL, edges
        )
        return tuple(dict.fromkeys([base, *(ElementwiseDecision(*fields) for fields in values)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: ElementwiseDecision) -> tirx.PrimFunc:
        check_range(
            decision, lanes=(1, 64), unroll=(1, 16), tasks=(1, 1 << 16), serial_below=(0, 1 << 31), tile=(1, 64)
        )
        statements = []
        for nest in _analyse(func):

            def emit(parallel: bool, nest: Nest = nest) -> tirx.Stmt:
                swapped = swapped_axis(nest)
                return (
                    tiles(nest, decision.lanes, decision.tile, decision.tasks, parallel, swapped)
                    if swapped is not None
                    else _vectors(nest, decision, parallel)
                )

            statements.append(in_parallel_when_large(product(nest.extents), decision.serial_below, emit))
        return replace_body(func, seq(statements))


def _analyse(func: tirx.PrimFunc) -> list[Nest]:
    """The outputs of `func` with their values, every intermediate inlined; `Declined` with the reason."""
    if is_scheduled(func):
        raise Declined("elementwise: the function is scheduled already")
    found = blocks(func)
    if not found:
        raise Declined("elementwise: the function has no blocks")
    local = list(func.body.block.alloc_buffers)
    values: list[tuple[Block, tirx.BufferStore, Expr]] = []
    nests: list[Nest] = []
    for block in found:
        if "R" in block.kinds:
            raise Declined("elementwise: a block reduces")
        if not block.plain or "O" in block.kinds:
            raise Declined("elementwise: a block has a predicate, or loops that are not its iterators")
        if block.store is None:
            raise Declined("elementwise: a block stores several values")
        if not _one_iterator_per_axis(block):
            raise Declined("elementwise: a store is not at one iterator per axis")
        if any(load.source.same_as(block.store.buffer) for load in loads(block.store.value)):
            raise Declined("elementwise: a block reads the buffer it writes")
        value = _inline(block.store.value, values)
        if _size(value) > MAX_NODES:
            raise Declined(f"elementwise: an inlined expression has more than {MAX_NODES} nodes")
        if any(block.store.buffer.same_as(b) for b in local):
            values.append((block, block.store, value))
        else:
            nests.append(Nest(block.store.buffer, tuple(block.store.indices), block.vars, block.extents, value))
    return nests


def _is_far(nest: Nest) -> bool:
    """Whether it swaps axes in registers, and is larger than the caches."""
    size, swapped = constant(product(nest.extents)), swapped_axis(nest)
    return size is not None and size >= _FAR_ELEMENTS and swapped is not None and is_turned(nest, swapped)


def _one_iterator_per_axis(block: Block) -> bool:
    assert block.store is not None
    used: list[ir.Var] = []
    for at in block.store.indices:
        if isinstance(at, ir.Var) and not any(at.same_as(v) for v in used):
            used.append(at)
        elif constant(at) != 0:
            return False
    return all(any(v.same_as(u) for u in used) or constant(e) == 1 for v, e in zip(block.vars, block.extents))


def _inline(value: Expr, earlier: Sequence[tuple[Block, tirx.BufferStore, Expr]]) -> Expr:
    """`value` with loads of `earlier` intermediates replaced by what they hold."""

    def load(node: ir.TensorLoad) -> Expr:
        for block, store, stored in earlier:
            if store.buffer.same_as(node.source):
                here = {at: place for at, place in zip(store.indices, node.indices) if isinstance(at, ir.Var)}
                here |= {v: index(0) for v in block.vars if v not in here}
                return substituted(stored, here)
        return node

    return tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post")


def _vectors(nest: Nest, decision: ElementwiseDecision, parallel: bool) -> tirx.Stmt:
    """Rows of the leading axes, vectors over the trailing axes that are contiguous everywhere."""
    split = len(nest.extents) - _contiguous_axes(nest)
    leading, trailing = nest.extents[:split], nest.extents[split:]
    length, rows = product(trailing), product(leading)
    unit = decision.lanes * decision.unroll
    # Too few rows for the threads: the vectors of a row are cut into runs too.
    count = constant(rows)
    chunks = index(1)
    if parallel and count is not None and count < decision.tasks:
        chunks = simplify(tirx.max(tirx.min(index(-(-decision.tasks // count)), ceil_div(length, unit)), index(1)))
    size = (
        simplify(tirx.floordiv(ceil_div(length, chunks) + index(unit - 1), index(unit)) * index(unit))
        if constant(chunks) != 1
        else length
    )

    def row(r: Expr) -> list[tirx.Stmt]:
        whole = constant(chunks) == 1
        start = index(0) if whole else simplify(tirx.floormod(r, chunks) * size)
        at = unravel(r if whole else simplify(tirx.floordiv(r, chunks)), leading)

        def body(j: Expr, _slot: Expr | None) -> list[tirx.Stmt]:
            return [store_at(nest, dict(zip(nest.axes, (*at, *unravel(j, trailing)))))]

        left = length if whole else simplify(tirx.max(tirx.min(size, length - start), index(0)))
        return vector_loop(start, left, decision.lanes, decision.unroll, body) or [tirx.Evaluate(index(0))]

    return parallel_rows(simplify(rows * chunks), decision.tasks, parallel, row, lambda: [])


def _contiguous_axes(nest: Nest) -> int:
    """How many trailing axes are one contiguous axis in every operand and in the output; at least one."""
    if not nest.axes:
        return 0
    accesses = [(tuple(nest.indices), nest.output)] + [(tuple(x.indices), x.source) for x in loads(nest.value)]
    outside = _index_free(nest.value)
    best = 1
    for count in range(2, len(nest.axes) + 1):
        axes, extents = nest.axes[-count:], nest.extents[-count:]
        if any(constant(e) is None for e in extents[1:]) or any(uses(outside, v) for v in axes):
            break
        if all(_is_contiguous(indices, buffer, axes, extents) for indices, buffer in accesses):
            best = count
    return best


def _is_contiguous(indices: Sequence[Expr], buffer: ir.Var, axes: Sequence[ir.Var], extents: Sequence[Expr]) -> bool:
    """Whether an access ends in exactly `axes` over a buffer of these extents, or uses none of them."""
    if not any(uses(i, v) for i in indices for v in axes):
        return True
    head, tail = indices[: -len(axes)], indices[-len(axes) :]
    shape = list(buffer.shape)[-len(axes) :]
    return (
        len(tail) == len(axes)
        and all(is_var(i, v) for i, v in zip(tail, axes))
        and all(tvm_ffi.structural_equal(e, s) for e, s in zip(extents[1:], shape[1:]))
        and not any(uses(i, v) for i in head for v in axes)
    )


def _index_free(expr: Expr) -> Expr:
    """`expr` with every load replaced by a constant: what is left uses iterators by value."""
    return tvm_ffi.structural_map(expr, (ir.TensorLoad, lambda x: tirx.const(0, str(x.ty.dtype))), order="post")


def _size(expr: Expr) -> int:
    count = [0]

    def visit(_node: object) -> None:
        count[0] += 1

    tvm_ffi.structural_walk(expr, (ir.Expr, visit), order="post")
    return count[0]
