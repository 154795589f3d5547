"""From `--target` text to a resolved `Target`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import EnvironmentProblem, UnknownName, UsageError
from ._host import Host, read_gpus, read_host
from ._precision import FULL
from ._target import TARGETS, Isa, Target, TargetSpec
from ._tvm_keys import is_tvm_target, keys_of, match
from .gpu_levels import runs_code_of

HOST = "cpu"  # the name that stands for the machine it is used on


def known_names() -> tuple[str, ...]:
    """Every text that `resolve` takes: names, name:level, and LLVM's names of levels."""
    names = [HOST]
    for spec in TARGETS.values():
        names += [spec.name, *(f"{spec.name}:{isa.name}" for isa in spec.isas if len(spec.isas) > 1)]
    return (*names, *_aliases())


def resolve(
    text: str,
    *,
    host: Host | None = None,
    cores: int | None = None,
    precision: str | None = None,
    gpus: Sequence[str] | None = None,
) -> Target:
    """The target that `text` names, on `host` with `gpus` of these compute capabilities; None: this machine.

    `cpu` is the largest level this host has among those meant for `precision`; `NAME` alone the smallest level of a
    manifest (for a GPU target: the largest that a GPU of the machine runs, when it has one); `NAME:LEVEL` and LLVM's
    names (`x86-64-v3`) are exact. TVM's own JSON (`{"kind": "cuda", "arch": "sm_90"}`) and tags (`nvidia/nvidia-a100`)
    name the level they fit; keys that differ from the manifest's go to TVM as they are.
    `UnknownName` lists what is known; `EnvironmentProblem` when no level fits this host.
    """
    text = text.strip()
    host = host or read_host()
    if text == HOST:
        return _of_host(host, cores, precision or FULL)
    if is_tvm_target(text):
        spec, isa, own_keys = match(keys_of(text), tuple(TARGETS.values()), text)
        return Target(spec, isa, cores or _assumed_cores(spec, host), own_keys)
    if "," in text:
        raise UsageError(f"one target was expected, but {text!r} names several: compile each of them by itself")
    name, _, level = text.partition(":")
    if not level and name in _aliases():
        spec, isa = _aliases()[name]
    elif name in TARGETS:
        spec = TARGETS[name]
        isa = _level(spec, level) if level else _default_level(spec, gpus)
    else:
        raise UnknownName("target", text, known_names())
    return Target(spec, isa, cores or _assumed_cores(spec, host))


def _assumed_cores(spec: TargetSpec, host: Host) -> int:
    """The host's cores, for libraries that run on machines like it."""
    return host.cores if not spec.runs_on or host.machine in spec.runs_on else 4


def _aliases() -> dict[str, tuple[TargetSpec, Isa]]:
    """LLVM's names: the first level with that mcpu."""
    aliases: dict[str, tuple[TargetSpec, Isa]] = {}
    for spec in TARGETS.values():
        for isa in spec.isas:
            if isa.mcpu and isa.mcpu != "generic":
                aliases.setdefault(isa.mcpu, (spec, isa))
    return aliases


def _of_host(host: Host, cores: int | None, precision: str) -> Target:
    specs = [spec for spec in TARGETS.values() if host.machine in spec.runs_on]
    for spec in specs:
        for isa in reversed(spec.isas):
            meant = (not isa.taken_for or precision in isa.taken_for) and not isa.not_beside & host.flags
            if meant and isa.requires <= host.flags:
                return Target(spec, isa, cores or host.cores)
    known = ", ".join(sorted({m for spec in TARGETS.values() for m in spec.runs_on}))
    if not specs:
        raise EnvironmentProblem(
            f"the target 'cpu' needs a host of a known machine ({known}), but this one is {host.machine!r}: "
            "use --target c"
        )
    lacking = ", ".join(sorted(specs[0].isas[0].requires - host.flags))
    raise EnvironmentProblem(
        f"the smallest level of target {specs[0].name!r} needs CPU features that this host lacks ({lacking}): "
        "use --target c"
    )


def _level(spec: TargetSpec, level: str) -> Isa:
    for isa in spec.isas:
        if isa.name == level:
            return isa
    raise UnknownName(f"level of target {spec.name}", level, [isa.name for isa in spec.isas])


def _default_level(spec: TargetSpec, gpus: Sequence[str] | None) -> Isa:
    """The smallest level, which runs everywhere; of a GPU target the largest that one of `gpus` runs."""
    if not spec.gpu:
        return spec.isas[0]
    gpus = [gpu.arch for gpu in read_gpus()] if gpus is None else gpus
    fitting = [isa for isa in spec.isas if any(runs_code_of(gpu, isa.name) for gpu in gpus)]
    return fitting[-1] if fitting else spec.isas[0]
