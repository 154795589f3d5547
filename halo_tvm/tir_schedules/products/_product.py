"""Recognise a product with a plain weight matrix and the element-wise stages behind it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tvm import ir, tirx

from ...errors import Declined
from ..blocks import Block, loads
from ..code.timed import timed_values
from ..stages import Stage, is_at, main_and_behind, read_stages, written_by


@dataclass(frozen=True)
class Product:
    """x [m, k] times weight, [n, k] or [k, n], into acc [m, n] of float32, then stages, all over [m, n]."""

    x: ir.Var
    weight: ir.Var
    acc: ir.Var
    stages: tuple[Stage, ...]
    outputs: tuple[ir.Var, ...]  # buffers of the stages (or acc) that are function parameters
    m: ir.Expr
    n: int
    k: int
    by_column: bool  # the weight is [n, k]: neighbours in memory are neighbours along k
    timed: tuple[int, ...] = ()  # the only numbers of rows that matter; empty: all do

    @property
    def rows(self) -> int | None:
        """The number of rows when it is static."""
        return int(self.m.value) if isinstance(self.m, tirx.IntImm) else None

    @property
    def x_dtype(self) -> str:
        return str(self.x.ty.dtype)

    @property
    def weight_dtype(self) -> str:
        return str(self.weight.ty.dtype)


@functools.lru_cache(maxsize=16)  # a search asks for hundreds of estimates of one function
def match_product(func: tirx.PrimFunc) -> Product:
    """The product `func` consists of; `Declined` with the first reason why it is none."""
    main, behind = main_and_behind(func, ("linear",), "the linear block")
    x, weight, acc, by_column = _operands(main)
    m, k = main.extents[0], int(main.extents[2].value)
    n = int(main.extents[1].value)
    stages = read_stages(behind, acc, "rows, columns", main.extents[:2], "the linear block")
    outputs = written_by(stages, acc, func)
    return Product(x, weight, acc, stages, outputs, m, n, k, by_column, timed_values(func, m))


def _operands(block: Block) -> tuple[ir.Var, ir.Var, ir.Var, bool]:
    """(x, weight, acc, whether the weight is [n, k]) of the main block."""
    store = linear_store(block)
    if str(store.buffer.ty.dtype) != "float32":
        raise Declined(f"sums are {store.buffer.ty.dtype}: only float32 is served")
    x, weight = factors(block)
    if len(weight.indices) != 2:
        raise Declined(f"weight has rank {len(weight.indices)}: it is packed for a CPU")
    if not all(isinstance(dim, tirx.IntImm) for dim in block.extents[1:]):
        raise Declined(f"a weight of static shape is served, found {block.extents[1]} columns of {block.extents[2]}")
    i, j, k = block.vars
    by_column = weight.indices[0].same_as(j) and weight.indices[1].same_as(k)
    by_row = weight.indices[0].same_as(k) and weight.indices[1].same_as(j)
    of_x = len(x.indices) == 2 and x.indices[0].same_as(i) and x.indices[1].same_as(k)
    if not (of_x and (by_column or by_row)):
        raise Declined("the linear block does not compute acc[i, j] + x[i, k] * weight[j, k] (or [k, j])")
    return x.source, weight.source, store.buffer, by_column


def linear_store(block: Block) -> tirx.BufferStore:
    """What the main block of a linear stores, over rows, columns and depth; `Declined` where it does otherwise."""
    if block.store is None or not block.plain:
        raise Declined("the linear block is not a single store in a plain loop nest (already scheduled?)")
    if block.kinds != "SSR":
        raise Declined(f"x has rank {len(block.kinds) - 1}: rows must be flattened to rank 2 first")
    return block.store


def factors(block: Block) -> tuple[ir.TensorLoad, ir.TensorLoad]:
    """The loads of a and b, which may be widened, of a block whose each element is the sum of a * b over its last axis.

    `Declined` for another.
    """
    store, init = block.store, block.node.init
    starts_at_zero = (
        isinstance(init, tirx.BufferStore) and isinstance(init.value, tirx.FloatImm) and init.value.value == 0
    )
    if not is_at(store.indices, block.vars[:-1]) or not starts_at_zero:
        raise Declined("the product does not start at zero, or is stored at other indices than it runs over")
    total = store.value
    if isinstance(total, tirx.Add) and isinstance(total.a, ir.TensorLoad) and total.a.source.same_as(store.buffer):
        read = loads(total.b)
        if isinstance(total.b, tirx.Mul) and len(read) == 2:
            a, b = (side.value if isinstance(side, tirx.Cast) else side for side in (total.b.a, total.b.b))
            if isinstance(a, ir.TensorLoad) and isinstance(b, ir.TensorLoad):
                return a, b
    raise Declined("the product does not add a * b to what it stores to")
