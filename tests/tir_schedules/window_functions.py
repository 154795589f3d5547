"""Convolutions and poolings as the compiler makes them, from operator to fused function; and how to check one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import tvm
from covering import covering
from linear_functions import bfloat16_tensor, fused_of
from tvm import relax, tirx

from halo_tvm.code_generation import compiled
from halo_tvm.relay_ops.operator import Operator
from halo_tvm.targets import Target
from halo_tvm.tir_schedules import Rule


@dataclass(frozen=True)
class Case:
    """`operator` of x [n, *sizes, c] and further arguments; symbolic: n and sizes are variables of the function."""

    operator: type[Operator]
    shape: tuple[int, ...]
    attrs: Mapping[str, object]
    weights: tuple[np.ndarray, ...] = ()
    epilogue: str = ""  # "bias+silu+residual" or a part of it
    symbolic: bool = False
    dtype: str = "float32"
    further: tuple[tuple[int, ...], ...] = field(default=())  # other shapes [n, *sizes, c] to run a symbolic one at

    def label(self) -> str:
        return f"{self.operator.name} {self.shape} {dict(self.attrs)} {[w.shape for w in self.weights]} {self.epilogue}"


def fused(case: Case) -> tirx.PrimFunc:
    """The one PrimFunc the call and its epilogue become."""
    names = ["n", "d", "h", "w"]
    dims = [tirx.Var(names[i], "int64") for i in range(len(case.shape) - 1)] if case.symbolic else case.shape[:-1]

    def variable(name: str, shape: Sequence[object], dtype: str = case.dtype) -> relax.Var:
        return relax.Var(name, relax.TensorType(list(shape), dtype))

    x = variable("x", [*dims, case.shape[-1]])
    weights = [variable(f"w{i}", w.shape, str(w.dtype)) for i, w in enumerate(case.weights)]
    builder = relax.BlockBuilder()
    probe = builder.normalize(case.operator.call(x, *weights, **case.attrs))
    shape = probe.ty.shape.values
    bias, residual = variable("bias", [shape[-1]]), variable("residual", shape)
    extras = [p for p, name in ((bias, "bias"), (residual, "residual")) if name in case.epilogue]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights, *extras]):
        with builder.dataflow():
            y = builder.emit(case.operator.call(x, *weights, **case.attrs))
            if "bias" in case.epilogue:
                y = builder.emit(relax.op.add(y, bias))
            if "silu" in case.epilogue:
                y = builder.emit(relax.op.nn.silu(y))
            if "residual" in case.epilogue:
                y = builder.emit(relax.op.add(y, residual))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return fused_of(builder)


def build_all(functions: Mapping[str, tirx.PrimFunc], target: Target) -> tvm.runtime.Executable:
    """One library of all: linking costs more than the code of one."""
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    return compiled(mod, target)


def check_decisions(rule: Rule, case: Case, target: Target) -> None:
    """Every value that decisions of the space have for a field is right; the space begins with the default."""
    func = fused(case)
    space = rule.space(func, target)
    assert space[0] == rule.default(func, target) and len(set(space)) == len(space)
    chosen = covering(space)
    executable = build_all({f"f{i}": rule.apply(func, target, d) for i, d in enumerate(chosen)}, target)
    for i in range(len(chosen)):
        check(executable, f"f{i}", case)


def check(executable: tvm.runtime.Executable, name: str, case: Case) -> None:
    """Compare with float64 at each of the case's shapes; sums of bytes have to be exact.

    The output starts as NaN, or as a number that no sum is, so an element never written fails.
    """
    for shape in (case.shape, *case.further):
        rng = np.random.default_rng(sum(shape))
        is_bytes = case.dtype == "uint8"
        x = rng.integers(0, 256, shape) if is_bytes else rng.standard_normal(shape)
        x = x.astype(case.dtype)
        weights = [w.astype(np.float64) for w in case.weights]
        rounds = any(w.dtype == ml_dtypes.bfloat16 for w in case.weights)  # x as well, by the instruction for both
        multiplied = x.astype(ml_dtypes.bfloat16) if rounds else x
        y = case.operator.reference(multiplied.astype(np.float64), *weights, **case.attrs)
        bias, residual = rng.standard_normal(y.shape[-1]), rng.standard_normal(y.shape)
        bias, residual = bias.astype(case.dtype), residual.astype(case.dtype)
        extras = []
        if "bias" in case.epilogue:
            y, extras = y + bias, [bias]
        if "silu" in case.epilogue:
            y = y / (1 + np.exp(-y))
        if "residual" in case.epilogue:
            y, extras = y + residual, [*extras, residual]
        never = np.full(y.shape, -(2**31), np.int32) if is_bytes else np.full(y.shape, np.nan, case.dtype)
        out = tvm.runtime.tensor(never)
        executable[name](*[_tensor(v) for v in (x, *case.weights, *extras)], out)
        bound = 1e-4 if rounds else {"uint8": 0.0, "float32": 2e-5}.get(case.dtype, 4e-3)
        np.testing.assert_allclose(out.numpy(), y, rtol=bound, atol=bound, err_msg=f"{case.label()} at {shape}")


def _tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    return bfloat16_tensor(array) if array.dtype == ml_dtypes.bfloat16 else tvm.runtime.tensor(array)
