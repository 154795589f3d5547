"""Injective functions on a GPU: element-wise chains, broadcasts, transposes, gathers, concatenations, slices.

Serves
    what `match` reads: no reduction, one value stored at one iterator per axis
Before -> after
    a[i] = f(x[i]); y[i] = g(a[i])   ->   y[i] = g(f(x[i]))
    for i0..in: y                    ->   one thread for `vectors` vectors of `lanes` elements along the trailing axes
                                          that are contiguous everywhere; loads of 16 bytes where a row has as many
    y[i, j] = f(x[j, i])             ->   tiles of 32 x 32: rows of x into shared memory, rows of y out of its columns;
                                          one element more per row keeps 32 columns in 32 banks
Declines
    see `match`; outputs that are known to have no elements
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...dimensions import by_name, itemsize_of, size_of
from ...errors import Declined
from ...targets import WARP, Target
from ..blocks import loads
from ..code.lanes import ceil_div, constant, index, product, replace_body, seq, simplify, unravel
from ..code.threads import (
    LAUNCH_US,
    bound,
    distinct,
    is_row_access,
    registers,
    streaming_us,
    unrolled,
    vector_copy,
    vector_lanes,
)
from ..rule import Numbers, Rule, gpu_of
from ._tiles import swapped_axis
from ._turned import TILE, turned_by_blocks, turned_loads
from .match import contiguous_axes, nests_of
from .nest import Nest, read_from, store_at, substituted


@dataclass(frozen=True)
class ElementThreads:
    """How elements are cut among threads."""

    lanes: int  # at most so many elements of one load; an axis that is no multiple has fewer
    vectors: int  # of one thread
    threads: int  # of one block


class ElementwiseGPU(Rule[ElementThreads]):
    """Maps, broadcasts and data movement."""

    name = "elementwise_gpu"
    Decision = ElementThreads
    domains = {
        "lanes": Numbers(1, 16, powers=True),
        "vectors": Numbers(1, 16),
        "threads": Numbers(WARP, 1024, step=WARP),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> ElementThreads:
        nests = _served(func)
        # One vector per thread: a multiprocessor's 2048 threads then have 32 KiB in flight, what memory's latency asks.
        return ElementThreads(max(vector_lanes(_buffers(nest), None) for nest in nests), 1, 256)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[ElementThreads]:
        base = self.default(func, target)
        widths = [base.lanes // share for share in (1, 2, 4, 8) if base.lanes // share]
        values = itertools.product(widths, (1, 2, 4), (128, 256, 512, 1024))
        return tuple(dict.fromkeys([base, *(ElementThreads(*fields) for fields in values)]))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: ElementThreads, sizes: Mapping[ir.Var, int]
    ) -> float:
        known = by_name(sizes)
        return sum(_estimate(nest, target, decision, known) for nest in _served(func))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: ElementThreads) -> tirx.PrimFunc:
        self.check(decision)
        kernels = []
        for nest in _served(func):
            swapped = swapped_axis(nest)
            turned = turned_loads(nest, swapped) if swapped is not None else ()
            kernels.append(turned_by_blocks(nest, swapped, turned) if turned else _vectors(nest, decision))
        return replace_body(func, seq(kernels))


def _served(func: tirx.PrimFunc) -> list[Nest]:
    nests = nests_of(func)
    if any(constant(extent) == 0 for nest in nests for extent in nest.extents):
        raise Declined("an output has no elements")
    return nests


def _buffers(nest: Nest) -> list[ir.Var]:
    """The output, and what may be read as vectors for it: not the indices of a gather, nor masks."""
    read = [x for x in loads(nest.value) if nest.axes and _ends_in(x.indices, nest.axes[-1])]
    return [nest.output, *(x.source for x in read if str(x.source.dtype) != "bool")]


def _trailing(nest: Nest, most: int) -> tuple[int, int]:
    """(trailing axes that are one contiguous axis everywhere; lanes of its vectors)."""
    count = contiguous_axes(nest)
    if not count or str(nest.output.dtype) == "bool":
        return count, 1
    whole = count == len(nest.axes)
    while not whole and count > 1 and constant(product(nest.extents[-count:])) is None:
        count -= 1  # rows of known length: only of those is it known that vectors tile them
    # Without axes in front, vectors begin at multiples of their length, whatever the length: only the last is cut.
    lanes = vector_lanes(_buffers(nest), None if whole else product(nest.extents[-count:]))
    if count == 1 and not whole and not _ends_in(nest.indices, nest.axes[-1]):
        lanes = 1
    return count, min(lanes, most) if whole else _tiling(nest.output, count, min(lanes, most))


def _tiling(output: ir.Var, count: int, lanes: int) -> int:
    """At most `lanes`, of which vectors tile the rows of `output`: a function may fill a part of each of them."""
    stride = constant(product(list(output.shape[-count:])))
    while lanes > 1 and (stride is None or stride % lanes):
        lanes //= 2
    return lanes


def _ends_in(indices: Sequence[Expr], axis: ir.Var) -> bool:
    return bool(indices) and isinstance(indices[-1], ir.Var) and indices[-1].same_as(axis)


def _vectors(nest: Nest, decision: ElementThreads) -> tirx.Stmt:
    """One launch: a thread for each run of vectors."""
    count, lanes = _trailing(nest, decision.lanes)
    split = len(nest.extents) - count
    leading, trailing = nest.extents[:split], nest.extents[split:]
    length, total = product(trailing), product(nest.extents)
    vectors = ceil_div(total, lanes)  # of all rows: a row is a multiple, unless there is one only
    per_block = decision.threads * decision.vectors
    reads = _vector_reads(nest, count, lanes) if lanes > 1 else []
    buffers = [registers(lanes, str(x.source.dtype), "read") for x in reads]
    out = registers(lanes, str(nest.output.dtype), "made")

    def place(first: Expr, lane: Expr) -> dict[ir.Var, Expr]:
        flat = simplify(first + lane)
        if not leading:
            return dict(zip(nest.axes, unravel(flat, trailing)))
        row = simplify(tirx.floordiv(first, length))
        at = simplify(tirx.floormod(first, length) + lane)
        return dict(zip(nest.axes, (*unravel(row, leading), *unravel(at, trailing))))

    def at(indices: Sequence[Expr], here: Mapping[ir.Var, Expr]) -> list[Expr]:
        return [simplify(substituted(i, here)) for i in indices]

    def vector(first: Expr) -> list[tirx.Stmt]:
        made: list[tirx.Stmt] = []
        for access, buffer in zip(reads, buffers):
            made.append(
                vector_copy(
                    buffer,
                    lambda lane: [lane],
                    access.source,
                    lambda lane, a=access: at(a.indices, place(first, lane)),
                    lanes,
                )
            )

        def element(lane: Expr) -> list[tirx.Stmt]:
            value = read_from(nest.value, zip(reads, buffers), lane)
            return [tirx.BufferStore(out, substituted(value, place(first, lane)), [lane])]

        made.append(unrolled("lane", lanes, element))
        to = lambda lane: at(nest.indices, place(first, lane))  # noqa: E731
        return [*made, vector_copy(nest.output, to, out, lambda lane: [lane], lanes)]

    def run(i: Expr) -> list[tirx.Stmt]:
        first = simplify(i * index(lanes))
        if lanes == 1:
            body = [store_at(nest, place(first, index(0)))]
        else:
            body = vector(first)
        size = constant(total)
        if lanes > 1 and not leading and (size is None or size % lanes):  # the last vector is cut
            rest = unrolled(
                "lane",
                lanes,
                lambda lane: [
                    tirx.IfThenElse(first + lane < total, store_at(nest, place(simplify(first + lane), index(0))), None)
                ],
            )
            return [tirx.IfThenElse(first + index(lanes) <= total, seq(body), rest)]
        if size is None or size % (per_block * lanes):
            return [tirx.IfThenElse(i < vectors, seq(body), None)]
        return body

    def block(b: Expr) -> list[tirx.Stmt]:
        # Neighbouring threads take neighbouring vectors, and come back a block's width further on.
        def thread(t: Expr) -> list[tirx.Stmt]:
            start = simplify(b * index(per_block) + t)
            allocated = [tirx.AllocBuffer(x) for x in (*buffers, out)] if lanes > 1 else []
            return [
                *allocated,
                unrolled("vector", decision.vectors, lambda v: run(simplify(start + v * index(decision.threads)))),
            ]

        return [bound("threadIdx.x", decision.threads, thread)]

    return bound("blockIdx.x", ceil_div(vectors, per_block), block)


def _vector_reads(nest: Nest, count: int, lanes: int) -> list[ir.TensorLoad]:
    """The accesses that are read as vectors, before anything is computed.

    A load under a condition may stand for memory that is not there: only those that stay inside their buffers at
    every element are read ahead.
    """
    axes, found = nest.axes[-count:], []
    for load in distinct(loads(nest.value)):
        if str(load.source.dtype) == "bool" or not _is_inside(nest, load):
            continue
        used = [i for i in load.indices if isinstance(i, ir.Var) and any(i.same_as(a) for a in axes)]
        if len(used) == count if count > 1 else is_row_access(load.source, load.indices, axes[0], lanes):
            found.append(load)
    return found


def _is_inside(nest: Nest, load: ir.TensorLoad) -> bool:
    """Whether an access is at axes of the nest, or at zero, over a buffer of their extents."""
    for at, size in zip(load.indices, load.source.shape):
        extent = next((e for v, e in zip(nest.axes, nest.extents) if isinstance(at, ir.Var) and v.same_as(at)), None)
        if constant(at) != 0 and (extent is None or not tvm_ffi.structural_equal(extent, size)):
            return False
    return True


def _estimate(nest: Nest, target: Target, d: ElementThreads, known: Mapping[str, int]) -> float:
    """Microseconds of one output: its traffic, or the threads' latency where there are few."""
    swapped = swapped_axis(nest)
    turned = swapped is not None and bool(turned_loads(nest, swapped))
    lanes = 1 if turned else _trailing(nest, d.lanes)[1]
    elements = max(1, size_of(product(nest.extents), known))
    buffers = dict.fromkeys((nest.output, *(load.source for load in loads(nest.value))))
    sizes = [size_of(product(list(b.shape)), known) * itemsize_of(b.dtype) for b in buffers]
    narrow = lanes * min(itemsize_of(b.dtype) for b in buffers)
    if swapped is not None and not turned:
        sizes = [size * 4 for size in sizes]  # sectors of 32 bytes are read for a part of them
    gpu = gpu_of(target)
    threads = TILE * TILE // 4 if turned else d.threads
    blocks = -(-elements // (TILE * TILE if turned else d.threads * d.vectors * lanes))
    registers = min(24 + 2 * lanes * d.vectors, gpu.registers_per_thread)
    waves = -(-blocks // gpu.blocks_at_once(threads, registers))
    # A wave waits for memory once, and a little for each further vector; whole waves of few threads waste the device.
    return max(streaming_us(target, sum(sizes), lanes_bytes=narrow), LAUNCH_US + waves * (0.6 + 0.08 * (d.vectors - 1)))
