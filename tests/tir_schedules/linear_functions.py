"""Linear PrimFuncs as the compiler makes them: operator -> legalise -> FuseOps -> FuseTIR."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import tvm
from emulation._memory import numpy_dtype
from tvm import relax, tirx

from halo_tvm.code_generation import compiled
from halo_tvm.relay_ops.linear import Linear
from halo_tvm.relay_ops.operator import Operator
from halo_tvm.runtime.tensors import aligned_empty, to_tensor
from halo_tvm.targets import TARGETS, Target, read_host

EPILOGUES = ("none", "bias", "bias+relu+residual", "bias+gelu")
# Rounding of a result by its type, and of float32 sums in another order.
BOUND = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 1e-5}


@dataclass(frozen=True)
class Case:
    """x [m, k] @ weight [k/kc, ceil(n/nr), kc, nr], then an epilogue; m None is symbolic."""

    k: int
    n: int
    kc: int
    nr: int
    epilogue: str = "bias"
    m: int | None = None


def x86(isa: str, cores: int = 2) -> Target:
    spec = TARGETS["x86"]
    return Target(spec, next(i for i in spec.isas if i.name == isa), cores)


def skip_unless_runs(target: Target | str) -> None:
    """`target`, or that level of x86, runs here, or the test is skipped."""
    target = x86(target) if isinstance(target, str) else target
    if not target.isa.requires <= read_host().flags:
        pytest.skip(f"this processor does not run {target.isa.name}")


def fused(case: Case) -> tirx.PrimFunc:
    """The one PrimFunc a linear call and its epilogue become."""
    rows = tirx.Var("m", "int64") if case.m is None else case.m

    def variable(name: str, *shape: object) -> relax.Var:
        return relax.Var(name, relax.TensorType(list(shape), "float32"))

    x = variable("x", rows, case.k)
    weight = variable("weight", case.k // case.kc, -(-case.n // case.nr), case.kc, case.nr)
    bias, residual = variable("bias", case.n), variable("residual", rows, case.n)
    return with_stages(Linear, [x, weight], bias, residual, case.epilogue, layout="packed", n=case.n)


def with_stages(
    operator: type[Operator],
    operands: list[relax.Var],
    bias: relax.Var,
    residual: relax.Var,
    epilogue: str,
    **attrs: object,
) -> tirx.PrimFunc:
    """The one PrimFunc that a call of `operator`, which takes the bias, and the rest of `epilogue` become."""
    operands = [*operands, *([bias] if "bias" in epilogue else [])]
    builder = relax.BlockBuilder()
    with builder.function("main", [*operands, *([residual] if "residual" in epilogue else [])]):
        with builder.dataflow():
            y = builder.emit(operator.call(*operands, **attrs))
            if "relu" in epilogue:
                y = builder.emit(relax.op.nn.relu(y))
            if "gelu" in epilogue:
                y = builder.emit(relax.op.nn.gelu_tanh(y))
            if "residual" in epilogue:
                y = builder.emit(relax.op.add(y, residual))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return fused_of(builder)


def fused_of(builder: relax.BlockBuilder) -> tirx.PrimFunc:
    """The one PrimFunc that `builder`'s module becomes."""
    rt = relax.transform
    steps = [rt.LegalizeOps(), rt.AnnotateTIROpPattern(), rt.FuseOps(), rt.FuseTIR()]
    return only_function(tvm.transform.Sequential(steps)(builder.get()))


def only_function(mod: tvm.IRModule) -> tirx.PrimFunc:
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


def bfloat16_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """An array of ml_dtypes.bfloat16 as kernels read it, where they may."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return to_tensor(copy)


def pack(weight: np.ndarray, kc: int, nr: int) -> np.ndarray:
    k, n = weight.shape
    panels = -(-n // nr)
    padded = np.zeros((k, panels * nr), weight.dtype)
    padded[:, :n] = weight
    return np.ascontiguousarray(padded.reshape(k // kc, kc, panels, nr).transpose(0, 2, 1, 3))


def arguments(case: Case, rows: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Seeded inputs in the function's order, and the result in float64."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, case.k), dtype=np.float32)
    weight = rng.standard_normal((case.k, case.n), dtype=np.float32) / np.float32(case.k**0.5)
    bias = rng.standard_normal(case.n, dtype=np.float32)
    residual = rng.standard_normal((rows, case.n), dtype=np.float32)
    y, extras = after(x.astype(np.float64) @ weight.astype(np.float64), case.epilogue, bias, residual)
    return [x, pack(weight, case.kc, case.nr), *extras], y


def after(y: np.ndarray, epilogue: str, bias: np.ndarray, residual: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The epilogue on y, and the arrays it reads."""
    extras = []
    if "bias" in epilogue:
        y, extras = y + bias.astype(np.float64), [bias]
    if "relu" in epilogue:
        y = np.maximum(y, 0)
    if "gelu" in epilogue:
        y = 0.5 * y * (1 + np.tanh(0.7978845608028654 * (y + 0.044715 * y**3)))
    if "residual" in epilogue:
        y, extras = y + residual.astype(np.float64), [*extras, residual]
    return y, extras


def build(func: tirx.PrimFunc, target: Target) -> tvm.runtime.Executable:
    return compiled(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)


def check(executable: tvm.runtime.Executable, case: Case, rows: int) -> None:
    """Compare with float64; the output starts as NaN, so an element never written fails."""
    inputs, expected = arguments(case, rows)
    out = tvm.runtime.tensor(np.full(expected.shape, np.nan, np.float32))
    executable["main"](*[tvm.runtime.tensor(v) for v in inputs], out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5, err_msg=f"{case} rows {rows}")


@dataclass(frozen=True)
class Plain:
    """x [m, k] @ weight in `layout`, [n, k] or [k, n], then an epilogue; m None is symbolic."""

    k: int
    n: int
    epilogue: str = "bias"
    m: int | None = None
    layout: str = "nk"
    x_dtype: str = "float16"
    weight_dtype: str = "float16"
    rounds: bool = True  # whether x takes the weight's type before it is multiplied

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight."""
        return (self.n, self.k) if self.layout == "nk" else (self.k, self.n)


def fused_plain(case: Plain) -> tirx.PrimFunc:
    """The one PrimFunc a linear call with a plain weight and its epilogue become."""
    rows = tirx.Var("m", "int64") if case.m is None else case.m
    shapes = {"x": (rows, case.k), "bias": (case.n,), "residual": (rows, case.n)}
    tensors = {name: relax.Var(name, relax.TensorType(list(shape), case.x_dtype)) for name, shape in shapes.items()}
    weight = relax.Var("weight", relax.TensorType(list(case.shape), case.weight_dtype))
    operands, stages = [tensors["x"], weight], (tensors["bias"], tensors["residual"], case.epilogue)
    return with_stages(Linear, operands, *stages, layout=case.layout, n=case.n)


def plain_arguments(case: Plain, rows: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Seeded inputs in the function's order, an output full of NaN last; and the result in float64.

    Where x is wider than the weight and the case `rounds`, the result is that of x rounded to the weight's type.
    """
    rng = np.random.default_rng(rows)
    x_dtype, weight_dtype = (numpy_dtype(dtype)[0] for dtype in (case.x_dtype, case.weight_dtype))
    x = rng.standard_normal((rows, case.k)).astype(x_dtype)
    weight = (rng.standard_normal(case.shape) / case.k**0.5).astype(weight_dtype)
    bias, residual = rng.standard_normal(case.n).astype(x_dtype), rng.standard_normal((rows, case.n)).astype(x_dtype)
    wide = weight.astype(np.float64)
    taken = x.astype(weight_dtype) if case.rounds else x
    y = taken.astype(np.float64) @ (wide.T if case.layout == "nk" else wide)
    y, extras = after(y, case.epilogue, bias, residual)
    return [x, weight, *extras, np.full(y.shape, np.nan, x_dtype)], y
