"""What one compilation resolved, once: the phases, `tune`, `torch.compile` and `explore` take it from here."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import tvm

from .config import CompileConfig
from .errors import EnvironmentProblem, UsageError
from .object_cache import ObjectCache
from .passes import Overrides
from .passes.pipeline import Pipeline
from .passes.scheme_ladder import Rung
from .plugins import load_plugins
from .records.home import kept_builds, log_dirs
from .targets import FULL, Target, can_build_here, check_precision, resolve

_log = logging.getLogger(__name__)
_WIDENS = "decode_attention"  # the rule that reads keys and values of fewer bits


@dataclass(frozen=True)
class Compilation:
    """The answers to all options that phases ask about."""

    target: Target
    steps: Pipeline
    precision: str  # of the linears, one of `config.PRECISIONS`
    overrides: Overrides = field(default_factory=Overrides)
    records: tuple[Path, ...] = ()  # tuning logs; the first with a record for a function decides
    dump_ir: Path | None = None  # where each phase leaves its module
    builds: ObjectCache | None = None  # where libraries of earlier builds are; None: every one is built
    function: str = "main"  # which one of the model's the phases work on
    caches: str = "float32"  # element type of keys and values that are kept
    rung: Rung | None = None  # of the precision's schemes; None: the usual one

    @classmethod
    def of(
        cls,
        config: CompileConfig,
        target: Target | None = None,
        stored: str | None = None,
        products: str | None = None,
    ) -> Compilation:
        """What `config` asks for, on `target` where a caller has resolved that already: in a tuning run, a study.

        A file that has its weights as integers is compiled at the precision `stored` that keeps them, unless another
        is named, or the target or the level has none such. `products` is the precision whose level `cpu` then is.
        Raises `UsageError` for options that contradict each other, for a precision that the named target computes
        slower than float32 and for a directory that cannot be written to, `EnvironmentProblem` for a target that
        cannot be built here.
        """
        load_plugins()
        named = target is None
        steps = Pipeline.of(config.level, config.enable, config.disable)
        stored = stored if stored and steps.makes(stored) else None
        if target is None:
            target = resolve(config.target, cores=config.threads, precision=config.precision or stored or products)
            if not (answer := can_build_here(target)):
                raise EnvironmentProblem(f"target {config.target} cannot be built here: {answer.reason}")
        own = target.spec.precision
        usual = stored if stored in target.isa.precisions else own if steps.makes(own) else FULL
        precision = config.precision or usual
        if named:
            check_precision(target, precision, force=config.force_precision)
        steps.check_precision(precision)
        overrides = Overrides(**config.overrides)
        records = log_dirs(config.log) if config.records else ()
        builds = ObjectCache(kept_builds()) if config.cache else None
        caches = _caches(config.kv, precision, target)
        return cls(target, steps, precision, overrides, records, _directory(config.dump_ir), builds, caches=caches)

    def warn_of_unread(self) -> None:
        """Say which tables of passes have no effect: one halo.toml may serve several precisions, so none is refused."""
        for name, options in self.overrides.passes.items():
            if options and (reason := self.steps.why_not(name, self.precision)):
                _log.warning("[passes.%s] of halo.toml has no effect here: %s", name, reason)

    def dump(self, name: str, mod: tvm.IRModule) -> None:
        """Write `mod` as Python text where --dump-ir wants it."""
        if self.dump_ir:
            name = name if self.function == "main" else f"{name}-{self.function}"
            (self.dump_ir / f"{name}.py").write_text(mod.script(show_meta=False), encoding="utf-8")


def _caches(asked: str | None, precision: str, target: Target) -> str:
    """The element type of keys and values; `UsageError` for one that no rule of the target widens."""
    narrow = _WIDENS in target.spec.rules
    if asked in ("fp16", "int8") and not narrow:
        raise UsageError(f"{target.name} reads keys and values as they are kept, found --kv {asked}: leave it out")
    usual = "fp16" if narrow and precision != FULL else "fp32"
    return {"fp32": "float32", "fp16": "float16", "int8": "int8"}[asked or usual]


def _directory(path: str | None) -> Path | None:
    """The directory of --dump-ir, made before any work is done."""
    if not path:
        return None
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--dump-ir needs a directory it may write to, but {path}: {error.strerror}: choose another"
        ) from None
    return Path(path)
