"""Sizes that a run computes, in the order of their slots: TVM writes them in that of their addresses.

Before -> after, in a function that the virtual machine calls with its heap H of sizes
    H[3] = 8 * H[0]; H[2] = 4 * H[0]    ->    H[2] = 4 * H[0]; H[3] = 8 * H[0]

Without it two builds of one model differ, and the second finds no library of the first.
"""

from __future__ import annotations

import tvm
from tvm import tirx


@tvm.transform.module_pass(opt_level=0, name="OrderShapeFunctions")
def order_shape_functions(mod: tvm.IRModule, _context: object) -> tvm.IRModule:
    """Sort what `VMShapeLower` made; each size is computed of those of the arguments, so that any order will do."""
    mod = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and func.attrs.get("tirx.is_host_func") and _stores(func.body):
            in_order = sorted(func.body.seq, key=lambda store: int(store.indices[0]))
            mod[gvar] = func.with_body(tirx.SeqStmt(in_order))
    return mod


def _stores(body: tirx.Stmt) -> bool:
    """Whether `body` is stores of numbered slots, and nothing else."""
    return isinstance(body, tirx.SeqStmt) and all(
        isinstance(s, tirx.BufferStore) and len(s.indices) == 1 and isinstance(s.indices[0], tirx.IntImm)
        for s in body.seq
    )
