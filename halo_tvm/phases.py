"""The phases between import and artifact: a module and what the compilation resolved -> a module and a report.

import -> lift -> optimise -> schedule -> build
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import tvm

from .build import CUDA_GRAPH, build_library, can_capture, lowering, planned_bytes, with_bounds
from .compilation import Compilation
from .entry_points import MAIN, Modules, apart_bytes, bytes_of, merged
from .imported import ImportedModel
from .inner_functions import apart, together
from .lookup import fingerprint_of, lookup_in
from .loop_kernels import with_loop_kernels
from .passes import Context
from .passes.graph_pass import Report
from .passes.kernel_count import count_kernels
from .passes.pipeline import LIFT, OPTIMISE, Pipeline
from .passes.schedule import schedule_functions
from .passes.weights import names_in, param_names
from .phase_reports import (
    BuildReport,
    LiftReport,
    OptimiseReport,
    RecordsReport,
    Reports,
    ScheduleReport,
    read,
)
from .records.log import TuningLog
from .workspaces import LiftWorkspaces

_REQUIRED = Pipeline.of(0)  # for functions that only call others


def lower(imported: ImportedModel, compilation: Compilation) -> tuple[tvm.IRModule, Reports]:
    """Phases lift and optimise: `imported` as call_tir of PrimFuncs that no rule has scheduled yet.

    The reports of the phases that follow are empty; whoever runs these adds theirs.
    """
    context = Context(
        imported.params,
        compilation.target,
        imported.ranges,
        imported.typical,
        compilation.overrides,
        compilation.precision,
        imported.shared,
        compilation.rung,
    )
    parts: dict[str, tvm.IRModule] = {}
    reports: list[tuple[Report, Report]] = []
    functions = apart(imported.mod)
    # A pass that makes functions of its own leaves alone what is one of several: these meet as they are (`together`).
    full = compilation.steps if len(functions) == 1 else compilation.steps.without("tile_batch")
    named = {name: names_in(part.mod[MAIN], imported.params) for name, part in functions.items()}
    for name, part in functions.items():
        steps = full if part.works else _REQUIRED
        elsewhere = reduce(or_, (names for other, names in named.items() if other != name), imported.shared.names)
        context = replace(context, elsewhere=elsewhere)
        mod, lift = steps.run(LIFT, part.mod, context)
        compilation.dump("2-lifted" if name == MAIN else f"2-lifted-{name}", mod)
        parts[name], optimise = steps.run(OPTIMISE, mod, context)
        reports.append((lift.get("lift", {}), optimise))
    mod = together(parts, imported.params)
    compilation.dump("3-optimised", mod)
    lifted, optimised = (reduce(_both, of_all) for of_all in zip(*reports))
    return mod, Reports(imported.report, read(LiftReport, lifted), read(OptimiseReport, optimised))


def _both(first: Any, second: Any) -> Any:
    """What passes say of main and of the functions beside it: counts added up, lists one behind the other."""
    if isinstance(first, Mapping):
        return {**first, **{key: _both(first[key], told) if key in first else told for key, told in second.items()}}
    if isinstance(first, list | tuple):
        return [*first, *(told for told in second if told not in first)]
    return first + second if isinstance(first, int) and not isinstance(first, bool) and second is not None else first


def schedule(mod: tvm.IRModule, compilation: Compilation) -> tuple[tvm.IRModule, ScheduleReport]:
    """Phase schedule: every PrimFunc by record, rule or fallback."""
    target = compilation.target
    log = TuningLog.open(compilation.records, fingerprint_of(target))
    unusable: list[str] = []
    vector_math = compilation.steps.runs_named("vector_math")
    scheduled, report = schedule_functions(
        mod, target, lookup_in(log, target, unusable.append), vector_math=vector_math
    )
    if compilation.steps.runs_named("loop_kernels") and not target.spec.gpu:
        scheduled, loops = with_loop_kernels(scheduled)
        report = replace(report, loops=loops)
    compilation.dump("4-scheduled", scheduled)
    # Without the directories: paths of this machine are nobody else's business.
    found = {**log.report().to_plain(), "unusable": unusable, "reasons": len(log.report().reasons)}
    return scheduled, replace(report, kernels=count_kernels(mod), log=read(RecordsReport, found))


def build(
    modules: Modules, compilation: Compilation, functions: Mapping[str, ImportedModel], library: Path
) -> tuple[dict[str, tvm.IRModule], dict[str, BuildReport], bool]:
    """Phase build: code and memory plans of all functions into the shared library `library`; a report for each.

    Says, too, whether the library is that of an earlier build.
    """
    target, steps = compilation.target, compilation.steps
    plan = steps.runs_named("plan_memory")
    if target.spec.gpu:
        modules = {name: LiftWorkspaces()(mod) for name, mod in modules.items()}
    graph = plan and steps.runs_named("cuda_graph") and all(can_capture(mod, target) for mod in modules.values())
    modules = {name: with_bounds(mod, functions[name].ranges) for name, mod in modules.items()}
    whole = merged(modules)
    built = build_library(whole, target, library, plan, graph, compilation.builds)
    if compilation.dump_ir:
        with tvm.transform.PassContext(config={CUDA_GRAPH: graph}):
            compilation.dump("5-lowered", lowering(plan, graph, gpu=bool(target.spec.gpu))(whole))
    reports = {}
    for name, model in functions.items():
        names, sizes = param_names(modules[name][MAIN]), (model.ranges, model.typical)
        reports[name] = BuildReport(
            planned_bytes=planned_bytes(modules[name], plan, *sizes),
            unplanned_bytes=planned_bytes(modules[name], False, *sizes),
            params=len(names),
            params_bytes=sum(bytes_of(n, model.params) for n in names),
        )
    reports[MAIN] = replace(
        reports[MAIN],
        library_bytes=library.stat().st_size,
        device=built.device,
        cuda_graph=graph,
        apart_bytes=apart_bytes(modules, functions[MAIN].params) if len(modules) > 1 else None,
    )
    return modules, reports, built.from_cache


def build_alone(mod: tvm.IRModule, compilation: Compilation, imported: ImportedModel, library: Path) -> None:
    """Phase build of one function for a CPU: into the shared library `library`, without a report."""
    mod = with_bounds(mod, imported.ranges)
    plan = compilation.steps.runs_named("plan_memory")
    build_library(mod, compilation.target, library, plan, cache=compilation.builds)
