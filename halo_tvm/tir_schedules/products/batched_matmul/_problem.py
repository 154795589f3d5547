"""Recognise what the rule serves: the product of two run-time matrices, and the element-wise stages behind it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.sym import Analyzer

from ....errors import Declined
from ...blocks import is_const
from ...code.lanes import as_int64, constant
from ...stages import Stage, main_and_behind, read_stages, written_by
from .._product import factors

_SHORT = 16  # products of a sum below which its row is no vector


@dataclass(frozen=True)
class Problem:
    """product[batch..., i, j] = sum over k of a[batch..., i, k] * b[batch..., k, j], then stages over the same axes."""

    a: ir.Var
    b: ir.Var
    product: ir.Var
    a_transposed: bool  # a is [batch..., k, i]
    b_transposed: bool  # b is [batch..., j, k]
    b_shared: bool  # b has no batch axes
    batch: tuple[ir.Expr, ...]
    m: ir.Expr
    n: ir.Expr
    k: ir.Expr
    stages: tuple[Stage, ...]
    outputs: tuple[ir.Var, ...]

    def a_at(self, batch: Sequence[ir.Expr], row: ir.Expr, k: ir.Expr) -> ir.TensorLoad:
        return self.a[(*batch, k, row) if self.a_transposed else (*batch, row, k)]

    def b_at(self, batch: Sequence[ir.Expr], k: ir.Expr, column: ir.Expr) -> ir.TensorLoad:
        lead = () if self.b_shared else tuple(batch)
        return self.b[(*lead, column, k) if self.b_transposed else (*lead, k, column)]

    def sizes(self, values: Mapping[ir.Var, int]) -> tuple[int, int, int, int]:
        """(number of products, m, n, k) at these values of the symbolic dimensions."""
        analyzer = Analyzer()
        for var, value in values.items():
            analyzer.bind(var, tirx.const(value, str(var.ty.dtype)))
        m, n, k, *batch = (constant(analyzer.simplify(e)) for e in (self.m, self.n, self.k, *self.batch))
        count = 1
        for size in batch:
            count *= size
        return count, m, n, k


@functools.lru_cache(maxsize=16)  # a search asks for dozens of estimates of one function
def match(func: tirx.PrimFunc) -> Problem:
    """The product `func` consists of; `Declined` with the first reason why it is none."""
    main, behind = main_and_behind(func, ("matmul",), "the product")
    store, rank = main.store, len(main.kinds) - 1
    if store is None or not main.plain or rank < 2 or main.kinds != "S" * rank + "R":
        raise Declined("the product is not a single store in a plain loop nest (already scheduled?)")
    a, b = factors(main)
    dtypes = [str(buffer.ty.dtype) for buffer in (a.source, b.source, store.buffer)]
    if dtypes != ["float32"] * 3:
        raise Declined(f"operands and sum are {', '.join(dtypes)}: only float32 is served")
    *batch, i, j, k = main.vars
    a_transposed = _transposed(a, batch, i, k)
    b_shared = len(b.indices) == 2 and bool(batch)
    b_transposed = _transposed(b, [] if b_shared else batch, k, j)
    axes = ", ".join([*("batch" for _ in batch), "row", "column"])
    stages = read_stages(behind, store.buffer, axes, main.extents[:-1], "the product")
    *lead, m, n, depth = map(as_int64, main.extents)
    long = (constant(depth) or _SHORT) >= _SHORT
    if long and (is_const(n, 1) and not a_transposed or is_const(m, 1) and b_transposed):
        raise Declined("a matrix, whose rows lie in order, times one vector, where panels of columns would be padding")
    outputs = written_by(stages, store.buffer, func)
    turned, sizes = (a_transposed, b_transposed, b_shared), (tuple(lead), m, n, depth)
    return Problem(a.source, b.source, store.buffer, *turned, *sizes, stages, outputs)


def _transposed(load: ir.TensorLoad, batch: Sequence[ir.Var], row: ir.Var, column: ir.Var) -> bool:
    """Whether `load` is at [batch..., column, row] instead of [batch..., row, column]; `Declined` for anything else."""
    for transposed, order in ((False, (*batch, row, column)), (True, (*batch, column, row))):
        if len(load.indices) == len(order) and all(x.same_as(y) for x, y in zip(load.indices, order)):
            return transposed
    raise Declined(f"{load.source.name} is read at {list(load.indices)}, which are not the axes of a matrix product")
