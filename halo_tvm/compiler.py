"""compile_model(): the phases in order.

    import -> lift -> optimise -> schedule -> build
Each phase maps an IRModule to an IRModule and a report; the module is verified between them.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tvm

from . import reference
from .artifact import Manifest, ParamHeader, check_output_path, write_artifact
from .build import CUDA_GRAPH, build_library, can_capture, lowering, planned_bytes, with_bounds
from .config import CompileConfig
from .describe import manifest_of
from .dimensions import itemsize_of
from .errors import EnvironmentProblem, UsageError
from .imported import ImportedModel
from .importers import import_model
from .importers._shapes import apply_shapes, load_examples
from .lookup import lookup_in, open_log
from .passes import Context, Overrides, pipeline
from .passes._weights import param_names
from .passes.kernel_count import count_kernels
from .passes.schedule import schedule_functions
from .plugins import load_plugins
from .targets import FULL, Target, can_build_here, check_precision, resolve
from .workspaces import LiftWorkspaces

Reports = dict[str, dict[str, object]]


@dataclass(frozen=True)
class CompileResult:
    """Where the artifact is and what its manifest says."""

    path: Path
    manifest: Manifest
    seconds: dict[str, float] = field(default_factory=dict)
    validation: str = "not done: compiled only"

    def __str__(self) -> str:
        reports = self.manifest.reports
        operators = ", ".join(f"{count} {name}" for name, count in reports["lift"].get("operators", {}).items())
        rules = ", ".join(f"{name} {count}" for name, count in sorted(reports["schedule"]["rules"].items()))
        log = reports["schedule"]["log"]
        seconds = ", ".join(f"{phase} {value:.1f}" for phase, value in self.seconds.items())
        device = reports["build"].get("device")
        return "\n".join(
            [
                f"operators  {operators or 'none recognised'}",
                f"schedules  {rules}",
                f"kernels    {reports['schedule']['kernels']['summary']}",
                *([f"device     {_said(device)}"] if device else []),
                f"tuning     {log['hits']} of {log['hits'] + log['misses']} functions from records",
                f"seconds    {seconds}",
                f"wrote      {self.path}",
                f"validation {self.validation}",
            ]
        )


def compile_model(config: CompileConfig, model: ImportedModel | None = None) -> CompileResult:
    """Compile a model into an artifact directory, written in one step; `halo_tvm.compile_model` also validates it.

    `model` is compiled instead of what `config.model` names.
    Raises a `HaloError` whose message says what was expected, what was found and what to do.
    """
    output = check_output_path(config.artifact)
    _check_dump(config)
    target = _target(config)
    clock = _Clock()
    with clock("import"):
        if model is None:
            imported = import_model(
                config.model, seed=config.seed, shapes=config.shape, inputs=config.inputs, trust=config.trust_model
            )
        else:
            imported = apply_shapes(model, config.shape)
        _dump(config, "1-imported", imported.mod)
    with clock("optimise"):
        mod, reports = lower(imported, target, config)
    with clock("schedule"):
        mod, reports["schedule"] = schedule(mod, target, config)
        _dump(config, "4-scheduled", mod)
    with tempfile.TemporaryDirectory(prefix="halo-tvm-") as scratch:
        library = Path(scratch) / "model.so"
        with clock("build"):
            mod, reports["build"] = build(mod, target, config, imported, library)
        with clock("reference"):
            examples = load_examples(config.inputs) if config.inputs else None
            cases = reference.cases_of(imported, config.seed, examples)
        with clock("write"):
            names = param_names(mod["main"])
            headers = [ParamHeader(name, imported.params.shape(name), imported.params.dtype(name)) for name in names]
            reports["build"]["seconds"] = dict(clock.seconds)
            manifest = write_artifact(
                output,
                manifest=manifest_of(imported, mod, target, reports, precision_of(config, target)),
                library=library,
                params_headers=headers,
                params=imported.params.stream(names),
                reference=cases,
            )
    return CompileResult(output, manifest, clock.seconds)


def lower(imported: ImportedModel, target: Target, config: CompileConfig) -> tuple[tvm.IRModule, Reports]:
    """Phases lift and optimise: `imported` as call_tir of PrimFuncs that no rule has scheduled yet."""
    steps = pipeline.Pipeline.of(config.level, config.enable, config.disable)
    precision = precision_of(config, target)
    steps.check_precision(precision)
    overrides = Overrides(**config.overrides)
    context = Context(imported.params, target, imported.ranges, imported.typical, overrides, precision)
    mod, lift = steps.run(pipeline.LIFT, imported.mod, context)
    _dump(config, "2-lifted", mod)
    mod, optimise = steps.run(pipeline.OPTIMISE, mod, context)
    _dump(config, "3-optimised", mod)
    return mod, {"import": imported.report, "lift": lift.get("lift", {}), "optimise": optimise}


def precision_of(config: CompileConfig, target: Target) -> str:
    """The precision asked for; else the target's own, or float32 where the pass that makes it is switched off."""
    if config.precision is not None:
        return config.precision
    own = target.spec.precision
    return own if pipeline.Pipeline.of(config.level, config.enable, config.disable).makes(own) else FULL


def schedule(mod: tvm.IRModule, target: Target, config: CompileConfig) -> tuple[tvm.IRModule, dict[str, object]]:
    """Phase schedule: every PrimFunc by record, rule or fallback."""
    log = open_log(target, config.log, config.records)
    unusable: list[str] = []
    steps = pipeline.Pipeline.of(config.level, config.enable, config.disable)
    scheduled, report = schedule_functions(
        mod, target, lookup_in(log, target, unusable.append), vector_math=steps.runs_named("vector_math")
    )
    found = {**log.report().to_plain(), "unusable": unusable}
    kernels = count_kernels(mod).report()
    found.pop("directories")  # paths of this machine are nobody else's business
    found["reasons"] = len(found["reasons"])
    return scheduled, {**report, "kernels": kernels, "log": found}


def build(
    mod: tvm.IRModule, target: Target, config: CompileConfig, imported: ImportedModel, library: Path
) -> tuple[tvm.IRModule, dict[str, object]]:
    """Phase build: code and memory plan into `library`."""
    steps = pipeline.Pipeline.of(config.level, config.enable, config.disable)
    plan = steps.runs_named("plan_memory")
    if target.spec.gpu:
        mod = LiftWorkspaces()(mod)
    graph = plan and steps.runs_named("cuda_graph") and can_capture(mod, target)
    mod = with_bounds(mod, imported.ranges)
    report = {
        "planned_bytes": planned_bytes(mod, plan, imported.ranges, imported.typical),
        "unplanned_bytes": planned_bytes(mod, False, imported.ranges, imported.typical),
    }
    device = build_library(mod, target, library, plan, graph)
    if config.dump_ir:
        with tvm.transform.PassContext(config={CUDA_GRAPH: graph}):
            _dump(config, "5-lowered", lowering(plan, graph)(mod))
    names = param_names(mod["main"])
    return mod, {
        **report,
        "library_bytes": library.stat().st_size,
        **({"device": device.as_json(), "cuda_graph": graph} if device else {}),
        "params": len(names),
        "params_bytes": sum(itemsize_of(imported.params.dtype(n)) * math.prod(imported.params.shape(n)) for n in names),
    }


def _target(config: CompileConfig) -> Target:
    load_plugins()
    target = resolve(config.target, cores=config.threads, precision=config.precision)
    answer = can_build_here(target)
    if not answer:
        raise EnvironmentProblem(f"target {config.target} cannot be built here: {answer.reason}")
    check_precision(target, precision_of(config, target), force=config.force_precision)
    return target


def _said(device: Mapping[str, object]) -> str:
    """One line on what a library holds for its GPU."""
    if device["reason"]:
        return f"{device['form']} for {device['arch']}: {device['reason']}"
    kernels = device["kernels"]
    spilling = sum(1 for kernel in kernels if kernel["spill_store_bytes"] or kernel["spill_load_bytes"])
    registers = max((kernel["registers"] for kernel in kernels), default=0)
    return (
        f"{device['form']} for {device['arch']}, {len(kernels)} kernels of at most {registers} registers, "
        f"{spilling or 'none'} with spills"
    )


def _check_dump(config: CompileConfig) -> None:
    """Make the directory of --dump-ir before any work is done."""
    if config.dump_ir:
        try:
            Path(config.dump_ir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--dump-ir needs a directory it may write to, but {config.dump_ir}: {error.strerror}: choose another"
            ) from None


def _dump(config: CompileConfig, name: str, mod: tvm.IRModule) -> None:
    if config.dump_ir:
        directory = Path(config.dump_ir)
        (directory / f"{name}.py").write_text(mod.script(show_meta=False), encoding="utf-8")


class _Clock:
    """Seconds per phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phase = ""
        self._start = 0.0

    def __call__(self, phase: str) -> _Clock:
        self._phase = phase
        return self

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self.seconds[self._phase] = round(time.perf_counter() - self._start, 2)
