"""The only place that knows TVM's private names or versions."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
import tvm_ffi
from tvm import ir, runtime, tirx
from tvm.ir import _ffi_api as _ir_api
from tvm.relax import block_builder
from tvm.relax.expr import _update_type
from tvm.runtime import _ffi_api as _runtime_api
from tvm.target.codegen import llvm_version_major
from tvm.tirx.op import call_pure_extern, register_intrin_lowering

from .size_order import args_in_order, order_of_sizes, with_order

PINNED_TVM = "0.27.0.post1"
PINNED_TVM_FFI = "0.1.14.post1"
LIBRARY_SYMBOL = "__tvm_ffi__library_bin"  # under which TVM's loader finds the packed modules of a library
_FORCE_SOURCE = "TVM_COMPILE_FORCE_FALLBACK"


def register_relax_op(name: str, description: str) -> None:
    """Register `name` with TVM's operator registry, once per process."""
    if name not in ir.Op.list_op_names():
        _ir_api.RegisterOp(name, description)


# Rounding to even has a vector instruction everywhere, but TVM does not say so: a loop over it became scalar code.
ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)


def _of_the_c_library(call: ir.Call) -> ir.Expr:
    name = call.op.name.removeprefix("tirx.")
    return call_pure_extern(call.ty, f"{name}f" if call.ty.dtype == "float32" else name, *call.args)


for _name in ("fabs", "exp2", "fmod"):  # TVM's generator of C knows the others
    register_intrin_lowering(f"tirx.{_name}", target="c", f=_of_the_c_library)


def _leading_zeros(call: ir.Call) -> ir.Expr:
    """Of a positive number below 2**53: what is in front of its highest bit, which is a float64's exponent."""
    (x,) = call.args
    return x.ty.dtype.bits - 1 - call_pure_extern("int32", "ilogb", tirx.Cast("float64", x))


register_intrin_lowering("prim.clz", target="c", f=_leading_zeros)


_kernel_of = block_builder.gen_call_tir_inputs


def _kernel_in_order(*args: object, **kwargs: object) -> tuple[tirx.PrimFunc, list[ir.Expr], object]:
    """A tensor expression as a kernel, what a call gives it, and what it returns."""
    func, given, types = _kernel_of(*args, **kwargs)
    order = order_of_sizes(func)
    if order != sorted(order):
        func, given = with_order(func, order), args_in_order(given, order)
    return func, given, types


block_builder.gen_call_tir_inputs = _kernel_in_order


def packed_modules(module: runtime.Module) -> bytes:
    """What TVM writes into a library for the modules that are not host code, `module` with its imports."""
    text = _runtime_api.ModulePackImportsToC(module, False, "")
    return bytes(int(byte, 16) for byte in re.findall(r"0x([0-9a-f]{2}),", text))


def set_type(expr: ir.Expr, ty: ir.Type) -> None:
    """Say what `expr` is, as a normalised module says of each of its functions' variables."""
    _update_type(expr, ty)


def code_versions() -> tuple[str, ...]:
    """What decides, beside a module and its target, which code is generated: TVM, LLVM and what this file registers."""
    ours = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return (tvm.__version__, tvm_ffi.__version__, f"LLVM {llvm_version_major()}", ours)


@contextmanager
def device_source() -> Iterator[None]:
    """Code for a device stays source while it is built, whether or not its driver is on this machine."""
    before = os.environ.pop(_FORCE_SOURCE, None)
    os.environ[_FORCE_SOURCE] = "1"
    try:
        yield
    finally:
        del os.environ[_FORCE_SOURCE]
        if before is not None:
            os.environ[_FORCE_SOURCE] = before
