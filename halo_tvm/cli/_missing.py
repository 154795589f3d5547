"""What options name that is not there, said before the compiler is imported, which takes seconds; and a compiler that
is not there."""

from __future__ import annotations

from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

from ..config import CompileConfig, Config
from ..errors import UsageError
from ..model_names import BUILT_IN, is_missing, unknown


def check(options: Config) -> None:
    """Raise what a verb would raise for an artifact, a model, example inputs, a log or a target that is not there.

    What needs a closer look passes: the verb takes it.
    """
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    models: tuple[str, ...] | str = given.get("model", ())
    artifact, listed, inputs, target = (given.get(name) for name in ("artifact", "model_list", "inputs", "target"))
    if isinstance(artifact, str):
        from ..artifact import read_manifest

        read_manifest(artifact)
    if isinstance(listed, str):
        from ..tuning.model_list import read_model_list

        read_model_list(listed, BUILT_IN)
    _check_models((models,) if isinstance(models, str) else models, others=listed is not None)
    if isinstance(inputs, str) and not Path(inputs).is_file():
        raise UsageError(f"expected an .npz file of example inputs, found no file {inputs!r}: correct --inputs")
    if isinstance(options, CompileConfig) and options.log is not None:
        from ..records.home import check_named_log

        check_named_log(options.log)
    if isinstance(target, str):
        _check_target(target.strip())


def package_missing(error: ImportError) -> str | None:
    """The package that a host lacks where that is what `error` says; TVM's is missing, too, where its runtime is."""
    package = (error.name or "").partition(".")[0]
    if package == "tvm" and (find_spec("tvm") is None or find_spec("tvm.relax") is None):
        return "apache-tvm"
    return package if package and find_spec(package) is None else None


def _check_models(models: tuple[str, ...], others: bool) -> None:
    """Of several models one that is missing stops no other."""
    missing = [model for model in models if is_missing(model)]
    if missing and len(missing) == len(models) and not others:
        raise unknown(missing[0])


def _check_target(name: str) -> None:
    """What is neither ours nor TVM's own way to name one may be a plug-in's."""
    from ..plugins import load_plugins
    from ..targets import is_name, unknown_target

    if is_name(name) or name.startswith("{") or "/" in name or "," in name:
        return
    load_plugins()
    if not is_name(name):
        raise unknown_target(name)
