"""`tune_model`: from models and options to a tuning run."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import tvm

from ..compiler import lower
from ..config import TuneConfig, parse_address
from ..errors import EnvironmentProblem, NoValidTrial, UsageError
from ..importers import import_model
from ..lookup import fingerprint_of
from ..models import PRESETS
from ..passes.pipeline import Pipeline
from ..plugins import load_plugins
from ..records.home import check_writable_log, log_dirs, user_logs
from ..targets import Target, can_run_here, read_host, resolve
from .budget import parse_budget
from .many import by_model, lower_each, merged
from .measure.rpc import Device, device_behind, refuse_other_targets
from .model_list import ListedModel, once_each, read_model_list
from .progress import Progress, say
from .result import TuneResult
from .search.efforts import effort_named
from .task import Tasks, tasks_of
from .tuner import TuneOptions, Tuner

_MEMORY_CAP = 8 << 30
_MEMORY_SHARE = 0.6
_RPC = "--rpc HOST:PORT --device-key KEY"


def tune_model(config: TuneConfig) -> TuneResult:
    """Lower the models, extract their tasks, measure, commit.

    Of one model this raises what `compile` raises for it, and `NoValidTrial` when nothing could be
    measured. Of several, what happened to each is in `TuneResult.models`, and none stops the others. Raises
    `KeyboardInterrupt` after an interruption, with everything committed kept and a summary shown.
    """
    load_plugins()
    device = _device(config)
    if device is None:
        target = resolve(config.target, cores=config.threads)
        _check_can_run(target)
    else:
        target = resolve(config.target, host=device.host, cores=device.threads or config.threads)
        refuse_other_targets(device, target, config.device_key)
    parse_budget(config.budget)
    models = models_of(config)
    check_writable_log(_directory(config))
    if len(models) == 1:
        return _run(_tasks_of(models[0], target, config), target, config, device)
    lowered = lower_each(models, lambda entry: _tasks_of(entry, target, config), say)
    tasks = merged(lowered)
    failure = None
    if not any(not model.failure for model in lowered):
        result = _unmeasured(tasks, target, config)
    else:
        try:
            result = _run(tasks, target, config, device)
        except NoValidTrial as error:
            failure, result = error, _unmeasured(tasks, target, config)
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
    mod: tvm.IRModule, target: Target, config: TuneConfig, ranges: Mapping[str, tuple[int, int]] | None = None,
    *, modules: Sequence[str] = (), stream: TextIO | None = None,
) -> TuneResult:  # fmt: skip
    """Tune the functions of a module before scheduling. `config.model` only names it.

    `modules` are imported by the measurement worker: they register rules and targets no entry point names.
    """
    return _run(tasks_of(mod, target, ranges), target, config, _device(config), modules, stream)


def options_of(config: TuneConfig, target: Target, modules: Sequence[str] = ()) -> TuneOptions:
    """The options of a run."""
    host = read_host()
    pipeline = Pipeline.of(config.compile_config().level, config.enable, config.disable)
    values = {
        "model": name_of(config),
        "budget_s": parse_budget(config.budget),
        "effort": effort_named(config.effort),
        "directory": _directory(config),
        "read": log_dirs(config.log),
        "threads": target.cores,
        "memory_bytes": _memory_limit(),
        "l3_bytes": host.l3_bytes,
        "seed": config.seed,
        "trials": config.trials,
        "modules": tuple(modules),
        "vector_math": pipeline.runs_named("vector_math"),
        "stages": config.stages,
        "engine": config.engine,
        "resume": config.resume,
        "cold_cache": config.cold_cache,
        "rpc": config.rpc,
        "device_key": config.device_key,
    }
    return TuneOptions(**{f.name: values[f.name] for f in dataclasses.fields(TuneOptions) if f.name in values})


def name_of(config: TuneConfig) -> str:
    """What the run is called, in its result and where `--resume` looks for it."""
    return ", ".join([*config.model, *([config.model_list] if config.model_list else [])])


def resume_command(config: TuneConfig) -> str:
    """The command line that goes on with a run of these options."""
    words = ["halo-tvm", "tune"]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not field.metadata.get("flag", True) or field.name == "resume" or value in (field.default, ()):
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        else:
            words += [word for one in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(one))]
    return shlex.join([*words, "--resume"])


def _tasks_of(entry: ListedModel, target: Target, config: TuneConfig) -> Tasks:
    """The tasks of one model; graph and weights are gone when this returns."""
    imported = import_model(
        entry.model, seed=config.seed, shapes=entry.shape, inputs=entry.inputs, trust=config.trust_model
    )
    mod, _ = lower(imported, target, config.compile_config(entry.model, entry.shape, entry.inputs))
    return tasks_of(mod, target, imported.ranges)


def _run(
    tasks: Tasks, target: Target, config: TuneConfig, device: Device | None,
    modules: Sequence[str] = (), stream: TextIO | None = None,
) -> TuneResult:  # fmt: skip
    options = options_of(config, target, modules)
    fingerprint = device.fingerprint(target) if device else fingerprint_of(target)
    with Progress(len(tasks.tasks), options.budget_s, stream, trials=options.trials) as progress:
        if config.engine == "metaschedule":
            from .metaschedule import tune_tasks

            return tune_tasks(tasks, target, options, progress)
        tuner = Tuner(tasks, target, fingerprint, options, progress)
        try:
            return tuner.run()
        except KeyboardInterrupt:
            progress.note(tuner.result.summary())
            progress.note(f"to go on where this run was: {resume_command(config)}")
            raise


def _unmeasured(tasks: Tasks, target: Target, config: TuneConfig) -> TuneResult:
    skipped = [{"readable": s.readable, "count": s.count, "reason": s.reason} for s in tasks.skipped]
    return TuneResult.unmeasured(
        name_of(config), target.key, str(_directory(config)), parse_budget(config.budget), target.cores, skipped
    )


def _directory(config: TuneConfig) -> Path:
    """Where records are written."""
    return Path(config.log) if config.log else user_logs()


def _device(config: TuneConfig) -> Device | None:
    """What the device that `--rpc` and `--device-key` name says of itself; None when this machine measures."""
    return device_behind(parse_address(config.rpc, "--rpc"), config.device_key) if config.rpc else None


def _check_can_run(target: Target) -> None:
    """`EnvironmentProblem` unless what is built for `target` can be measured here."""
    answer = can_run_here(target)
    if target.spec.gpu:
        why = f"{answer.reason}; " if answer.reason else ""
        raise EnvironmentProblem(
            f"tuning measures on this machine, so it needs a CPU target that runs here, but {target.name} is for GPUs: "
            f"{why}kernels of GPUs are not measured yet, with a GPU here or through --rpc neither: compile without "
            f"tuning, or tune a CPU target here, or that of another machine with {_RPC}"
        )
    if not answer:
        raise EnvironmentProblem(
            f"tuning measures on this machine, so it needs a CPU target that runs here, but {target.name} does not: "
            f"{answer.reason}; or measure on a machine where it does: start a tracker here and a server there with "
            f"`halo-tvm rpc`, and give {_RPC}"
        )


def _memory_limit() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_MEMORY_CAP, int(_MEMORY_SHARE * physical))
