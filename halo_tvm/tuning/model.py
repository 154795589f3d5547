"""`tune_model`: from models and options to a tuning run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import tvm

from ..artifact import UNBOUNDED
from ..compilation import Compilation
from ..config import TuneConfig, words_of
from ..entry_points import MAIN, TOGETHER, functions_of
from ..errors import NoValidTrial, UsageError
from ..imported import ImportedModel
from ..importers import import_model
from ..importers.shapes import load_examples
from ..level_of_products import precision_of_products
from ..models import PRESETS
from ..phases import lower
from ..plugins import load_plugins
from ..records.home import check_writable_log, log_dirs, user_logs
from ..reference import sizes_of
from ..report.host import describe_host
from ..report.tuned import TuneResult
from ..targets import Target, read_host
from .budget import parse_budget
from .many import by_model, lower_each, merged, weighted
from .model_list import ListedModel, once_each, read_model_list
from .options import TuneOptions
from .place import Place, place_of
from .progress import Progress, say
from .search.efforts import effort_named
from .task import Tasks, sizes_at_calls, tasks_of
from .tuner import Tuner

_MEMORY_CAP = 8 << 30
_MEMORY_SHARE = 0.6
CALLS = {"decode": 128, TOGETHER: 128}  # of a function, where the others are called once: an answer's tokens


def tune_model(config: TuneConfig) -> TuneResult:
    """Lower the models, extract their tasks, measure, commit.

    Of one model this raises what `compile` raises for it, and `NoValidTrial` when nothing could be
    measured. Of several, what happened to each is in `TuneResult.models`, and none stops the others. Raises
    `KeyboardInterrupt` after an interruption, with everything committed kept and a summary shown.
    """
    load_plugins()
    parse_budget(config.budget)
    models = models_of(config)
    if not config.build_only:
        check_writable_log(_directory(config))
    place = place_of(config)
    if len(models) == 1:
        return _run(*_placed(models[0], place, config), config)
    lowered = lower_each(
        models, lambda entry: tasks_of_model(imported_of(entry, config), entry, place.target, config), say
    )
    tasks, failure = merged(lowered), None
    result = _unmeasured(tasks, place.target, config)
    if any(not model.failure for model in lowered):
        try:
            result = _run(tasks, _digest([model.source for model in lowered]), place, config)
        except NoValidTrial as error:
            failure = error
    return by_model(result, lowered, tasks, failure)


def models_of(config: TuneConfig) -> list[ListedModel]:
    """The models of the options, each once; `UsageError` where `--shape` or `--inputs` cannot mean one of several."""
    models = [ListedModel(name, config.shape, config.inputs) for name in config.model]
    if config.model_list is not None:
        models += read_model_list(config.model_list, PRESETS)
    models = once_each(models)
    if len(models) > 1 and (config.shape or config.inputs):
        option = "--shape" if config.shape else "--inputs"
        raise UsageError(
            f"{option} belongs to one model, but {len(models)} were given: list them in a file for --model-list, and "
            f"write {option[2:]}=... behind the model that it belongs to"
        )
    return models


def tune_module(
    mod: tvm.IRModule,
    target: Target,
    config: TuneConfig,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    *,
    modules: Sequence[str] = (),
    stream: TextIO | None = None,
) -> TuneResult:
    """Tune the functions of a module before scheduling. `config.model` only names it.

    `modules` are imported by the measurement worker: they register rules and targets no entry point names.
    """
    place = place_of(config, target)
    return _run(tasks_of(mod, target, ranges), "", place, config, modules, stream)


def options_of(config: TuneConfig, target: Target, modules: Sequence[str] = (), source: str = "") -> TuneOptions:
    """The options of a run."""
    steps = Compilation.of(config.compile_config(), target).steps
    return TuneOptions(
        model=name_of(config),
        budget_s=parse_budget(config.budget),
        effort=effort_named(config.effort),
        directory=_directory(config),
        read=log_dirs(config.log),
        threads=target.cores,
        memory_bytes=_memory_limit(),
        l3_bytes=read_host().l3_bytes,
        seed=config.seed,
        trials=config.trials,
        modules=tuple(modules),
        vector_math=steps.runs_named("vector_math"),
        stages=config.stages,
        resume=config.resume,
        cold_cache=config.cold_cache,
        source=source,
    )


def name_of(config: TuneConfig) -> str:
    """What the run is called, in its result and where `--resume` looks for it."""
    return ", ".join([*config.model, *([config.model_list] if config.model_list else [])])


def resume_command(config: TuneConfig) -> str:
    """The command line that goes on with a run of these options."""
    names = {field.name for field in dataclasses.fields(config)} - {"resume"}
    return shlex.join(["halo-tvm", "tune", *words_of(config, names), "--resume"])


def _placed(entry: ListedModel, place: Place, config: TuneConfig) -> tuple[Tasks, str, Place]:
    """The tasks of the only model, a hash of its source, and where they run: `place`, or the level of its products.

    Graph and weights are gone when this returns.
    """
    imported = imported_of(entry, config)
    products = imported.params.stored_precision or precision_of_products(imported)
    if config.precision is None and products:
        place = place_of(config, products=products)
    return *tasks_of_model(imported, entry, place.target, config), place


def imported_of(entry: ListedModel, config: TuneConfig) -> ImportedModel:
    return import_model(
        entry.model, seed=config.seed, shapes=entry.shape, inputs=entry.inputs, trust=config.trust_model
    )


def tasks_of_model(
    imported: ImportedModel, entry: ListedModel, target: Target, config: TuneConfig
) -> tuple[Tasks, str]:
    """The tasks of one model, and a hash of its source."""
    compilation = Compilation.of(
        config.compile_config(entry.model, entry.shape, entry.inputs), target, stored=imported.params.stored_precision
    )
    compilation.warn_of_unread()
    functions = tuned_functions(imported, config, compilation)
    tasks = weighted(
        (
            _tasks_of_function(function, replace(compilation, function=name), entry.inputs if name == MAIN else None),
            CALLS.get(name, 1),
        )
        for name, function in functions.items()
    )
    return tasks, _digest(
        [imported.source, entry.shape, entry.inputs, entry.weight, compilation.precision, list(functions)]
    )


def tuned_functions(imported: ImportedModel, config: TuneConfig, compilation: Compilation) -> dict[str, ImportedModel]:
    """The functions that are tuned: those of `--function`, else all that are built.

    Where others are built beside main they answer with a cache of keys and values, so main runs to validate alone.
    """
    built = functions_of(
        imported, config.function, gpu=compilation.target.spec.gpu, slots=config.slots, caches=compilation.caches
    )
    wanted = config.function or [name for name in built if name != MAIN] or [MAIN]
    return {name: function for name, function in built.items() if name in wanted}


def _tasks_of_function(model: ImportedModel, compilation: Compilation, inputs: str | None) -> Tasks:
    """Those of one function; dimensions without a bound have the sizes of the example `inputs`, a batch has one."""
    mod, _ = lower(model, compilation)
    open_ = {name: low for name, (low, high) in model.ranges.items() if high >= UNBOUNDED}
    fixed = {name: max(1, low) for name, low in open_.items() if model.typical.get(name) == 1}
    if inputs:
        fixed |= {name: n for name, n in sizes_of(model, load_examples(inputs)).items() if name in open_ and n}
    return tasks_of(mod, compilation.target, model.ranges, fixed, sizes_at_calls(mod, fixed) if inputs else None)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:20]


def _run(
    tasks: Tasks,
    source: str,
    place: Place,
    config: TuneConfig,
    modules: Sequence[str] = (),
    stream: TextIO | None = None,
) -> TuneResult:
    options = options_of(config, place.target, modules, source)
    if config.build_only:
        from .build_only import build_candidates

        return build_candidates(tasks, place.target, options, stream)
    with Progress(len(tasks.tasks), options.budget_s, stream, trials=options.trials) as progress:
        lab = place.lab(options.lab, options.seed)
        tuner = Tuner(tasks, place.target, place.fingerprint, options, progress, lab=lab)
        try:
            return tuner.run()
        except KeyboardInterrupt:
            progress.note(tuner.result.summary())
            progress.note(f"to go on where this run was: {resume_command(config)}")
            raise


def _unmeasured(tasks: Tasks, target: Target, config: TuneConfig) -> TuneResult:
    log = "" if config.build_only else str(_directory(config))
    return TuneResult(
        model=name_of(config),
        target=target.key,
        host=describe_host(),
        log=log,
        tasks=(),
        skipped=tasks.skipped,
        budget_s=parse_budget(config.budget),
        threads=target.cores,
        build_only=config.build_only,
    )


def _directory(config: TuneConfig) -> Path:
    """Where records are written."""
    return Path(config.log) if config.log else user_logs()


def _memory_limit() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_MEMORY_CAP, int(_MEMORY_SHARE * physical))
