"""Sizes are never negative, and TVM's lowering is told so: a division by a size needs no case for each sign.

Before -> after
    f(x: [n, 16 * q + 16], q):  body    ->    f(x: [n, size0], q):  if n >= 0 and q >= 0 and size0 >= 0: body
Serves
    the dimensions of a function's tensors, computed ones by a name (`named_sizes`), and the integers it is given beside
    them where each caller gives a size
Leaves alone
    integers that may be other things than sizes, and functions without a root block
Without it a row of nested divisions, as in a transposition of [(h - 1) // 32 * 16 + 16, (w - 1) // 32 * 16 + 16], takes
the simplifier a minute and a half: it tries every combination of their signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tvm
from tvm import ir, relax, s_tir, tirx

from .named_sizes import tensor_sizes, with_named_sizes
from .passes.graph_pass import is_part
from .relay_ops.operator import op_name

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


@tvm.transform.module_pass(opt_level=0, name="halo.KnownSizes")
class KnownSizes:
    """The pass, for scheduled functions that Relax calls with call_tir."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        unsure = _unsure(mod)
        out = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                out[gvar] = with_known_sizes(func, unsure.get(gvar, ()))
        return out


def with_known_sizes(func: tirx.PrimFunc, besides: Iterable[int] = ()) -> tirx.PrimFunc:
    """`func` that does nothing if a size is negative; parameters at the positions `besides` may be no sizes."""
    inside = [var for dim in tensor_sizes(func) for var in tirx.analysis.undefined_vars(dim)]
    func = with_named_sizes(func)
    block = getattr(func.body, "block", None)
    sizes = _sizes(func, inside, frozenset(besides))
    if block is None or block.iter_vars or block.match_buffers or not sizes:
        return func
    known = sizes[0] >= 0
    for size in sizes[1:]:
        known = tirx.And(known, size >= 0)
    body = tirx.IfThenElse(known, block.body, None)
    root = s_tir.SBlock([], [], [], "root", body, None, block.alloc_buffers, [], block.annotations)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))


def _sizes(func: tirx.PrimFunc, inside: Sequence[ir.Var], besides: frozenset[int]) -> list[ir.Var]:
    """Dimensions of tensors that are variables, and integers among `inside`, which dimensions are made of."""
    found = [dim for dim in tensor_sizes(func) if isinstance(dim, ir.Var)]
    for position, param in enumerate(func.params):
        if position not in besides and not isinstance(param.ty, tirx.BufferType) and _among(param, inside):
            found.append(param)
    return [var for i, var in enumerate(found) if not _among(var, found[:i])]


def _unsure(mod: tvm.IRModule) -> dict[ir.GlobalVar, set[int]]:
    """For each function that Relax calls, the positions where a caller gives what is no size of its own tensors."""
    found: dict[ir.GlobalVar, set[int]] = {}
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        counted = is_part(func)  # it is told which images, of which there are none or more
        shapes = (
            p.ty if counted and isinstance(p.ty, relax.ShapeType) else getattr(p.ty, "shape", None) for p in func.params
        )
        sizes = [dim for shape in shapes for dim in getattr(shape, "values", ()) if isinstance(dim, ir.Var)]

        def visit(call: relax.Expr, sizes: Sequence[ir.Var] = sizes) -> None:
            if op_name(call) in _CALLS:
                given = enumerate(call.args[1].fields)
                found.setdefault(call.args[0], set()).update(i for i, arg in given if not _among(arg, sizes))

        relax.analysis.post_order_visit(func, visit)
    return found


def _among(var: object, some: Iterable[ir.Var]) -> bool:
    return any(other.same_as(var) for other in some)
