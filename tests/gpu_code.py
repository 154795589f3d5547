"""From functions scheduled for a GPU to machine code, and to its instructions, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx

from halo_tvm.code_generation import build_options
from halo_tvm.cuda.machine_code import MachineCode, compile_source
from halo_tvm.cuda.toolkit import find_nvcc
from halo_tvm.targets import resolve


def cuda_source(funcs: Sequence[tirx.PrimFunc], arch: str) -> str:
    """All kernels of `funcs` as text; the first one's begin with f0, the next one's with f1."""
    target = resolve(f"cuda:{arch}")
    mod = tvm.IRModule({f"f{i}": f.with_attr("global_symbol", f"f{i}") for i, f in enumerate(funcs)})
    with target.tvm, tvm.transform.PassContext(opt_level=3, config=build_options(target)):
        built = tvm.tirx.build(mod, target=target.tvm)
    return built.imports[0].inspect_source("cuda")


def machine_code(funcs: Sequence[tirx.PrimFunc], arch: str) -> MachineCode:
    """All kernels of `funcs` as one library holds them, named as in `cuda_source`."""
    return compile_source(cuda_source(funcs, arch), arch, find_nvcc())
