"""Sizes that kernels take as numbers, in the order in which they are read: TVM has them in that of their addresses.

Before -> after
    mean(x: [n, h // 2, w // 2], w, h, y: [n])    ->    mean(x: [n, h // 2, w // 2], h, w, y: [n])

Without it one model has other kernels in every process: builds would differ, equal kernels would be there twice, and
neither kept builds nor records would be found. `_compat` has it done for every tensor expression, also in TVM's own
lowerings; `passes/_size_order.py` does it for kernels that are fused.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx


def order_of_sizes(func: tirx.PrimFunc) -> list[int]:
    """The places of the parameters of `func`: tensors stay, numbers stand as they are first read."""
    order = list(range(len(func.params)))
    places = [i for i in order if not isinstance(func.params[i].ty, tirx.BufferType)]
    if len(places) < 2:
        return order
    read: dict[tirx.Var, int] = {}

    def note(node: object) -> None:
        if isinstance(node, tirx.Var):
            read.setdefault(node, len(read))

    for param in func.params:
        for dim in param.ty.shape if isinstance(param.ty, tirx.BufferType) else ():
            tvm_ffi.structural_walk(dim, note)
    tvm_ffi.structural_walk(func.body, note)
    for place, source in zip(places, sorted(places, key=lambda i: read.get(func.params[i], len(read)))):
        order[place] = source
    return order


def with_order(func: tirx.PrimFunc, order: Sequence[int]) -> tirx.PrimFunc:
    """`func` with its parameters in `order`."""
    params = [func.params[place] for place in order]
    return tirx.PrimFunc(params, func.body, func.ret_type, func.attrs, func.span)


def args_in_order(args: Sequence[ir.Expr], order: Sequence[int]) -> list[ir.Expr]:
    """What a call gives a function whose parameters are in `order`; its results are not among `args`."""
    return [args[place] for place in order if place < len(args)]
