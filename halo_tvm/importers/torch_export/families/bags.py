"""Embeddings of bags of indices, and the places of values in sorted sequences."""

from __future__ import annotations

import torch
from torch import fx
from tvm import ir, relax, te, tirx

from ....relay_ops.operator import clamped
from ...meaning.builder import expr_dtype
from ...meaning.searching import places_among
from .._call import Call
from .._registry import converter, target_name


@converter("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(c: Call) -> tuple[relax.Expr]:
    """Sums, means or maxima of the rows of each bag; an empty bag is zero. What training needs besides is left out.

    Bag b begins at offsets[b] and ends where the next one begins; bags of one length, which torch makes of indices of
    rank 2, are read without looking for their ends.
    """
    mode, padding = int(c["mode"]), int(c["padding_idx"])
    weight, indices, offsets = (c.tensor(name) for name in ("weight", "indices", "offsets"))
    shares = [c.tensor("per_sample_weights")] if c.has("per_sample_weights") else []
    length = _bag_length(c.nodes["offsets"])
    dtype = expr_dtype(weight)
    wide = "float64" if dtype == "float64" else "float32"
    bags = c.shape[0]

    def compute(weight: te.Tensor, indices: te.Tensor, offsets: te.Tensor, *shares: te.Tensor) -> te.Tensor:
        n, rows, begins = indices.shape[0], weight.shape[0], offsets.shape[0]
        zero, smallest = tirx.const(0, wide), te.min_value(wide)

        def start(b: ir.Expr) -> ir.Expr:
            inside = offsets[tirx.min(b, begins - 1)].astype("int64")
            return tirx.Select(b < begins, inside, n.astype("int64"))

        def used(b: ir.Expr, i: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            """(position, whether it belongs to the bag)"""
            at = b * length + i if length else i
            counted = indices[at] != padding
            return at, counted if length else tirx.all(counted, start(b) <= at, at < start(b + 1))

        span = tirx.const(length, "int64") if length else n
        i = te.reduce_axis((0, span), "i")

        def total(b: ir.Expr, d: ir.Expr) -> ir.Expr:
            at, mine = used(b, i)
            row = clamped(indices[at], rows)
            value = weight[row, d].astype(wide)
            if mode == 2:
                return te.max(tirx.if_then_else(mine, value, smallest), axis=[i])
            return te.sum(tirx.if_then_else(mine, value * shares[0][at] if shares else value, zero), axis=[i])

        out = te.compute([bags, weight.shape[1]], total, name="bag")
        if mode == 0:
            return te.compute(out.shape, lambda b, d: out[b, d].astype(dtype), name="narrowed")
        j = te.reduce_axis((0, span), "j")
        counts = te.compute([bags], lambda b: te.sum(used(b, j)[1].astype(wide), axis=[j]), name="counts")

        def finished(b: ir.Expr, d: ir.Expr) -> ir.Expr:
            value = out[b, d] / counts[b] if mode == 1 else out[b, d]
            return tirx.Select(counts[b] > zero, value, zero).astype(dtype)

        return te.compute(out.shape, finished, name="finished")

    return (c.te(compute, weight, indices, offsets, *shares, name="embedding_bag"),)


def _bag_length(offsets: object) -> int:
    """Of bags of one length, whose offsets are a range that torch has written; else 0."""
    if not isinstance(offsets, fx.Node) or target_name(offsets.target) != "aten.arange.start_step":
        return 0
    start, end, step = (*offsets.args, 1)[:3]
    regular = all(isinstance(v, int) for v in (start, end, step)) and start == 0 and end % step == 0
    return int(step) if regular else 0


@converter("searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar")
def searchsorted(c: Call) -> relax.Expr:
    """How many elements of the last axis lie before a value; at its right side, those equal to it count as well."""
    c.refuse_unless(not c.has("sorter"), "expected no sorter, found one: sort the sequence")
    name = "boundaries" if "bucketize" in c.op else "sorted_sequence"
    edges, value = c.tensor(name), c["self"]
    common = torch.result_type(c.meta("self"), c.meta(name))
    dtype = "float64" if common is torch.float64 else "float32" if common.is_floating_point else "int64"
    values = c.cast(c.as_tensor(value, None), dtype)
    right = c.nodes.get("side") == "right" or bool(c["right"])
    return c.cast(places_among(c, c.cast(edges, dtype), values, right=right), c.dtype)
