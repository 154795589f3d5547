"""`tune_model`: from a model and options to a tuning run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import tvm

from ..compiler import lower
from ..config import TuneConfig
from ..errors import EnvironmentProblem
from ..importers import import_model
from ..lookup import fingerprint_of
from ..passes.pipeline import Pipeline
from ..plugins import load_plugins
from ..records.home import check_writable_log, log_dirs, user_logs
from ..targets import Target, can_run_here, read_host, resolve
from .budget import parse_budget
from .progress import Progress
from .result import TuneResult
from .search.efforts import effort_named
from .task import tasks_of
from .tuner import TuneOptions, Tuner

_MEMORY_CAP = 8 << 30
_MEMORY_SHARE = 0.6


def tune_model(config: TuneConfig) -> TuneResult:
    """Lower the model, extract its tasks, measure, commit.

    Raises what `compile` raises for the model, `NoValidTrial` when nothing could be measured, and
    `KeyboardInterrupt` after an interruption, with everything committed kept and a summary shown.
    """
    load_plugins()
    target = resolve(config.target, cores=config.threads)
    _check_can_run(target)
    check_writable_log(_directory(config))
    imported = import_model(
        config.model[0], seed=config.seed, shapes=config.shape, inputs=config.inputs, trust=config.trust_model
    )
    mod, _ = lower(imported, target, config.compile_config())
    return tune_module(mod, target, config, imported.ranges)


def tune_module(
    mod: tvm.IRModule, target: Target, config: TuneConfig, ranges: Mapping[str, tuple[int, int]] | None = None,
    *, modules: Sequence[str] = (), stream: TextIO | None = None,
) -> TuneResult:  # fmt: skip
    """Tune the functions of a module before scheduling. `config.model` only names it.

    `modules` are imported by the measurement worker: they register rules and targets no entry point names.
    """
    tasks = tasks_of(mod, target, ranges)
    options = options_of(config, target, modules)
    progress = Progress(len(tasks.tasks), options.budget_s, stream)
    tuner = Tuner(tasks, target, fingerprint_of(target), options, progress)
    try:
        return tuner.run()
    except KeyboardInterrupt:
        progress.note(tuner.result.summary())
        raise


def options_of(config: TuneConfig, target: Target, modules: Sequence[str] = ()) -> TuneOptions:
    """The options of a run."""
    host = read_host()
    return TuneOptions(
        model=", ".join(config.model),
        budget_s=parse_budget(config.budget),
        effort=effort_named(config.effort),
        directory=_directory(config),
        read=log_dirs(config.log),
        threads=target.cores,
        memory_bytes=_memory_limit(),
        l3_bytes=host.l3_bytes,
        seed=config.seed,
        trials=config.trials,
        modules=tuple(modules),
        vector_math=Pipeline.of(config.compile_config().level, config.enable, config.disable).runs_named("vector_math"),
    )


def _directory(config: TuneConfig) -> Path:
    """Where records are written."""
    return Path(config.log) if config.log else user_logs()


def _check_can_run(target: Target) -> None:
    answer = can_run_here(target)
    if not answer or target.spec.gpu:
        why = answer.reason or "measuring on GPUs is not supported yet"
        raise EnvironmentProblem(
            f"tuning measures on this machine, so it needs a CPU target that runs here, but {target.name} does not: "
            f"{why}"
        )


def _memory_limit() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_MEMORY_CAP, int(_MEMORY_SHARE * physical))
