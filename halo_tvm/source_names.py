"""Names that C and CUDA take: TVM writes those of tensors and sizes into source code as they are.

Before -> after
    f("out/Gemm@1": [n, "a.b"]):  body      ->      f(out_Gemm_1: [n, a_b]):  body
Serves
    targets whose code is source. ONNX and TensorFlow name values by paths, and numbers
Leaves alone
    names of functions, which TVM makes fit itself
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import ir, tirx

_FITS = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")


@tvm.transform.module_pass(opt_level=0, name="halo.SourceNames")
def source_names(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """The pass, for functions that are scheduled and not lowered yet."""
    mod = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            mod[gvar] = _named(func)
    return mod


def _named(func: tirx.PrimFunc) -> tirx.PrimFunc:
    names: set[str] = set()
    tvm_ffi.structural_walk(func, (ir.Var, lambda var: names.add(str(var.name))))
    if all(map(_FITS.match, names)):
        return func
    # Sizes first: the types of tensors are made of them.
    for tensors in (False, True):
        made: dict[ir.Var, ir.Var] = {}

        def fitting(var: ir.Var, made: dict[ir.Var, ir.Var] = made, tensors: bool = tensors) -> ir.Var:
            if isinstance(var.ty, tirx.BufferType) is not tensors or _FITS.match(str(var.name)):
                return var
            return made.setdefault(var, type(var)(_fitting(str(var.name)), var.ty))

        func = tvm_ffi.structural_map(func, [(ir.Var, fitting)], order="pre")
    return func


def _fitting(name: str) -> str:
    text = re.sub(r"[^A-Za-z_0-9]", "_", name)
    return text if _FITS.match(text) else f"v_{text}"
