"""TVM's own ways to name a target, JSON and tags, matched with the levels of the manifests."""

from __future__ import annotations

import difflib
import json

from ..cuda.arch import capability
from ..errors import UnknownName, UsageError
from ._cpu_names import level_of_cpu
from ._target import Isa, TargetSpec

# Said by every target, and decided by the manifest: neither a difference nor worth telling TVM again.
_SAID_ANYWAY = frozenset({"kind", "keys", "tag", "host", "model", "device", "mtriple"})
_OF_LEVELS = frozenset({"mcpu", "mattr"})  # decided by the level of a CPU
_GENERIC = "generic"  # LLVM's CPU that has what all of a machine have
_FEATURE = "feature."  # begins what TVM derives from them
_PLAIN_HOST = {"kind": "llvm"}

OwnKeys = tuple[tuple[str, object], ...]


def is_tvm_target(text: str) -> bool:
    """Whether `text` is JSON or looks like a tag rather than a name of ours."""
    return text.startswith("{") or "/" in text


def keys_of(text: str) -> dict[str, object]:
    """The keys that JSON or a tag stands for, or `UsageError`."""
    if not text.startswith("{"):
        return _keys_of_tag(text)
    try:
        keys = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"a target in JSON was expected, like {json.dumps({'kind': 'cuda', 'arch': 'sm_90'})}, but {text!r} "
            f"is none ({error}): correct it"
        ) from None
    if isinstance(keys.get("tag"), str) and "kind" not in keys:
        return {**_keys_of_tag(keys["tag"]), **keys}
    if not isinstance(keys.get("kind"), str):
        raise UsageError(f'a target in JSON names its kind, like "cuda", but {text!r} does not: add "kind"')
    return keys


def match(
    keys: dict[str, object], specs: tuple[TargetSpec, ...], text: str, precision: str
) -> tuple[TargetSpec, Isa, OwnKeys]:
    """The manifest and the level that `keys` name, and those of the keys that say something else than they do.

    A CPU is at the level that is meant for `precision`. `UsageError` when no manifest is for that kind, machine or
    CPU; `UnknownName` for an arch of no level.
    """
    fitting = [spec for spec in specs if spec.kind == keys["kind"]]
    if not fitting:
        kinds = ", ".join(sorted({spec.kind for spec in specs}))
        raise UsageError(f"targets of kind {kinds} are served, but {text} is of kind {keys['kind']}: choose another")
    if not _is_host_plain(keys, fitting[0].gpu):
        raise UsageError(
            f"the code that calls kernels is built for this machine, but {text} names a host of its own "
            f"({json.dumps(keys['host'])}): leave out the host, and compile on a machine of that kind"
        )
    if fitting[0].gpu:
        spec, isa = _gpu_level(fitting[0], keys)
    else:
        spec, isa = _cpu_level(fitting, keys, text, precision)
    known = {**spec.extra, **dict(isa.keys)}
    decided = _SAID_ANYWAY | (_OF_LEVELS if isa.mcpu else set())
    said = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    own = {
        key: value
        for key, value in said.items()
        if key not in decided and not key.startswith(_FEATURE) and known.get(key) != value
    }
    return spec, isa, tuple(sorted(own.items()))


def cores_of(keys: dict[str, object], text: str) -> int | None:
    """What `keys` say of the cores, None where that is nothing."""
    cores = keys.get("num-cores")
    if cores is None:
        return None
    if not isinstance(cores, int) or cores < 1:
        raise UsageError(f"num-cores is a number from 1 on, found {cores!r} in {text}: correct it")
    return cores


def level_of_features(spec: TargetSpec, level: str, mattr: tuple[str, ...], name: str, precision: str) -> Isa:
    """The level for `precision` of a CPU `name` whose largest is `level`, with the features of `mattr` or without."""
    # Levels grow, so that the largest tells which features that matter a CPU has.
    has = {flag for isa in spec.isas if isa.name == level for flag in isa.requires}
    for flag in {flag for isa in spec.isas for flag in isa.requires}:
        for sign, feature in ((said[:1], said[1:]) for said in mattr):
            if feature == llvm_feature(flag):
                has = has | {flag} if sign == "+" else has - {flag}
    isa = spec.largest_level(frozenset(has), precision)
    if isa is None:
        needed = ", ".join(sorted(spec.isas[0].requires))
        raise UsageError(
            f"the smallest level of target {spec.name} needs a CPU with {needed}, and {name} does not have all of it: "
            "use --target c"
        )
    return isa


def llvm_feature(flag: str) -> str:
    """LLVM's name of what /proc/cpuinfo calls `flag`."""
    arm = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16"}
    return arm.get(flag, flag.replace("avx512_", "avx512").replace("_", "-"))


def _is_host_plain(keys: dict[str, object], gpu: bool) -> bool:
    """Whether the host that `keys` name is this machine, or for a CPU that CPU itself."""
    host = keys.get("host", _PLAIN_HOST)
    if host == _PLAIN_HOST or gpu or not isinstance(host, dict):
        return host == _PLAIN_HOST
    return all(host.get(key) == keys.get(key) for key in ("kind", "mcpu", "mtriple"))


def _keys_of_tag(tag: str) -> dict[str, object]:
    from tvm.target import Target as TVMTarget  # seconds, spent only for a tag
    from tvm.target import list_tags

    tags = list_tags()
    if tag not in tags:
        vendor = tag.partition("/")[0]
        of_vendor = [known for known in tags if known.startswith(f"{vendor}/")]
        near = difflib.get_close_matches(tag, of_vendor or tags, n=8, cutoff=0)
        raise UnknownName("tag of TVM's targets", tag, near, "(the nearest are shown)")
    exported = TVMTarget(tag).export()
    return {str(key): _plain(value) for key, value in exported.items()}


def _plain(value: object) -> object:
    if isinstance(value, (str, int, float)):
        return value
    return {str(k): _plain(v) for k, v in value.items()} if hasattr(value, "items") else [_plain(v) for v in value]


def _gpu_level(spec: TargetSpec, keys: dict[str, object]) -> tuple[TargetSpec, Isa]:
    """The largest level of the arch's generation that is not newer than it."""
    arch = str(keys.get("arch", spec.isas[0].name))
    number = capability(arch)
    levels = [isa for isa in spec.isas if capability(isa.name) // 10 == number // 10 and capability(isa.name) <= number]
    if not levels:
        raise UnknownName(f"arch of target {spec.name}", arch, [isa.name for isa in spec.isas])
    return spec, levels[-1]


def _cpu_level(specs: list[TargetSpec], keys: dict[str, object], text: str, precision: str) -> tuple[TargetSpec, Isa]:
    """The level with exactly these LLVM features, else the level of the CPU with that name."""
    triple = keys.get("mtriple")
    mcpu, mattr = str(keys.get("mcpu", _GENERIC if triple else "")), tuple(keys.get("mattr", ()))
    fitting = [spec for spec in specs if triple is None or _is_for(spec, str(triple))]
    if not fitting:
        triples = ", ".join(sorted(spec.triple or spec.cross_triple or spec.name for spec in specs))
        raise UsageError(f"targets for {triples} are served, but {text} has the mtriple {triple}: choose another")
    for spec in fitting:
        for isa in spec.isas:
            if (isa.mcpu, isa.mattr) == (mcpu, mattr):
                return spec, isa
    if mcpu == _GENERIC and triple:
        # What every CPU of the machine has: ARM's smallest level, and less than x86's.
        spec = fitting[0]
        level = "" if spec.isas[0].mcpu != _GENERIC else spec.isas[0].name
        return spec, level_of_features(spec, level, mattr, mcpu, precision)
    cpu = level_of_cpu(mcpu)
    for spec in fitting:
        if cpu and spec.name == cpu[0]:
            return spec, level_of_features(spec, cpu[1], mattr, mcpu, precision)
    raise UsageError(
        f"a CPU by LLVM's name was expected as mcpu, such as x86-64-v3, znver4 or neoverse-n1, found {mcpu!r} in "
        f"{text}: correct it, or name a level (`halo-tvm targets`)"
    )


def _is_for(spec: TargetSpec, triple: str) -> bool:
    """Whether the libraries of `spec` are for the machine and the system of `triple`."""
    machine, *system = triple.split("-")
    if not spec.runs_on:
        return spec.triple in (triple, None)
    return machine in spec.runs_on and "linux" in system and system[-1] in ("linux", "gnu")
