"""Kernels for AMX on any x86 processor: its instructions become calls of `tile_registers.cc`, which refuses misuse."""

from __future__ import annotations

from pathlib import Path

import tvm
import tvm_ffi
from linear_functions import x86
from tvm import ir, tirx
from tvm.support import cc

from halo_tvm.code_generation import compiled

_SOURCE = Path(__file__).with_suffix(".cc")
_NAME = "llvm.x86."
_EMULATED = ("ldtilecfg", "tilezero", "tileloadd64", "tilestored64", "tdpbusd", "tdpbssd", "tdpbf16ps", "tilerelease")
_WHOLE = "halo_whole_tiles"  # the function of attention that says that all registers are whole


def build_emulated(func: tirx.PrimFunc, folder: Path) -> tvm.runtime.Module:
    """`func`, scheduled for AMX, as code for the smallest level of x86."""
    found = set()

    def emulated(call: ir.Call) -> ir.Call:
        op = call.op.name if isinstance(call.op, ir.Op) else ""
        if op == "tirx.call_extern" and call.args[0].value == _WHOLE:
            return tirx.call_extern("void", f"emulated_{_WHOLE}")
        if op != "tirx.call_llvm_intrin":
            return call
        name = tvm.target.codegen.llvm_get_intrinsic_name(int(call.args[0])).removeprefix(_NAME)
        if name not in _EMULATED:
            return call
        found.add(name)
        return tirx.call_extern("void", f"emulated_{name}", *call.args[1:])

    body = tvm_ffi.structural_map(func.body, (ir.Call, emulated), order="post")
    func = func.with_body(body).with_attr("global_symbol", "main")
    assert {"tilestored64", "tilerelease"} < found, "the function uses registers of two dimensions"
    registers, library = folder / "tile_registers.o", folder / "kernel.so"
    cc.create_shared(str(registers), [str(_SOURCE)], ["-c", "-fPIC", "-O2"])
    compiled(tvm.IRModule({"main": func}), x86("avx2")).export_library(str(library), addons=[str(registers)])
    return tvm.runtime.load_module(str(library))
