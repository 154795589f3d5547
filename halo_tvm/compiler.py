"""compile_model(): a model becomes a validated artifact, read from top to bottom.

    resolve -> import -> lift, optimise -> schedule -> build -> reference -> write -> validate
`Compilation` resolves the options once; each phase (`phases`) maps a module to a module and a report.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import reference
from .artifact import Manifest, ParamHeader, check_output_path, write_artifact
from .compilation import Compilation
from .config import CompileConfig
from .describe import manifest_of
from .entry_points import MAIN, functions_of, stored_names
from .imported import ImportedModel
from .importers import import_model
from .importers._shapes import apply_shapes, load_examples
from .phases import build, lower, schedule
from .runtime.acceptance import accept


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
                f"seconds    {seconds}{', library from an earlier build' if reports['build']['from_cache'] else ''}",
                f"wrote      {self.path}",
                f"validation {self.validation}",
            ]
        )


def compile_model(config: CompileConfig, model: ImportedModel | None = None) -> CompileResult:
    """Compile a model into an artifact directory, written in one step, and validate it where it can run.

    `model` is compiled instead of what `config.model` names.
    Raises a `HaloError` whose message says what was expected, what was found and what to do.
    """
    output = check_output_path(config.artifact)
    compilation = Compilation.of(config)
    clock = _Clock()
    with clock("import"):
        imported = _imported(config, model)
        compilation.dump("1-imported", imported.mod)
    functions = functions_of(imported, config.function)
    parts = {name: replace(compilation, function=name) for name in functions}
    with clock("optimise"):
        lowered = {name: lower(model, parts[name]) for name, model in functions.items()}
        modules, reports = ({name: pair[i] for name, pair in lowered.items()} for i in (0, 1))
    with clock("schedule"):
        for name in functions:
            modules[name], reports[name]["schedule"] = schedule(modules[name], parts[name])
    with tempfile.TemporaryDirectory(prefix="halo-tvm-") as scratch:
        library = Path(scratch) / "model.so"
        with clock("build"):
            modules, built = build(modules, compilation, functions, library)
            for name in functions:
                reports[name]["build"] = built[name]
        with clock("reference"):
            examples = load_examples(config.inputs) if config.inputs else None
            cases = reference.cases_of(imported, config.seed, examples)
        with clock("write"):
            names = stored_names(modules)
            headers = [ParamHeader(name, imported.params.shape(name), imported.params.dtype(name)) for name in names]
            reports[MAIN]["build"]["seconds"] = dict(clock.seconds)
            manifest = write_artifact(
                output,
                manifest=manifest_of(functions, modules, compilation.target, reports, compilation.precision),
                library=library,
                params_headers=headers,
                params=imported.params.stream(names),
                reference=cases,
                others=imported.files,
            )
    validation = "not done: --no-validate"
    if config.validate:
        validation = accept(output, compilation.target, threads=config.threads)
    return CompileResult(output, manifest, clock.seconds, validation)


def _imported(config: CompileConfig, model: ImportedModel | None) -> ImportedModel:
    if model is not None:
        return apply_shapes(model, config.shape)
    return import_model(
        config.model, seed=config.seed, shapes=config.shape, inputs=config.inputs, trust=config.trust_model
    )


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
