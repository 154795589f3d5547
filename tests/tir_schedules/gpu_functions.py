"""Functions that a rule schedules for a GPU: run by emulation, and built for what the assembler says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from fused_functions import Shape, functions, fused, random
from tvm import relax, tirx

from halo_tvm.build import build_options
from halo_tvm.cuda._ptxas import Kernel
from halo_tvm.cuda.machine_code import compile_source
from halo_tvm.cuda.sass import instructions
from halo_tvm.cuda.toolkit import find_nvcc, find_tool
from halo_tvm.emulation import emulate
from halo_tvm.passes.schedule import scheduled_by
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
    func: tirx.PrimFunc, shapes: Sequence[Sequence[int]], reference: Callable, dtypes: Sequence[str] | None = None,
    tolerance: float = 2e-5, values: Sequence[np.ndarray] = (),
) -> None:  # fmt: skip
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


def kernels_of(funcs: Sequence[tirx.PrimFunc], arch: str) -> tuple[list[Kernel], dict[str, Counter[str]]]:
    """What the assembler says of the kernels of all of `funcs`, and their instructions where they can be read."""
    target = resolve(f"cuda:{arch}")
    mod = tvm.IRModule({f"f{i}": f.with_attr("global_symbol", f"f{i}") for i, f in enumerate(funcs)})
    with target.tvm, tvm.transform.PassContext(opt_level=3, config=build_options(target)):
        built = tvm.tirx.build(mod, target=target.tvm)
    made = compile_source(built.imports[0].inspect_source("cuda"), arch, find_nvcc())
    return list(made.kernels), instructions(made.fatbin) if find_tool("nvdisasm") else {}
