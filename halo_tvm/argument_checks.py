"""Arguments are checked where they enter a library; between its kernels only sizes are.

Before -> after, in a function whose arguments TVM has packed
    for each tensor: assert its kind; its rank; its type; its device; its strides; each size    ->    assert all sizes
Before -> after, in a module
    main(x, w): work    ->    main(x, w): halo_dense(x, w); work
Serves
    functions for CPUs that only the virtual machine calls. It makes the tensors between them, and checks ranks, types
    and sizes of those that enter, but not whether these are dense: `launcher/tensors.cc` does
Leaves alone
    assertions in the work itself, and functions in which something else stands between TVM's checks
What TVM makes of a check that fails is nine tenths of the code of a function's entry, and of small functions the larger
part. Of models with many of them LLVM takes half as long without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from .any_address import any_address
from .launcher import DENSE
from .loads_in_order import loads_in_order

PIPELINE = "halo_tvm"  # the name to give to `tirx.build` and `relax.build`
OTHER_SIZES = "Mismatched sizes of arguments when calling:\n  `"  # behind it stands the function's signature
_TOGETHER = 64  # sizes of a check: TVM walks what belongs together by recursion
_WORK = "compute_scope"
_READ, _OF_ARRAY = "tirx.tvm_struct_get", 17  # TVM's `kInt64ArrayElem`, of sizes


def _pipeline() -> tuple[tvm.transform.Pass, object, object]:
    passes, of_host, of_device = default_s_tir_pipeline()
    return passes, lambda: tvm.ir.transform.Sequential([any_address, only_sizes, loads_in_order, of_host()]), of_device


register_tir_pipeline(PIPELINE, _pipeline)


@tvm.transform.module_pass(opt_level=0, name="halo.CheckEntries")
def check_entries(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """The pass, for a module of Relax functions: those that none of the others calls ask for dense tensors."""
    functions = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, relax.Function)}
    called: set[ir.GlobalVar] = set()
    for func in functions.values():
        tvm_ffi.structural_walk(func.body, (ir.GlobalVar, called.add))
    mod = mod.clone()
    for gvar, func in functions.items():
        tensors = [param for param in func.params if isinstance(param.ty, relax.TensorType)]
        if gvar not in called and tensors:
            mod[gvar] = _asking(func, tensors)
    return mod


def _asking(func: relax.Function, tensors: Sequence[relax.Var]) -> relax.Function:
    nothing = relax.TupleType([])
    call = relax.Call(relax.ExternFunc(DENSE), tensors, ty_args=[nothing])
    block = relax.BindingBlock([relax.VarBinding(relax.Var("_", nothing), call)])
    body = relax.SeqExpr([block, *func.body.blocks], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, is_pure=False, attrs=func.attrs)


@tvm.transform.module_pass(opt_level=0, name="halo.OnlySizes")
def only_sizes(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """The pass, for functions behind TVM's `MakePackedAPI`."""
    mod = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            entry = _Entry()
            if entry.take(func.body):
                mod[gvar] = func.with_body(entry.checking_sizes())
    return mod


class _Entry:
    """Bindings, scopes and checks of sizes in front of a function's work."""

    def __init__(self) -> None:
        self.statements: list[tirx.Stmt] = []
        self.scopes: list[tirx.AttrStmt] = []
        self.sizes: list[tirx.AssertStmt] = []
        self.work: list[tirx.Stmt] = []

    def take(self, body: tirx.Stmt) -> bool:
        """Take the statements of `body`; False for one of a kind that TVM puts elsewhere."""
        if isinstance(body, tirx.SeqStmt):
            return all(map(self.take, body.seq))
        if self.work or isinstance(body, tirx.DeclBuffer | tirx.Evaluate):
            self.work.append(body)
        elif isinstance(body, tirx.AttrStmt) and (body.attr_key == _WORK or _WORK in str(body.node)):
            self.work.append(body)
        elif isinstance(body, tirx.AttrStmt):
            self.scopes.append(body)
            return self.take(body.body)
        elif isinstance(body, tirx.Bind):
            self.statements.append(body)
        elif isinstance(body, tirx.AssertStmt):
            if _reads_sizes(body.condition):
                self.sizes.append(body)
        else:  # the check of strides, where there are any
            return isinstance(body, tirx.IfThenElse) and isinstance(body.then_case, tirx.AssertStmt)
        return True

    def checking_sizes(self) -> tirx.Stmt:
        """The function's body with one check, or several where there are very many sizes."""
        checks = [_one_check(self.sizes[i : i + _TOGETHER]) for i in range(0, len(self.sizes), _TOGETHER)]
        work = tirx.SeqStmt(self.work) if len(self.work) > 1 else self.work[0]
        for scope in reversed(self.scopes):
            work = tirx.AttrStmt(scope.node, scope.attr_key, scope.value, work)
        return tirx.SeqStmt([*self.statements, *checks, work])


def _reads_sizes(condition: ir.Expr) -> bool:
    found: list[int] = []

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name == _READ:
            found.append(int(call.args[2]))

    tvm_ffi.structural_walk(condition, (ir.Call, visit))
    return _OF_ARRAY in found


def _one_check(checks: Sequence[tirx.AssertStmt]) -> tirx.AssertStmt:
    texts = [part.value for part in checks[0].message_parts]
    signature = next((text for before, text in zip(texts, texts[1:]) if "when calling" in before), "?")
    parts = [ir.StringImm(OTHER_SIZES), ir.StringImm(f"{signature}`")]
    return tirx.AssertStmt(reduce(tirx.And, (check.condition for check in checks)), ir.StringImm("ValueError"), parts)
