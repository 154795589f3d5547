"""Views of memory by strides, as `as_strided` takes them: overlapping windows, above all.

A program of ours has tensors, no memory behind them. So the tensor is looked for that torch lays out in that memory,
dense and whole; the view reads its elements in the order in which they lie.
"""

from __future__ import annotations

import torch
from torch import fx
from tvm import ir, relax, te, tirx

from ...meaning.builder import Refused
from ...meaning.sizes import prim
from .._call import Call
from .._registry import converter


@converter("as_strided.default", "as_strided_copy.default")
def as_strided(c: Call) -> relax.Expr:
    """out[i, j, ...] = memory[offset + i * stride[0] + j * stride[1] + ...]"""
    view = c.node.all_input_nodes[0]
    memory = _as_it_lies(c, _holder(view))
    offset = c["storage_offset"] if c.has("storage_offset") else view.meta["val"].storage_offset()
    offset = offset if isinstance(offset, int | ir.Expr) else c.translator.dims.expr(offset)
    steps = [prim(step) for step in (*c["stride"], offset)]
    fixed = all(isinstance(d, tirx.IntImm) for d in (*c.shape, *steps, *memory.ty.shape.values))

    def compute(memory: te.Tensor, shape: list[tirx.PrimExpr], steps: list[tirx.PrimExpr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            *strides, place = steps
            for index, stride in zip(i, strides, strict=True):
                place = place + index * stride
            # of open sizes torch only assumes that all of this is there: no run reads beside the tensor
            return memory[place if fixed else tirx.max(tirx.min(place, memory.shape[0] - 1), tirx.IntImm("int64", 0))]

        return te.compute(shape, at, name="as_strided")

    return c.te(compute, memory, c.shape, steps, name="as_strided")


def _holder(node: fx.Node) -> fx.Node:
    """The tensor that lies in the memory of `node` and fills it: itself, or what it is a view of."""
    memory = _memory(node)
    while not _fills(node.meta["val"]):
        before = node.all_input_nodes[:1]
        if before and isinstance(before[0].meta.get("val"), tuple | list):  # one of the parts of a tensor
            before = before[0].all_input_nodes[:1]
        if not before or _memory(before[0]) != memory:
            raise Refused("memory that no tensor fills")
        node = before[0]
    return node


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _fills(value: torch.Tensor) -> bool:
    """Whether a tensor is dense in some order of its axes and there is nothing else in its memory."""
    if value.storage_offset() != 0 or value.untyped_storage().nbytes() != value.numel() * value.element_size():
        return False
    step = 1
    for axis in _order(value)[::-1]:
        if value.shape[axis] != 1 and value.stride(axis) != step:
            return False
        step = step * value.shape[axis]
    return True


def _order(value: torch.Tensor) -> list[int]:
    """Axes as they lie in memory, the one with the largest stride first."""
    return sorted(range(value.dim()), key=lambda axis: value.stride(axis), reverse=True)


def _as_it_lies(c: Call, node: fx.Node) -> relax.Expr:
    """The elements of a tensor that fills its memory, in a row."""
    value = node.meta["val"]
    count = c.sizes.product(c.translator.dims.shape(value.shape))
    return c.reshape(c.permute(c.translator.env[node], _order(value)), [count])
