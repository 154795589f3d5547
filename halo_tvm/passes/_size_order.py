"""Kernels that TVM has fused, with their sizes in the order in which they are read: see `size_order`."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from ..relay_ops.operator import op_name
from ..size_order import args_in_order, order_of_sizes, with_order
from .graph_pass import rebuild, replace_main


def with_sizes_in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose kernels, called by main alone, take their sizes in the order of what needs them."""
    orders = {g: order_of_sizes(f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    moved = {gvar: order for gvar, order in orders.items() if order != sorted(order)}
    if not moved:
        return mod

    def rewrite(call: relax.Call) -> relax.Expr:
        if op_name(call) != "relax.call_tir" or call.args[0] not in moved:
            return call
        given = args_in_order(call.args[1].fields, moved[call.args[0]])
        return relax.Call(call.op, [call.args[0], relax.Tuple(given), *call.args[2:]], call.attrs, call.ty_args)

    out = replace_main(mod, rebuild(mod["main"], rewrite))
    for gvar, order in moved.items():
        out[gvar] = with_order(mod[gvar], order)
    return relax.transform.Normalize()(out)
