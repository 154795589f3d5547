"""Which functions compute every image of a batch alone, and the same function for fewer images.

Before -> after, of 8 images, for 2
    y[v, h, w, c] = sum(x[v, 2 * h + a, 2 * w + b, k] * f[a, b, k, c])   v < 8            ->   v < 2
    y[r, c] = sum(x[r, k] * f[k, c])                                     r < 8 * 56 * 56   ->   r < 2 * 56 * 56
Serves
    blocks of plain loops: rows of the first axis that belong to one image are made of rows of that image, at places
    that are the same for all images, and of tensors that are no part of the batch; of a known number of images or any
Leaves alone
    sums over the batch, concatenations along it, values that depend on the number of the image (random ones)
An iterator is moved on by whole images: an index of the batch must move on by as many, all else must not notice. The
first axis is the first that is not 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from ..errors import Declined
from ..tir_schedules.blocks import Block, blocks, is_const, is_scheduled, loads, substitute, uses, without_loads

_MANY = 1 << 30  # images: more than there are


@dataclass(frozen=True)
class BatchAxis:
    """The batch in a function: how many rows of the first axis belong to one image, of tensors and of iterators."""

    tensors: Mapping[ir.Var, int]  # those that are not here are no part of the batch
    iterators: Mapping[ir.Var, int]  # of blocks and of the loops around them


def batch_axis(func: tirx.PrimFunc, count: int | ir.Var) -> BatchAxis:
    """The axis of `count` images in `func`, a number or a size of its tensors.

    `Declined` where images are not computed apart.
    """
    found = blocks(func)
    if not found or is_scheduled(func):
        raise Declined("a function without plain blocks, or one that is scheduled")
    axis = _Axis(count)
    for block in found:
        axis.visit(block)
    if not axis.tensors:
        raise Declined("no tensor has the batch as its first axis")
    if any(axis.counts(size) for tensor in axis.shared for size in tensor.shape):
        raise Declined("a tensor that is read as a whole is as long as the batch")
    return BatchAxis(axis.tensors, axis.iterators)


class _Axis:
    def __init__(self, count: int | ir.Var) -> None:
        self._count = count
        self.tensors: dict[ir.Var, int] = {}
        self.shared: set[ir.Var] = set()
        self.iterators: dict[ir.Var, int] = {}

    def visit(self, block: Block) -> None:
        store = block.store
        if store is None or not block.plain:
            raise Declined("a block that is no single store under plain loops")
        over = self._iterator(block, store)
        reads = [*loads(store.value), *(load for index in store.indices for load in loads(index))]
        init = block.node.init
        values = [store.value, *([init.value] if isinstance(init, tirx.BufferStore) else [])]
        places = [index for access in (store, *reads) for index in access.indices]
        if any(self.counts(without_loads(expr)) for expr in (*values, *places)):
            raise Declined("a value depends on the number of images")
        if over is None:
            if any(map(self.counts, block.extents)):
                raise Declined("a loop beside those over images is as long as the batch")
            self._note_shared(store.buffer)
            for load in reads:
                self._note_shared(load.source)
            return
        var, rows = over
        self.iterators[var] = rows
        for value, own in zip(block.realize.iter_values, block.vars):
            if own.same_as(var):
                self.iterators[value] = rows
        images = _Images(block, var, rows, self._count)
        if any(self.counts(extent) for own, extent in zip(block.vars, block.extents) if not own.same_as(var)):
            raise Declined("a loop beside those over images is as long as the batch")
        stored = images.rows_of(store.buffer, store.indices)
        if stored is None:
            raise Declined("images are written to one place")
        self._note(store.buffer, stored)
        for load in reads:
            self._note(load.source, images.rows_of(load.source, load.indices))
        if not all(images.same_for_all(without_loads(value)) for value in values):
            raise Declined("a value depends on the number of the image")

    def counts(self, expr: ir.Expr) -> bool:
        """Whether `expr` is made of the number of images, where that is a size: of fewer images it would be another."""
        return not isinstance(self._count, int) and uses(expr, self._count)

    def _iterator(self, block: Block, store: tirx.BufferStore) -> tuple[ir.Var, int] | None:
        """The iterator over images, or over rows of them, that the first axis of what a block stores follows."""
        for var, extent, kind in zip(block.vars, block.extents, block.kinds):
            rows = per_image(extent, self._count)
            if rows and kind == "S" and store.indices and uses(store.indices[leading(store.buffer.shape)], var):
                return var, rows
        return None

    def _note(self, tensor: ir.Var, rows: int | None) -> None:
        if rows is None:
            self._note_shared(tensor)
        elif tensor in self.shared or self.tensors.setdefault(tensor, rows) != rows:
            raise Declined(f"{tensor.name} is read as a whole beside its images")

    def _note_shared(self, tensor: ir.Var) -> None:
        if tensor in self.tensors:
            raise Declined(f"{tensor.name} is read as a whole beside its images")
        self.shared.add(tensor)


class _Images:
    """What follows the images that the iterator `var` of a block goes through, `rows` of its steps for each."""

    def __init__(self, block: Block, var: ir.Var, rows: int, count: int | ir.Var) -> None:
        self._var, self._rows, self._count = var, rows, count
        self._analyzer = tvm.sym.Analyzer()
        self._by = tirx.Var("images", str(var.ty.dtype))
        for own, extent in zip(block.vars, block.extents):
            self._analyzer.bind(own, ir.Range(0, extent))
        self._analyzer.bind(self._by, ir.Range(0, count if isinstance(count, int) else _MANY))

    def rows_of(self, tensor: ir.Var, indices: list[ir.Expr]) -> int | None:
        """How many rows of `tensor` belong to an image; None where all images read the same. `Declined` otherwise."""
        if all(self.same_for_all(without_loads(index)) for index in indices):
            return None
        *ones, first = (without_loads(index) for index in indices[: leading(tensor.shape) + 1])
        others = [*ones, *(without_loads(index) for index in indices[len(ones) + 1 :])]
        rows = per_image(tensor.shape[len(ones)], self._count)
        if not rows or not all(map(self.same_for_all, others)):
            raise Declined(f"places in {tensor.name} depend on the number of the image")
        image = tirx.floordiv(first, rows) - tirx.floordiv(self._var, self._rows)
        if not self._is_zero(image) or not self._is_zero(self._moved(first) - first - self._by * rows):
            raise Declined(f"images of {tensor.name} are not read by their own")
        return rows

    def same_for_all(self, expr: ir.Expr) -> bool:
        """Whether `expr` is the same for every image."""
        if not uses(expr, self._var):
            return True
        simplify = self._analyzer.simplify
        return bool(tvm_ffi.structural_equal(simplify(self._moved(expr)), simplify(expr)))

    def _moved(self, expr: ir.Expr) -> ir.Expr:
        later = self._var + self._by * self._rows
        return substitute(expr, {self._var: later}, {})

    def _is_zero(self, expr: ir.Expr) -> bool:
        return is_const(self._analyzer.simplify(expr), 0)


def leading(shape: Sequence[ir.Expr]) -> int:
    """The first axis of a tensor that is not 1: where a batch stands."""
    return next((axis for axis, size in enumerate(shape) if not is_const(size, 1)), 0)


def per_image(extent: ir.Expr, count: int | ir.Var) -> int:
    """How often `count` is in `extent`; 0 where it does not divide it, or by a number that is not known."""
    if isinstance(count, int):
        known = isinstance(extent, tirx.IntImm) and int(extent) > 0 and int(extent) % count == 0
        return int(extent) // count if known else 0
    if isinstance(extent, tirx.IntImm):
        return 0
    simplify = tvm.sym.Analyzer().simplify
    rows = simplify(substitute(extent, {count: tirx.IntImm("int64", 1)}, {}))
    return int(rows) if isinstance(rows, tirx.IntImm) and is_const(simplify(count * rows - extent), 0) else 0


def of_images(func: tirx.PrimFunc, axis: BatchAxis, count: int) -> tirx.PrimFunc:
    """`func`, whose batch is `axis`, of known size, for `count` images."""
    made: dict[ir.Var, ir.Var] = {}

    def extent(rows: int, dtype: object) -> tirx.IntImm:
        return tirx.IntImm(str(dtype), rows * count)

    def variable(var: ir.Var) -> ir.Var:
        if var not in axis.tensors:
            return var
        if var not in made:
            at, shape = leading(var.shape), list(var.shape)
            shape[at] = extent(axis.tensors[var], shape[at].ty.dtype)
            made[var] = tirx.decl_buffer(shape, str(var.dtype), name=var.name)
        return made[var]

    def loop(node: tirx.For) -> tirx.For:
        rows = axis.iterators.get(node.loop_var)
        if rows is None:
            return node
        return tirx.For(node.loop_var, node.min, extent(rows, node.extent.ty.dtype), node.kind, node.body)

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        iterators = [
            tirx.IterVar(ir.Range(v.dom.min, extent(axis.iterators[v.var], v.dom.extent.ty.dtype)), v.var, v.iter_type)
            if v.var in axis.iterators
            else v
            for v in node.iter_vars
        ]
        return s_tir.SBlock(
            iterators,
            node.reads,
            node.writes,
            node.name_hint,
            node.body,
            node.init,
            node.alloc_buffers,
            node.match_buffers,
            node.annotations,
        )

    params = [variable(param) for param in func.params]
    steps = [(tirx.For, loop), (s_tir.SBlock, block), (ir.Var, variable)]
    body = tvm_ffi.structural_map(func.body, steps, order="post")
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)
