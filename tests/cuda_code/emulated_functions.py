"""Functions of operators and tiny models, scheduled for a GPU, and their numbers by emulation beside a CPU's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from checkpoints import write_checkpoint
from emulation import emulate
from test_operators import arguments
from tvm import relax, tirx
from tvm.ir import Expr

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.dimensions import size_of
from halo_tvm.importers import import_model
from halo_tvm.phase_reports import Reports, ScheduleReport
from halo_tvm.phases import lower, schedule
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import resolve

TARGET = resolve("cuda:sm_80")


@dataclass(frozen=True)
class Scheduled:
    """A model's functions before and after their rules, and what is reported of it."""

    before: dict[str, tirx.PrimFunc]
    after: tvm.IRModule
    reports: Reports  # of the phases in front of the schedules
    schedule: ScheduleReport

    @property
    def rules(self) -> dict[str, str]:
        """The rule of each function."""
        return {entry.function: entry.rule for entry in self.schedule.functions}


def scheduled_model(kind: str, precision: str, root: Path) -> Scheduled:
    """A tiny model of family `kind`."""
    return scheduled_file(write_checkpoint(root / kind, kind), precision)


def scheduled_file(source: Path, precision: str) -> Scheduled:
    """The model of a file or directory."""
    compilation = Compilation.of(CompileConfig(model=str(source), precision=precision), TARGET)
    mod, reports = lower(import_model(str(source)), compilation)
    after, report = schedule(mod, compilation)
    return Scheduled(primitive(mod), after, reports, report)


def primitive(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """The functions that rules schedule, by name."""
    return {gvar.name_hint: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}


def module_of(name: str, index: int) -> tvm.IRModule:
    """One case of an operator as functions that no rule has scheduled."""
    case, operator = OPERATORS[name].cases()[index], OPERATORS[name]
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arguments(case))]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit(operator.call(*params, **case["attrs"]))
            if operator.semantic or operator.in_vectors:
                out = bb.emit(operator.expand(bb, bb.lookup_binding(out)))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    return relax.transform.LegalizeOps()(relax.transform.DeadCodeElimination()(bb.get()))


def _arguments_of(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> list[np.ndarray | int]:
    """Random arrays, a symbolic size as in `sizes`, else 6; integers are small enough to be any index."""
    rng, found = np.random.default_rng(0), []
    for param in func.params:
        if not isinstance(param.ty, tirx.BufferType):
            found.append(_size(param, sizes))
            continue
        shape, dtype = [_size(dim, sizes) for dim in param.ty.shape], str(param.ty.dtype)
        found.append(
            rng.integers(0, 3, shape).astype(dtype) if "int" in dtype else rng.standard_normal(shape).astype(dtype)
        )
    return found


def _size(dim: Expr, sizes: Mapping[str, int]) -> int:
    return size_of(dim, {str(var.name): 6 for var in tirx.analysis.undefined_vars(dim)} | dict(sizes))


def _reference(func: tirx.PrimFunc, arguments: list[np.ndarray | int]) -> list[np.ndarray | int]:
    """The arguments as the CPU leaves them, from `func`, which no rule has scheduled."""
    given = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
    tvm.tirx.build(func.with_attr("global_symbol", "main"), target="llvm")["main"](*given)
    return [a if isinstance(a, int) else a.numpy() for a in given]


def emulated(before: tirx.PrimFunc, after: tirx.PrimFunc, **sizes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(what the emulated GPU leaves by `after`, what the CPU leaves by `before`) of each array."""
    arguments = _arguments_of(before, sizes)
    expected = _reference(before, arguments)
    emulate(after, TARGET, arguments)
    return ((a, wanted) for a, wanted in zip(arguments, expected, strict=True) if isinstance(a, np.ndarray))


SUMS_OF_GROUPS = "linear_groups"  # float32 sums of groups' products, of which the largest decides the rounding
GROWING = "gated_delta"  # with keys of any length its state grows from token to token, and results cancel


def assert_near(array: np.ndarray, wanted: np.ndarray, said: str) -> None:
    """Equal but for the order of float32 sums; `said` names the operator or the function."""
    rounded_by_largest = SUMS_OF_GROUPS in said or GROWING in said
    largest = float(np.abs(wanted).max(initial=0.0, where=np.isfinite(wanted))) if rounded_by_largest else 0.0
    np.testing.assert_allclose(array, wanted, rtol=2e-5, atol=2e-5 + 1e-6 * largest, err_msg=said)
