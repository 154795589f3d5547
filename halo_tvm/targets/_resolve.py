"""From `--target` text to a resolved `Target`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import EnvironmentProblem, UnknownName, UsageError
from ._cpu_names import level_of_cpu
from ._host import UNREAD, Host, read_gpus, read_host
from ._precision import FULL
from ._target import TARGETS, Isa, Target, TargetSpec
from ._tvm_keys import cores_of, is_tvm_target, keys_of, level_of_features, match
from .gpu_levels import runs_code_of

HOST = "cpu"  # the name that stands for the machine it is used on
_NATIVE = "native"  # the same, as compilers spell it


def known_names() -> tuple[str, ...]:
    """What `resolve` takes beside names of CPUs and TVM's own: names, name:level, and LLVM's names of levels."""
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
    names (`x86-64-v3`) are exact. The name of a CPU (`znver4`, `graviton3`) is what `cpu` is on a host with it, that
    of a machine (`aarch64`) the manifest for it. TVM's own JSON (`{"kind": "cuda", "arch": "sm_90"}`) and tags
    (`nvidia/nvidia-a100`) name the level they fit; keys that differ from the manifest's go to TVM as they are.
    `UnknownName` lists what is known; `EnvironmentProblem` when no level fits this host.
    """
    text = text.strip()
    host = host or read_host()
    if names_host(text):
        return _of_host(host, cores, precision or FULL)
    if is_tvm_target(text):
        keys = keys_of(text)
        spec, isa, own_keys = match(keys, tuple(TARGETS.values()), text, precision or FULL)
        return Target(spec, isa, cores or cores_of(keys, text) or _assumed_cores(spec, host), own_keys)
    if "," in text:
        raise UsageError(f"one target was expected, but {text!r} names several: compile each of them by itself")
    name, _, level = text.partition(":")
    if not level and name in _aliases():
        spec, isa = _aliases()[name]
    elif name in TARGETS:
        spec = TARGETS[name]
        isa = _level(spec, level) if level else _default_level(spec, gpus)
    elif name in (machines := _machines()) and not level:
        spec = machines[name]
        isa = spec.isas[0]
    elif cpu := level_of_cpu(text):
        spec = TARGETS[cpu[0]]
        isa = level_of_features(spec, cpu[1], (), text, precision or FULL)
    else:
        raise unknown_target(text)
    return Target(spec, isa, cores or _assumed_cores(spec, host))


def names_host(text: str) -> bool:
    """Whether `text` stands for the level of the machine it is used on."""
    return text.strip() in (HOST, _NATIVE)


def is_name(text: str) -> bool:
    """Whether `text` names a target, or a manifest at least, so that `resolve` has more to say of it."""
    family = text.partition(":")[0]
    names = (*known_names(), *_machines())
    return family in TARGETS or names_host(text) or text in names or level_of_cpu(text) is not None


def unknown_target(text: str) -> UnknownName:
    """The refusal of a text that names none; of levels it suggests none, as they may demand more than is meant."""
    return UnknownName("target", text, [HOST, *TARGETS], "(each level: `halo-tvm targets`; LLVM's names of CPUs, too)")


def _machines() -> dict[str, TargetSpec]:
    """The names that hosts give their kind of machine."""
    return {name: spec for spec in TARGETS.values() for machine in spec.runs_on for name in (machine, machine.lower())}


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
        if isa := spec.largest_level(host.flags, precision):
            return Target(spec, isa, cores or host.cores)
    known = ", ".join(sorted({m for spec in TARGETS.values() for m in spec.runs_on}))
    if not specs:
        raise EnvironmentProblem(
            f"the target 'cpu' needs a host of a known machine ({known}), but this one is {host.machine!r}: "
            "use --target c"
        )
    if not host.flags:
        raise EnvironmentProblem(f"the target 'cpu' is the level of this host's CPU, but {UNREAD}")
    lacking = ", ".join(sorted(specs[0].isas[0].requires - host.flags))
    raise EnvironmentProblem(
        f"the smallest level of target {specs[0].name!r} needs CPU features that this host lacks ({lacking}): "
        "use --target c"
    )


def _level(spec: TargetSpec, level: str) -> Isa:
    for isa in spec.isas:
        if isa.name == level:
            return isa
    known = ", ".join(isa.name for isa in spec.isas)
    # None is suggested: the nearest name may be of a level that demands more ("avx-vnni" has no AVX-512).
    smaller = "" if spec.gpu else f"; for a CPU without {spec.isas[0].name} use --target c"
    raise UsageError(f"unknown level of target {spec.name} {level!r}: known are {known}{smaller}")


def _default_level(spec: TargetSpec, gpus: Sequence[str] | None) -> Isa:
    """The smallest level, which runs everywhere; of a GPU target the largest that one of `gpus` runs."""
    if not spec.gpu:
        return spec.isas[0]
    gpus = [gpu.arch for gpu in read_gpus()] if gpus is None else gpus
    fitting = [isa for isa in spec.isas if any(runs_code_of(gpu, isa.name) for gpu in gpus)]
    return fitting[-1] if fitting else spec.isas[0]
