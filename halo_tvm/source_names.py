"""Names that C and CUDA take: TVM writes those of tensors and sizes into source code as they are.

Before -> after
    f("out/Gemm@1": [n, "a.b"], new: [n]):  body      ->      f(out_Gemm_1: [n, a_b], new_: [n]):  body
Serves
    targets whose code is source. ONNX and TensorFlow name values by paths, and numbers, and anybody by words of C++
Leaves alone
    names of functions, which TVM makes fit itself
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import ir, tirx

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
# Words of C++, which g++ reads C as; what it and `targets/c.py` define; functions that TVM calls.
_TAKEN = frozenset(
    """
    alignas alignof and and_eq auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default
    delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq
    NULL asm half inf inff linux restrict typeof unix
    abs acos acosh asin asinh atan atan2 atanh ceil cos cosh erf exp exp10 exp2 fabs floor fma fmax fmin fmod hypot
    isinf isnan log log10 log1p log2 max min nearbyint pow round rsqrt sin sinh sqrt tan tanh trunc
    """.split()
)


@tirx.transform.prim_func_pass(opt_level=0, name="halo.SourceNames")
def source_names(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """The pass, for functions that are scheduled and not lowered yet."""
    names: set[str] = set()
    tvm_ffi.structural_walk(func, (ir.Var, lambda var: names.add(str(var.name))))
    if all(map(_fits, names)):
        return func
    # Sizes first: the types of tensors are made of them.
    for tensors in (False, True):
        made: dict[ir.Var, ir.Var] = {}

        def fitting(var: ir.Var, made: dict[ir.Var, ir.Var] = made, tensors: bool = tensors) -> ir.Var:
            if isinstance(var.ty, tirx.BufferType) is not tensors or _fits(str(var.name)):
                return var
            return made.setdefault(var, type(var)(_fitting(str(var.name)), var.ty))

        func = tvm_ffi.structural_map(func, [(ir.Var, fitting)], order="pre")
    return func


def _fits(name: str) -> bool:
    return name not in _TAKEN and _NAME.match(name) is not None


def _fitting(name: str) -> str:
    text = re.sub(r"[^A-Za-z_0-9]", "_", name)
    text = text if _NAME.match(text) else f"v_{text}"
    return text if _fits(text) else f"{text}_"
