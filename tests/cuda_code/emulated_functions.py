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

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
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
    source = str(write_checkpoint(root / kind, kind))
    compilation = Compilation.of(CompileConfig(model=source, precision=precision), TARGET)
    mod, reports = lower(import_model(source), compilation)
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
            if operator.semantic:
                out = bb.emit(operator.expand(bb, bb.lookup_binding(out)))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    return relax.transform.LegalizeOps()(relax.transform.DeadCodeElimination()(bb.get()))


def _arrays_of(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Random arguments, a symbolic size as in `sizes`, else 6; integers are small enough to be any index."""
    rng, arrays = np.random.default_rng(0), []
    for param in func.params:
        shape = [int(d) if isinstance(d, tirx.IntImm) else sizes.get(d.name, 6) for d in param.ty.shape]
        dtype = str(param.ty.dtype)
        arrays.append(
            rng.integers(0, 3, shape).astype(dtype) if "int" in dtype else rng.standard_normal(shape).astype(dtype)
        )
    return arrays


def _reference(func: tirx.PrimFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays as the CPU leaves them, from `func`, which no rule has scheduled."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(func.with_attr("global_symbol", "main"), target="llvm")["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def emulated(before: tirx.PrimFunc, after: tirx.PrimFunc, **sizes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(what the emulated GPU leaves by `after`, what the CPU leaves by `before`) of each array."""
    arrays = _arrays_of(before, sizes)
    expected = _reference(before, arrays)
    emulate(after, TARGET, arrays)
    return zip(arrays, expected, strict=True)


SUMS_OF_GROUPS = "linear_groups"  # float32 sums of groups' products, of which the largest decides the rounding
GROWING = "gated_delta"  # with keys of any length its state grows from token to token, and results cancel


def assert_near(array: np.ndarray, wanted: np.ndarray, said: str) -> None:
    """Equal but for the order of float32 sums; `said` names the operator or the function."""
    rounded_by_largest = SUMS_OF_GROUPS in said or GROWING in said
    largest = float(np.abs(wanted).max(initial=0.0, where=np.isfinite(wanted))) if rounded_by_largest else 0.0
    np.testing.assert_allclose(array, wanted, rtol=2e-5, atol=2e-5 + 1e-6 * largest, err_msg=said)
