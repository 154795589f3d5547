"""TVM's own ways to name a target, JSON and tags, matched with the levels of the manifests."""

from __future__ import annotations

import difflib
import json

from ..cuda.arch import capability
from ..errors import UnknownName, UsageError
from ._target import Isa, TargetSpec

# Said by every target, and decided by the manifest: neither a difference nor worth telling TVM again.
_SAID_ANYWAY = frozenset({"kind", "keys", "tag", "host"})
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


def match(keys: dict[str, object], specs: tuple[TargetSpec, ...], text: str) -> tuple[TargetSpec, Isa, OwnKeys]:
    """The manifest and the level that `keys` name, and those of the keys that say something else than they do.

    `UsageError` when no manifest is for that kind or machine; `UnknownName` when no level fits.
    """
    fitting = [spec for spec in specs if spec.kind == keys["kind"]]
    if not fitting:
        kinds = ", ".join(sorted({spec.kind for spec in specs}))
        raise UsageError(f"targets of kind {kinds} are served, but {text} is of kind {keys['kind']}: choose another")
    if keys.get("host", _PLAIN_HOST) != _PLAIN_HOST:
        raise UsageError(
            f"the code that calls kernels is built for this machine, but {text} names a host of its own "
            f"({json.dumps(keys['host'])}): leave out the host, and compile on a machine of that kind"
        )
    spec, isa = _gpu_level(fitting[0], keys) if fitting[0].gpu else _cpu_level(fitting, keys)
    known = {"mcpu": isa.mcpu, "mattr": isa.mattr, "mtriple": spec.triple or "", **spec.extra, **dict(isa.keys)}
    said = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    own = {key: value for key, value in said.items() if key not in _SAID_ANYWAY and known.get(key) != value}
    return spec, isa, tuple(sorted(own.items()))


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


def _cpu_level(specs: list[TargetSpec], keys: dict[str, object]) -> tuple[TargetSpec, Isa]:
    """The level with exactly these LLVM features: what a CPU's name implies is not guessed."""
    mcpu, mattr = str(keys.get("mcpu", "")), tuple(keys.get("mattr", ()))
    for spec in specs:
        for isa in spec.isas:
            if (isa.mcpu, isa.mattr) == (mcpu, mattr) and keys.get("mtriple", spec.triple) in (spec.triple, None):
                return spec, isa
    known = [f"{isa.mcpu} {' '.join(isa.mattr)}".strip() for spec in specs for isa in spec.isas]
    raise UnknownName("CPU with features", f"{mcpu} {' '.join(mattr)}".strip(), known)
