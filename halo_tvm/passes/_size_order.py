"""Sizes that kernels take as numbers, in the order in which they are read: TVM has them in that of their addresses.

Before -> after
    mean(x: [n, h // 2, w // 2], w, h, y: [n])    ->    mean(x: [n, h // 2, w // 2], h, w, y: [n])

Without it one model has other kernels in every process: builds would differ, and records would not be found.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..relay_ops.operator import op_name
from .graph_pass import rebuild, replace_main


def with_sizes_in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose kernels, called by main alone, take their sizes in the order of what needs them."""
    orders = {g: _order(f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    moved = {gvar: order for gvar, order in orders.items() if order != sorted(order)}
    if not moved:
        return mod

    def rewrite(call: relax.Call) -> relax.Expr:
        if op_name(call) != "relax.call_tir" or call.args[0] not in moved:
            return call
        fields = call.args[1].fields
        order = [place for place in moved[call.args[0]] if place < len(fields)]
        args = [call.args[0], relax.Tuple([fields[place] for place in order]), *call.args[2:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    mod = replace_main(mod, rebuild(mod["main"], rewrite))
    for gvar, order in moved.items():
        func = mod[gvar]
        mod[gvar] = tirx.PrimFunc([func.params[i] for i in order], func.body, func.ret_type, func.attrs, func.span)
    return relax.transform.Normalize()(mod)


def _order(func: tirx.PrimFunc) -> list[int]:
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
