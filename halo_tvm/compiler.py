"""compile_model(): a model becomes a validated artifact, read from top to bottom.

    resolve -> import -> lift, optimise -> schedule -> build -> reference -> write, validate
`Compilation` resolves the options once; each phase (`phases`) maps a module to a module and a report.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import tvm

from . import reference
from .artifact import Manifest, ParamHeader, check_output_path, write_artifact
from .compilation import Compilation
from .config import CompileConfig, with_signature
from .describe import manifest_of
from .entry_points import MAIN, functions_of, stored_names
from .errors import Declined, ValidationFailed
from .imported import ImportedModel
from .importers import import_model
from .importers.shapes import apply_shapes, load_examples
from .interrupts import raise_noted
from .level_of_products import precision_of_products
from .passes.scheme_ladder import Rung, loss_of, rungs_to_try
from .phase_reports import Loss, Reports
from .phases import build, lower, schedule
from .records.home import check_named_log
from .runtime.acceptance import acceptance, in_words
from .runtime.reference_engine import with_engine
from .targets import FULL
from .text_reference import Passage, calibration_of

_UNTOLD = "; no passage of text was compared: {}"


@dataclass(frozen=True)
class CompileResult:
    """Where the artifact is, what its manifest says, and what the phases did."""

    path: Path
    manifest: Manifest
    reports: Reports  # of main
    validation: str = "not done: compiled only"
    others: tuple[Reports, ...] = ()  # of the functions beside main
    seconds: Mapping[str, float] = field(default_factory=dict)  # of every phase
    from_cache: bool = False  # the library is that of an earlier build

    def __str__(self) -> str:
        schedule, device = self.reports.schedule, self.reports.build.device
        every = [schedule, *(reports.schedule for reports in self.others)]
        tuned, functions = sum(s.tuned for s in every), sum(len(s.functions) for s in every)
        operators = ", ".join(f"{count} {name}" for name, count in self.reports.lift.operators.items())
        rules = ", ".join(f"{name} {count}" for name, count in sorted(schedule.rules.items()))
        quantise = self.reports.optimise.quantise
        seconds = ", ".join(f"{phase} {value:.1f}" for phase, value in self.seconds.items())
        whole = (self.manifest.language or {}).get("recomputes")  # whose texts are read anew for every token
        lacks = self.reports.import_.get("no_definition", "its type has no definition")
        inside, around = (self.manifest.source.get(key) for key in ("language_model", "model_type"))
        return "\n".join(
            [
                *([f"read       the language model ({inside}) of a {around} alone"] if inside else []),
                *([f"caches     none, {lacks}"] if whole else []),
                f"operators  {operators or 'none recognised'}",
                f"schedules  {rules}",
                f"kernels    {schedule.kernels}",
                *([f"precision  {self.manifest.precision}"] if self.manifest.precision != FULL else []),
                *([f"schemes    {quantise.choice}"] if quantise and quantise.choice else []),
                *([f"device     {device}"] if device else []),
                f"tuning     {tuned} of {functions} functions from records",
                f"seconds    {seconds}{', library from an earlier build' if self.from_cache else ''}",
                f"wrote      {self.path}",
                f"validation {self.validation}",
            ]
        )


def compile_model(config: CompileConfig, model: ImportedModel | None = None) -> CompileResult:
    """Compile a model into an artifact directory, which is validated where it can run, and written in one step.

    `model` is compiled instead of what `config.model` names.
    Raises a `HaloError` whose message says what was expected, what was found and what to do; then nothing is written,
    and what was there before stays.
    """
    output = check_output_path(config.artifact)
    check_named_log(config.log)
    compilation = Compilation.of(config)
    clock = _Clock()
    with clock("import"):
        imported = _imported(config, model)
        stored, products = imported.params.stored_precision, precision_of_products(imported)
        if config.precision is None and (stored or products):
            compilation = Compilation.of(config, stored=stored, products=products)
        compilation.warn_of_unread()
        compilation.dump("1-imported", imported.mod)
        passage, untold = _passage(imported)
        calibrates = calibration_of(imported, config.calibrate) if config.calibrate else passage
        if calibrates is not None:
            calibrates.measure_inputs()
    functions = functions_of(
        imported,
        config.function,
        gpu=compilation.target.spec.gpu,
        slots=config.slots,
        caches=compilation.caches,
    )
    check, unchecked = _check(config, compilation)
    rungs = _rungs(config, compilation, functions) if check and passage else (None,)
    cases: dict[str, np.ndarray] = {}
    lost: list[Loss] = []
    with tempfile.TemporaryDirectory(prefix="halo-tvm-") as scratch:
        library = Path(scratch) / "model.so"
        for rung in rungs:
            modules, reports, kept = _built(functions, replace(compilation, rung=rung), library, clock)
            reports[MAIN] = reports[MAIN].of_rung("" if rung is None else str(rung), lost)
            if not cases:
                with clock("reference"):
                    examples = load_examples(config.inputs) if config.inputs else None
                    cases = reference.cases_of(imported, config.seed, examples, compilation.precision)
                    functions[MAIN] = replace(functions[MAIN], typical=reference.typical_of(imported, cases, examples))
                    if config.validate:
                        said, untold = _said(passage, untold)
                        cases.update(said)
            manifest = manifest_of(functions, modules, compilation.target, reports, compilation.precision)
            manifest = replace(manifest, reports=with_engine(manifest, imported.engine))
            with clock("write"):
                try:
                    manifest = _written(output, manifest, library, imported, stored_names(modules), cases, check)
                    break
                except ValidationFailed as failure:
                    loss = loss_of(rung, failure.report)
                    if loss is None or rung is rungs[-1]:
                        raise _refused(output, failure, lost) from failure
                    lost.append(loss)
    validation = unchecked if manifest.validation is None else in_words(manifest.validation) + untold
    beside = tuple(report for name, report in reports.items() if name != MAIN)
    return CompileResult(output, manifest, reports[MAIN], validation, beside, clock.seconds, kept)


def _rungs(
    config: CompileConfig, compilation: Compilation, functions: Mapping[str, ImportedModel]
) -> tuple[Rung | None, ...]:
    """The schemes of the precision that are tried until the text allows what one loses; None: the usual ones."""
    if config.allow_quality_loss:
        return (None,)
    options = compilation.overrides.passes.get("quantise", {})
    return rungs_to_try(compilation.precision, functions[MAIN].shared.appends, options)


def _built(
    functions: Mapping[str, ImportedModel], compilation: Compilation, library: Path, clock: _Clock
) -> tuple[dict[str, tvm.IRModule], dict[str, Reports], bool]:
    """Every function through lift, optimise and schedule, all into one library; whether it is of an earlier build."""
    parts = {name: replace(compilation, function=name) for name in functions}
    with clock("optimise"):
        lowered = {name: lower(model, parts[name]) for name, model in functions.items()}
    modules, reports = ({name: pair[i] for name, pair in lowered.items()} for i in (0, 1))
    with clock("schedule"):
        for name in functions:
            modules[name], scheduled = schedule(modules[name], parts[name])
            reports[name] = replace(reports[name], schedule=scheduled)
    with clock("build"):
        modules, built, kept = build(modules, compilation, functions, library)
    return modules, {name: replace(reports[name], build=built[name]) for name in functions}, kept


def _written(
    output: Path,
    manifest: Manifest,
    library: Path,
    imported: ImportedModel,
    weights: list[str],
    cases: Mapping[str, np.ndarray],
    check: Callable[[Path], Mapping[str, object]] | None,
) -> Manifest:
    """The artifact, in one step and only if it passes `check`, and its manifest with what that found."""
    params = imported.params
    return write_artifact(
        output,
        manifest=manifest,
        library=library,
        params_headers=[ParamHeader(name, params.shape(name), params.dtype(name)) for name in weights],
        params=params.stream(weights),
        reference=cases,
        others=imported.files,
        check=check,
    )


def _refused(output: Path, failure: ValidationFailed, lost: list[Loss]) -> ValidationFailed:
    """The refusal of an artifact that is not written, with what cheaper schemes lost."""
    before = f"; cheaper schemes lost more: {', '.join(map(str, lost))}" if lost else ""
    note = f"{failure}{before}; {output.name} was not written, which --no-validate does all the same"
    return ValidationFailed(note, failure.report)


def _check(
    config: CompileConfig, compilation: Compilation
) -> tuple[Callable[[Path], Mapping[str, object]] | None, str]:
    """What an artifact must pass to be written, or why nothing is asked of it."""
    if not config.validate:
        return None, "not done: --no-validate"
    try:
        bound = math.inf if config.allow_quality_loss else config.max_divergence
        return acceptance(compilation.target, config.threads, bound), ""
    except Declined as reason:
        return None, f"not done: {reason}"


def _imported(config: CompileConfig, model: ImportedModel | None) -> ImportedModel:
    if model is not None:
        return apply_shapes(model, config.shape)
    return import_model(
        with_signature(config.model, config.signature),
        seed=config.seed,
        shapes=config.shape,
        inputs=config.inputs,
        trust=config.trust_model,
        tokenizer=config.tokenizer,
    )


def _passage(model: ImportedModel) -> tuple[Passage | None, str]:
    """The shipped text as a language model reads it, or why there is none, as the end of a sentence."""
    if model.language is None or model.source.get("kind") == "builtin":
        return None, ""
    try:
        return Passage(model), ""
    except Declined as reason:
        return None, _UNTOLD.format(reason)


def _said(passage: Passage | None, untold: str) -> tuple[dict[str, np.ndarray], str]:
    """The reference of the passage, or why there is none."""
    try:
        return ({}, untold) if passage is None else (passage.cases(), "")
    except Declined as reason:
        return {}, _UNTOLD.format(reason)


class _Clock:
    """Seconds per phase. None begins behind an interrupt that a library lost."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phase = ""
        self._start = 0.0

    def __call__(self, phase: str) -> _Clock:
        self._phase = phase
        return self

    def __enter__(self) -> None:
        raise_noted()
        self._start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        before = self.seconds.get(self._phase, 0.0)  # of a rung that lost too much
        self.seconds[self._phase] = round(before + time.perf_counter() - self._start, 2)
