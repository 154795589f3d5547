"""Functions as the optimise phase leaves them: relax calls, legalised and fused, and how to run them scheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from executables import executable_of
from tvm import relax, tirx

from halo_tvm.passes.vector_math import VectorMath
from halo_tvm.targets import TARGETS, Target, read_host
from halo_tvm.tir_schedules import RULES

Shape = Sequence[int | tirx.Var]
ISAS = ("avx2", "avx512")


def x86(isa: str) -> Target:
    spec = TARGETS["x86"]
    return Target(spec=spec, isa=next(i for i in spec.isas if i.name == isa), cores=2)


def here(isa: str) -> bool:
    return x86(isa).isa.requires <= read_host().flags


def fused(
    graph: Callable[..., relax.Expr], shapes: Sequence[Shape], dtypes: Sequence[str] | None = None
) -> tvm.IRModule:
    """`graph(emit, *inputs)` as one module after legalisation and fusion."""
    builder = relax.BlockBuilder()
    types = dtypes or ["float32"] * len(shapes)
    params = [relax.Var(f"a{i}", relax.TensorType(s, t)) for i, (s, t) in enumerate(zip(shapes, types))]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(graph(builder.emit, *params))
        builder.emit_func_output(out)
    t = relax.transform
    return tvm.transform.Sequential(
        [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FoldConstant(), t.FuseOps(), t.FuseTIR()]
    )(builder.get())


def functions(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]


def scheduled(mod: tvm.IRModule, rule: str, target: Target, decision: object = None) -> tvm.IRModule:
    out = mod.clone()
    for gvar, func in list(mod.functions.items()):
        if isinstance(func, tirx.PrimFunc):
            out[gvar] = RULES[rule].apply(func, target, decision or RULES[rule].default(func, target))
    return VectorMath()(out)[0]


def executable(mod: tvm.IRModule, target: Target) -> Callable[..., np.ndarray]:
    """The module built; a function of arrays."""
    machine = relax.VirtualMachine(executable_of(mod, target, plan_memory=False), tvm.cpu())
    return lambda *arrays: machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def random(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype("bool")
    if dtype.startswith("int"):
        return rng.integers(0, 5, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
