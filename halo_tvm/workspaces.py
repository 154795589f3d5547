"""Memory between the kernels of one function becomes tensors of main, for the memory plan and for CUDA graphs.

Before -> after, in a module whose functions are scheduled for a GPU
    y = call_tir(f, x, out=[m, 8]);       f(x, y): part = alloc_buffer([m, 4]); kernels
        ->   lv = call_tir(f, x, out=([m, 8], [m, 4]));  y = lv[0];       f(x, y, part): kernels
Serves
    buffers of global memory that are allocated around kernels, of sizes that follow from the function's parameters
Leaves alone
    functions that are called in another way (in place), and buffers of a size or layout that a caller does not know:
    they come from the pool of TVM's runtime at every call, and `keeps_workspace` says so
The memory is there for the whole call, also where a size decides at run time that its kernels are not launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from .tir_schedules.blocks import allocated

_CALL = "relax.call_tir"
_HOST_LOOPS = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)  # one step after the other: they may share a workspace
Sizes = dict[ir.Var, ir.Expr]  # the symbolic sizes of a function -> what they are for its caller


@tvm.transform.module_pass(opt_level=0, name="halo.LiftWorkspaces")
class LiftWorkspaces:
    """The pass, for scheduled functions that main still calls with call_tir."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        found = {gvar: _workspaces(func) for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
        callers = [func for _, func in mod.functions_items() if isinstance(func, relax.Function)]
        served = _only_called({gvar for gvar, buffers in found.items() if buffers}, callers, mod)
        return _Lifter(mod, {gvar: found[gvar] for gvar in served}).lifted() if served else mod


def keeps_workspace(func: tirx.PrimFunc) -> bool:
    """Whether kernels of `func` meet in memory that is none of its parameters."""
    return bool(_allocated(func.body))


def _workspaces(func: tirx.PrimFunc) -> tuple[ir.Var, ...]:
    """The buffers of `func` that its caller can allocate."""
    inside: list[ir.Var] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind not in _HOST_LOOPS:
            inside.extend(_allocated(loop.body))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="pre")
    known = [dim for param in func.params for dim in _dims(param) if isinstance(dim, ir.Var)]
    return tuple(b for b in _allocated(func.body) if not _among(b, inside) and _is_plain(b.ty, known))


def _allocated(body: tirx.Stmt) -> list[ir.Var]:
    """The buffers of global memory that `body` allocates, in order."""
    return [buffer for buffer in allocated(body) if buffer.scope() == "global"]


def _is_plain(ty: tirx.BufferType, known: Sequence[ir.Var]) -> bool:
    """Whether a Relax tensor is such a buffer: dense from its start, its sizes made of those that are `known`."""
    dims = all(_among(var, known) for dim in ty.shape for var in tirx.analysis.undefined_vars(dim))
    return dims and not ty.strides and isinstance(ty.elem_offset, tirx.IntImm) and int(ty.elem_offset) == 0


def _dims(param: ir.Var) -> Sequence[ir.Expr]:
    return param.ty.shape if isinstance(param.ty, tirx.BufferType) else ()


def _among(var: ir.Var, others: Iterable[ir.Var]) -> bool:
    return any(var.same_as(other) for other in others)


def _only_called(gvars: set[ir.GlobalVar], callers: Sequence[relax.Function], mod: tvm.IRModule) -> set[ir.GlobalVar]:
    """Those of `gvars` that nothing but call_tir names, with arguments of known shapes."""
    others: set[ir.GlobalVar] = set()

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        served = _is_call_tir(expr) and (expr.args[0] not in gvars or _sizes(mod[expr.args[0]], expr) is not None)
        others.update(a for a in (expr.op, *expr.args) if isinstance(a, ir.GlobalVar) and not served)

    for func in callers:
        relax.analysis.post_order_visit(func, visit)
    return gvars - others


def _is_call_tir(call: relax.Call) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name == _CALL and len(call.args) == 2


def _sizes(func: tirx.PrimFunc, call: relax.Call) -> Sizes | None:
    """What the sizes of `func` are where it is called; None where the shape of an argument is not known."""
    sizes: Sizes = {}
    given = [*(argument.ty for argument in call.args[1].fields), *_outputs(call)]
    for param, ty in zip(func.params, given, strict=True):
        dims = _dims(param)
        shape = getattr(ty, "shape", None)
        if dims and not isinstance(shape, relax.ShapeExpr):
            return None
        sizes |= {dim: at for dim, at in zip(dims, shape.values if dims else ()) if isinstance(dim, ir.Var)}
    return sizes


def _outputs(call: relax.Call) -> list[relax.TensorType]:
    (ty,) = call.ty_args
    return [ty] if isinstance(ty, relax.TensorType) else list(ty.fields)


@relax.expr_functor.mutator
class _Lifter(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, workspaces: Mapping[ir.GlobalVar, tuple[ir.Var, ...]]) -> None:
        rest = mod.clone()
        for gvar in workspaces:
            del rest[gvar]
        super().__init__(rest)
        self._mod, self._workspaces = mod, workspaces
        # A variable of a function has its signature as type: with other parameters it is another one, of the same name.
        self._names = {
            gvar: self.builder_.add_func(_with_parameters(mod[gvar], buffers), gvar.name_hint)
            for gvar, buffers in workspaces.items()
        }

    def lifted(self) -> tvm.IRModule:
        for gvar, func in list(self._mod.functions_items()):
            if isinstance(func, relax.Function):
                self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not _is_call_tir(call) or call.args[0] not in self._workspaces:
            return call
        old, outputs = call.args[0], _outputs(call)
        sizes = _sizes(self._mod[old], call)
        types = [_tensor(buffer.ty, lambda v: sizes.get(v, v)) for buffer in self._workspaces[old]]
        made = self.builder_.emit(relax.op.call_tir(self._names[old], call.args[1], [*outputs, *types]))
        if isinstance(call.ty_args[0], relax.TensorType):
            return relax.TupleGetItem(made, 0)
        return relax.Tuple([self.builder_.emit(relax.TupleGetItem(made, i)) for i in range(len(outputs))])


def _tensor(ty: tirx.BufferType, bound: Callable[[ir.Var], ir.Expr]) -> relax.TensorType:
    dims = [tvm_ffi.structural_map(dim, (ir.Var, bound)).astype("int64") for dim in ty.shape]
    return relax.TensorType(dims, str(ty.dtype))


def _with_parameters(func: tirx.PrimFunc, buffers: Sequence[ir.Var]) -> tirx.PrimFunc:
    """`func` whose caller hands it `buffers`, behind its other parameters."""

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        kept = [b for b in node.alloc_buffers if not _among(b, buffers)]
        if len(kept) == len(node.alloc_buffers):
            return node
        return s_tir.SBlock(
            node.iter_vars,
            node.reads,
            node.writes,
            node.name_hint,
            node.body,
            node.init,
            kept,
            node.match_buffers,
            node.annotations,
            node.span,
        )

    def statement(node: tirx.AllocBuffer) -> tirx.Stmt:
        return tirx.Evaluate(tirx.IntImm("int32", 0)) if _among(node.buffer, buffers) else node

    body = tvm_ffi.structural_map(func.body, [(s_tir.SBlock, block), (tirx.AllocBuffer, statement)], order="post")
    return tirx.PrimFunc([*func.params, *buffers], body, func.ret_type, func.attrs, func.span)
