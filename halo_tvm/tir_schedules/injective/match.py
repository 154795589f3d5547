"""Injective functions: each output as one expression, every intermediate inlined, for rules on CPUs and on GPUs.

Declines
    reductions; blocks with a predicate or several stores; a store whose place is not one iterator per
    axis (scatter); values that are too long, see `intermediates`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...errors import Declined
from ..blocks import Block, loads, unscheduled_blocks, uses, without_loads
from ..code.lanes import constant, is_var
from .intermediates import Intermediates
from .nest import Nest


def nests_of(func: tirx.PrimFunc, prepare: Callable[[Expr], Expr] = lambda value: value) -> list[Nest]:
    """The outputs of `func` with their values, every intermediate inlined; `Declined` with the reason.

    `prepare` is applied to each value before others are inlined into it.
    """
    found = unscheduled_blocks(func)
    if not found:
        raise Declined("the function has no blocks")
    local = list(func.body.block.alloc_buffers)
    inside = Intermediates()
    nests: list[Nest] = []
    for block in found:
        if "R" in block.kinds:
            raise Declined("a block reduces")
        if not block.plain or "O" in block.kinds:
            raise Declined("a block has a predicate, or loops that are not its iterators")
        if block.store is None:
            raise Declined("a block stores several values")
        if not one_iterator_per_axis(block.store, block):
            raise Declined("a store is not at one iterator per axis")
        if any(load.source.same_as(block.store.buffer) for load in loads(block.store.value)):
            raise Declined("a block reads the buffer it writes")
        value = prepare(block.store.value)
        if any(block.store.buffer.same_as(b) for b in local):
            inside.add(block, block.store, value)
        else:
            value = inside.inlined(value)
            nests.append(Nest(block.store.buffer, tuple(block.store.indices), block.vars, block.extents, value))
    return nests


def one_iterator_per_axis(store: tirx.BufferStore, block: Block) -> bool:
    """Whether each index of `store` is a data-parallel iterator of `block` or zero, and each of these is used once."""
    used: list[ir.Var] = []
    for at in store.indices:
        if isinstance(at, ir.Var) and not any(at.same_as(v) for v in used):
            used.append(at)
        elif constant(at) != 0:
            return False
    spatial = [(v, e) for v, e, kind in zip(block.vars, block.extents, block.kinds) if kind != "R"]
    return all(any(v.same_as(u) for u in used) or constant(e) == 1 for v, e in spatial) and len(used) <= len(spatial)


def contiguous_axes(nest: Nest) -> int:
    """How many trailing axes are one contiguous axis in every operand and in the output; at least one."""
    if not nest.axes:
        return 0
    accesses = [(tuple(nest.indices), nest.output)] + [(tuple(x.indices), x.source) for x in loads(nest.value)]
    outside = without_loads(nest.value)
    best = 1
    for count in range(2, len(nest.axes) + 1):
        axes, extents = nest.axes[-count:], nest.extents[-count:]
        if any(constant(e) is None for e in extents[1:]) or any(uses(outside, v) for v in axes):
            break
        if all(_is_contiguous(indices, buffer, axes, extents) for indices, buffer in accesses):
            best = count
    return best


def _is_contiguous(indices: Sequence[Expr], buffer: ir.Var, axes: Sequence[ir.Var], extents: Sequence[Expr]) -> bool:
    """Whether an access ends in exactly `axes` over a buffer of these extents, or uses none of them.

    Axes of one element lie anywhere.
    """
    moving = [(axis, extent) for axis, extent in zip(axes, extents) if constant(extent) != 1]
    axes, extents = [axis for axis, _ in moving], [extent for _, extent in moving]
    if not any(uses(i, v) for i in indices for v in axes):
        return True
    places = [(at, size) for at, size in zip(indices, buffer.shape) if constant(size) != 1]
    indices, shape = [at for at, _ in places], [size for _, size in places][-len(axes) :]
    head, tail = indices[: -len(axes)], indices[-len(axes) :]
    return (
        len(tail) == len(axes)
        and all(is_var(i, v) for i, v in zip(tail, axes))
        and all(tvm_ffi.structural_equal(e, s) for e, s in zip(extents[1:], shape[1:]))
        and not any(uses(i, v) for i in head for v in axes)
    )
