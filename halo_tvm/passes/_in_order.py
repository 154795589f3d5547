"""On CPUs, running sums and products and scatters by nests whose tasks have elements side by side.

Before -> after
    relax.cumsum, cumprod, scatter_elements, scatter_nd of main   ->   kernels of `relay_ops.parts.in_order`
TVM's own nests do one element of the last axes at a time, start threads for every row, and write to whatever place an
index names.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ..relay_ops.operator import op_name
from ..relay_ops.parts.in_order import COMBINED, elements_written, rows_written, running
from ._kernels import Kernel, with_kernels
from .graph_pass import bindings

_RUNNING = {"relax.cumsum": ("add", 0), "relax.cumprod": ("mul", 1)}


def lower_in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose main calls these kernels."""
    found = {b.var: kernel for b in bindings(mod["main"]) if (kernel := _kernel(b.value)) is not None}
    return with_kernels(mod, found)[0]


def _kernel(call: relax.Expr) -> Kernel | None:
    name = op_name(call)
    if name in _RUNNING and call.attrs.axis is not None:
        how, neutral = _RUNNING[name]
        axis, dtype = int(call.attrs.axis) % call.args[0].ty.ndim, str(call.ty.dtype)
        options = (axis, dtype, bool(call.attrs.exclusive), COMBINED[how], neutral)
        return Kernel(lambda x: running(x, *options), (call.args[0],), name.removeprefix("relax."))
    if name not in ("relax.scatter_elements", "relax.scatter_nd") or str(call.attrs.reduction) not in COMBINED:
        return None
    combine, operands = COMBINED[str(call.attrs.reduction)], tuple(call.args)
    if name == "relax.scatter_nd":
        return Kernel(lambda d, i, u: rows_written(d, i, u, combine), operands, "scatter_nd")
    axis = int(call.attrs.axis) % operands[0].ty.ndim
    return Kernel(lambda d, i, u: elements_written(d, i, u, axis, combine), operands, "scatter_elements")
