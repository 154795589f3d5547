"""From a scheduled function to its effect: TVM's lowering, then the host function and the kernels it launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx

from halo_tvm.code_generation import build_options
from halo_tvm.cuda.launches import SPLIT, is_kernel
from halo_tvm.dimensions import itemsize_of
from halo_tvm.errors import UnsupportedModel
from halo_tvm.targets import Target

from ._lanes import Launch
from ._limits import check_launch
from ._memory import Clock, Memory, Pointer, numpy_dtype
from ._statements import Program

_WARP = "tirx.LowerWarpMemory"  # the last change to kernels before instructions are chosen
_NAME = "main"
MOST_LANES = 1 << 20


@dataclass(frozen=True)
class Emulation:
    """What was launched: (kernel, extents by tag, barriers) in order."""

    launches: tuple[tuple[str, dict[str, int], int], ...]


@tvm.ir.instrument.pass_instrument
class _Lowered:
    """Keeps the functions as they stand before code generation."""

    def __init__(self) -> None:
        self.functions: dict[str, tirx.PrimFunc] = {}

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name in (SPLIT, _WARP):
            for gvar, func in mod.functions_items():
                if info.name == SPLIT or is_kernel(func):
                    self.functions[gvar.name_hint] = func


def emulate(func: tirx.PrimFunc, target: Target, arguments: Sequence[np.ndarray | int]) -> Emulation:
    """Run `func`, scheduled for the GPU `target`, on contiguous arrays; results are written into them.

    Symbolic sizes are those of the arrays; an integer stands for a scalar parameter.

    Raises
    ------
    KernelFault
        a race; a barrier or a shuffle that some threads miss; an address outside its buffer, or one that its
        access does not take; a launch that CUDA refuses
    UnsupportedModel
        an instruction that is not emulated, or more than 2**20 threads in one launch
    """
    functions = lowered(func, target)
    done: list[tuple[str, dict[str, int], int]] = []

    def launch(name: str, given: list[object], extents: dict[str, int]) -> None:
        check_launch(name, functions[name], extents, target)
        done.append((name, extents, _run_kernel(name, functions[name], given, extents)))

    host = functions[_NAME]
    program = Program(Launch({}).lanes(), {}, {}, launch=launch)
    _bind_arguments(program, host, arguments)
    with np.errstate(all="ignore"):
        program.run(host.body)
    return Emulation(tuple(done))


def lowered(func: tirx.PrimFunc, target: Target) -> Mapping[str, tirx.PrimFunc]:
    """The host function "main" and its kernels, by name, as code will be generated for them."""
    kept = _Lowered()
    with target.tvm, tvm.transform.PassContext(opt_level=3, config=build_options(target), instruments=[kept]):
        tvm.tirx.build(tvm.IRModule({_NAME: func.with_attr("global_symbol", _NAME)}), target=target.tvm)
    return kept.functions


def _run_kernel(name: str, kernel: tirx.PrimFunc, given: list[object], extents: dict[str, int]) -> int:
    """Run every thread of one launch; the number of barriers."""
    shape = Launch({tag: extent for tag, extent in extents.items() if "Idx." in tag})
    if shape.blocks * shape.threads > MOST_LANES:
        raise UnsupportedModel(
            f"at most {MOST_LANES} threads were expected, but {name} is launched with {shape.blocks} blocks of "
            f"{shape.threads}: emulate smaller shapes"
        )
    lanes = shape.lanes()
    clock = Clock(lanes)
    program = Program(lanes, {}, {}, clock=clock)
    watched: dict[Memory, Memory] = {}
    for param, value in zip(kernel.params, given):
        if isinstance(value, Pointer):
            memory = watched.setdefault(value.memory, value.memory.with_clock(clock))
            program.env[param] = Pointer(memory, value.dtype, value.offset, value.byte_offset)
        else:
            program.env[param] = np.asarray(value)
    program.run(kernel.body)
    program.check_copies_landed()
    return clock.barriers


def _bind_arguments(program: Program, host: tirx.PrimFunc, arguments: Sequence[np.ndarray | int]) -> None:
    if len(arguments) != len(host.params):
        raise ValueError(f"{len(host.params)} arguments were expected, but {len(arguments)} are given")
    for param, argument in zip(host.params, arguments):
        if not isinstance(argument, np.ndarray):
            program.env[param] = np.asarray(argument, str(param.ty.dtype))
            continue
        dtype = numpy_dtype(str(param.ty.dtype))[0]
        if argument.dtype != dtype or argument.ndim != len(param.ty.shape) or not argument.flags.c_contiguous:
            raise ValueError(
                f"a contiguous array of {dtype} with {len(param.ty.shape)} axes was expected for {param.name}, "
                f"but found {argument.dtype} {argument.shape}"
            )
        for dim, size in zip(param.ty.shape, argument.shape):
            if isinstance(dim, tirx.Var):
                program.env.setdefault(dim, np.asarray(size, str(dim.ty.dtype)))
            if program.number(dim) != size:
                raise ValueError(f"{param.name} has an axis of {program.number(dim)}, but {argument.shape} is given")
        assert dtype.itemsize == itemsize_of(param.ty.dtype)
        data = argument.reshape(-1).view(np.uint8).reshape(1, -1)
        memory = Memory(param.name, "global", data, None, None)
        program.buffers[param] = Pointer(memory, dtype, np.zeros((), np.int64))
