"""Running sums and products, on CPUs, in vectors of what lies beside each other.

Before -> after
    for i, j: for k: y[i, k, j] = y[i, k - 1, j] + x[i, k, j]   ->   for i, part of j: for k: for j in the part: ...
TVM's own nest has one element of the last axes at a time, whose neighbours along k lie a row apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import ir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..relay_ops.operator import op_name
from ..tir_schedules.code.lanes import constant, index, product
from ._kernels import Kernel, with_kernels
from .graph_pass import bindings

_OF_TWO = {"relax.cumsum": (operator.add, 0), "relax.cumprod": (operator.mul, 1)}
_NARROWEST = 32  # elements side by side of a task: two lines of memory
_MOST_TASKS = 8  # of the elements side by side


def lower_scans(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose main calls kernels for running sums and products along one axis."""
    kernels = {}
    for binding in bindings(mod["main"]):
        name, call = op_name(binding.value), binding.value
        if name in _OF_TWO and call.attrs.axis is not None:
            axis, dtype = int(call.attrs.axis) % call.args[0].ty.ndim, str(call.ty.dtype)
            nest = partial(_running, axis=axis, dtype=dtype, exclusive=bool(call.attrs.exclusive), of=_OF_TWO[name])
            kernels[binding.var] = Kernel(nest, (call.args[0],), name.removeprefix("relax."))
    return with_kernels(mod, kernels)[0]


def _running(
    x: te.Tensor, axis: int, dtype: str, exclusive: bool, of: tuple[Callable[[ir.Expr, ir.Expr], ir.Expr], int]
) -> te.Tensor:
    combine, neutral = of
    before, after = product([*x.shape[:axis]]), product([*x.shape[axis + 1 :]])
    length, (parts, width) = x.shape[axis], _parts(after)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> ir.Expr:
        given, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        with IRBuilder() as built, T.parallel(0, before * parts) as task:
            first = tirx.floordiv(task, parts) * (length * after) + tirx.floormod(task, parts) * width
            with T.serial(0, tirx.min(length, index(1))), T.serial(0, width) as j:
                out[first + j] = tirx.const(neutral, dtype) if exclusive else given[first + j].astype(dtype)
            with T.serial(0, length - 1) as k, T.serial(0, width) as j:
                at = first + k * after + j
                out[at + after] = combine(out[at], given[at if exclusive else at + after].astype(dtype))
        return built.get()

    result = tirx.decl_buffer(x.shape, dtype, "out")
    return te.extern([x.shape], [x], nest, name="scan", dtype=[dtype], out_buffers=[result])


def _parts(side_by_side: ir.Expr) -> tuple[int, ir.Expr]:
    """How many tasks have elements that lie beside each other, and how many each."""
    known = constant(side_by_side) or 1
    parts = max(n for n in range(1, _MOST_TASKS + 1) if n == 1 or known % n == 0 and known // n >= _NARROWEST)
    return (1, side_by_side) if parts == 1 else (parts, index(known // parts))
