"""Functions that a rule schedules for a GPU: run by emulation, and built for what the assembler says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import tvm
import tvm_ffi
from emulation import KernelFault, _run, emulate
from fused_functions import Shape, functions, fused, random
from gpu_code import machine_code
from tvm import relax, tirx

from halo_tvm.cuda.sass import instructions
from halo_tvm.cuda.toolkit import find_nvcc, find_tool
from halo_tvm.passes.schedule import scheduled_by
from halo_tvm.phase_reports import DeviceKernel
from halo_tvm.targets import Target, resolve
from halo_tvm.tir_schedules import RULES

TARGET = resolve("cuda:sm_80")
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: install NVIDIA's CUDA toolkit 13")


def function_of(graph: Callable[..., relax.Expr], shapes: Sequence[Shape], dtypes: Sequence[str] | None = None):
    """The single function of `graph`."""
    (func,) = functions(fused(graph, shapes, dtypes))
    return func


def scheduled_for(func: tirx.PrimFunc, rule: str, decision: object = None, target: Target = TARGET) -> tirx.PrimFunc:
    """`func` as `compile` schedules it by that rule."""
    chosen = RULES[rule]
    return scheduled_by(chosen, func, target, chosen.default(func, target) if decision is None else decision)


def check_emulated(
    func: tirx.PrimFunc,
    shapes: Sequence[Sequence[int]],
    reference: Callable,
    dtypes: Sequence[str] | None = None,
    tolerance: float = 2e-5,
    values: Sequence[np.ndarray] = (),
) -> None:
    """`func`, scheduled, against `reference` on random arrays; its output begins as what no kernel leaves behind."""
    types = dtypes or ["float32"] * len(shapes)
    arrays = list(values) or [random(s, t, seed=i) for i, (s, t) in enumerate(zip(shapes, types))]
    exact = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    expected = np.asarray(reference(*exact))
    out = func.params[len(arrays)].ty
    found = np.full(expected.shape, 85 if "float" not in str(out.dtype) else np.nan, str(out.dtype))
    assert len(func.params) == len(arrays) + 1
    emulate(func, TARGET, [*arrays, found])
    np.testing.assert_allclose(found.astype("float64"), expected.astype("float64"), rtol=tolerance, atol=tolerance)


def kernels_of(funcs: Sequence[tirx.PrimFunc], arch: str) -> tuple[list[DeviceKernel], dict[str, Counter[str]]]:
    """What the assembler says of the kernels of all of `funcs`, and their instructions where they can be read."""
    made = machine_code(funcs, arch)
    return list(made.kernels), instructions(made.fatbin) if find_tool("nvdisasm") else {}


BARRIER, WAIT = "tvm_storage_sync", "cp_async_wait_group"


def check_needed(
    func: tirx.PrimFunc, case: tuple[list[np.ndarray], np.ndarray], *, barriers: int, waits: int, tolerance: float
) -> None:
    """Without any one of its barriers, or where a wait leaves one group more under way, `func` faults or is wrong.

    A wait for all groups is dropped.

    `case`: arguments, the output last, and what it should become; `func` has so many barriers and waits.
    """
    arrays, expected = case
    kernels = _run.lowered(func, TARGET)
    for operation, count in ((BARRIER, barriers), (WAIT, waits)):
        assert sum(len(_calls(kernel, operation)) for kernel in kernels.values()) == count, operation
    for operation, which in [(BARRIER, i) for i in range(barriers)] + [(WAIT, i) for i in range(waits)]:
        out = np.full_like(arrays[-1], np.nan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_run, "lowered", lambda *_, o=operation, w=which: _weakened(kernels, o, w))
            try:
                emulate(func, TARGET, [*arrays[:-1], out])
            except KernelFault:
                continue
        wrong = ~np.isclose(out.astype(float), expected, rtol=tolerance, atol=tolerance)
        assert wrong.any(), f"{operation} {which} is not needed, or the emulator does not see that it is"
    emulate(func, TARGET, arrays)
    np.testing.assert_allclose(arrays[-1].astype(float), expected, rtol=tolerance, atol=tolerance)


def _is_call(stmt: tirx.Evaluate, operation: str) -> bool:
    call = stmt.value
    return isinstance(call, tvm.ir.Call) and isinstance(call.op, tvm.ir.Op) and call.op.name.endswith(operation)


def _calls(func: tirx.PrimFunc, operation: str) -> list[tirx.Evaluate]:
    found: list[tirx.Evaluate] = []
    tvm_ffi.structural_walk(
        func.body, (tirx.Evaluate, lambda s: found.append(s) if _is_call(s, operation) else None), order="post"
    )
    return found


def _weakened(kernels: Mapping[str, tirx.PrimFunc], operation: str, which: int) -> dict[str, tirx.PrimFunc]:
    """`kernels`, the `which`th call of `operation` among them dropped, or leaving one group more under way."""
    met = 0

    def change(stmt: tirx.Evaluate) -> tirx.Stmt:
        nonlocal met
        if not _is_call(stmt, operation):
            return stmt
        met += 1
        if met != which + 1:
            return stmt
        pending = 0 if operation == BARRIER else int(stmt.value.args[0])
        if not pending:
            return tirx.Evaluate(tirx.IntImm("int32", 0))
        return tirx.Evaluate(tvm.ir.Call(stmt.value.op, [tirx.IntImm("int32", pending + 1)], ret_ty=stmt.value.ty))

    def body(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Evaluate, change)))

    return {name: body(func) for name, func in kernels.items()}
