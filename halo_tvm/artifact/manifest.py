"""The records of manifest.json and their JSON.

A manifest is untrusted input: every field is checked for its type and bounds before it becomes a
record. Top-level keys of a newer minor version are kept in `extra`, so that adding a validation
result to such an artifact loses nothing; unknown keys further down are ignored.

The file carries a checksum of its own bytes (SHA-256 with the 64 digits of the checksum itself
replaced by zeros), because every other file is vouched for by the manifest and nothing by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NoReturn, TypeVar

import numpy as np

from ..errors import ArtifactCorrupt, EnvironmentProblem

ABI = 1
MANIFEST_LIMIT_BYTES = 64 << 20
RANK_LIMIT = 32
LIST_LIMIT = 1 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_NO_CHECKSUM = "0" * 64
_DEFAULTS = ("ones", "zeros")
_DEVICE_CODES = ("fatbin", "source")
T = TypeVar("T")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output; a `str` in `shape` names a symbolic dimension."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    values: tuple[int, int] | None = None  # allowed integers, inclusive
    default: str | None = None  # "ones" or "zeros": may be omitted at run time


@dataclass(frozen=True)
class FunctionSpec:
    """A function of the library: inputs in order, then `params` in order, are its arguments.

    An output of the name of an input in `written` is what that input's memory holds after the run; the library's
    function returns the others.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # dimension -> inclusive bounds
    params: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # inputs whose memory kernels write, as caches that are appended to in place

    @property
    def handed_back(self) -> tuple[int, ...]:
        """Positions of the inputs that are outputs, too, in the order of the outputs."""
        places = {tensor.name: place for place, tensor in enumerate(self.inputs)}
        return tuple(places[t.name] for t in self.outputs if t.name in self.written and t.name in places)


@dataclass(frozen=True)
class Variant:
    """One library, the ISA level it was built for, and the host features it needs."""

    isa: str
    requires: tuple[str, ...]  # /proc/cpuinfo flags
    machine: tuple[str, ...]  # names platform.machine() may give
    target: str
    library: str
    params: str | None = None
    device_code: str | None = None  # of a GPU: "fatbin", or "source", which is compiled when the library is loaded


@dataclass(frozen=True)
class FileEntry:
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """Everything an artifact says about itself; `files` is filled in by `write_artifact`."""

    name: str
    functions: Mapping[str, FunctionSpec]
    variants: tuple[Variant, ...]
    precision: str = "fp32"  # of the linears; what it costs is in `validation`
    language: Mapping[str, object] | None = None  # of a language model, see `runtime.language`
    pack_formats: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    source: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reports: Mapping[str, object] = field(default_factory=dict)
    validation: Mapping[str, object] | None = None
    benchmarks: tuple[object, ...] = ()
    abi: int = ABI
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names the variants refer to, each once, libraries first."""
        names = [v.library for v in self.variants] + [v.params for v in self.variants if v.params]
        return tuple(dict.fromkeys(names))

    def encode(self) -> bytes:
        """JSON of the manifest with its checksum; the same manifest gives the same bytes."""
        plain = _plain(self)
        assert isinstance(plain, dict)
        plain.update(plain.pop("extra"))
        plain["checksum"] = _NO_CHECKSUM
        blank = (json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
        assert blank.count(_NO_CHECKSUM.encode()) == 1, "a manifest value looks like the empty checksum"
        return blank.replace(_NO_CHECKSUM.encode(), hashlib.sha256(blank).hexdigest().encode())

    @classmethod
    def decode(cls, raw: bytes, where: str = "manifest.json") -> Manifest:
        """Parse and check.

        Raises
        ------
        ArtifactCorrupt
            bytes that are not a manifest, wrong types, unsafe file names or a checksum that differs
        EnvironmentProblem
            an abi newer than this package
        """
        if len(raw) > MANIFEST_LIMIT_BYTES:
            _corrupt(where, f"at most {MANIFEST_LIMIT_BYTES} bytes", f"{len(raw)} bytes")
        try:
            data = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            _corrupt(where, "a JSON object in UTF-8", f"{type(error).__name__}: {str(error)[:200]}")
        if not isinstance(data, dict):
            _corrupt(where, "a JSON object", _kind(data))
        abi = _integer(data, "abi", where, low=1)
        if abi > ABI:
            raise EnvironmentProblem(
                f"{where}: expected an artifact of abi {ABI} or lower, found abi {abi}; "
                "upgrade halo_tvm, or compile the model again with this version"
            )
        _check_checksum(raw, data, where)
        known = {f.name for f in fields(cls)} - {"extra"}
        manifest = cls(
            name=_text(data, "name", where),
            functions=_table(data, "functions", where, _function),
            variants=_list(data, "variants", where, _variant),
            precision=_string(data.get("precision", "fp32"), f"{where}: precision"),  # older artifacts name none
            language=None if data.get("language") is None else _object(data, "language", where),
            pack_formats=_table(data, "pack_formats", where, _count),
            files=_table(data, "files", where, _file_entry),
            source=_object(data, "source", where),
            versions=_table(data, "versions", where, _string),
            reports=_object(data, "reports", where),
            validation=None if data.get("validation") is None else _object(data, "validation", where),
            benchmarks=_list(data, "benchmarks", where, lambda value, at: value),
            abi=abi,
            extra={k: v for k, v in data.items() if k not in known and k != "checksum"},
        )
        if not manifest.variants:
            _corrupt(where, "at least one variant", "an empty list")
        for name in (*manifest.file_names, *manifest.files):
            check_file_name(name, where)
        for name in manifest.file_names:
            if name not in manifest.files:
                _corrupt(f"{where}: files", f"an entry for {name!r}, which a variant names", "none")
        return manifest


def check_file_name(name: str, where: str) -> None:
    """Refuse a name that could lead out of the artifact's directory or hide in it."""
    if not _FILE_NAME.fullmatch(name) or ".." in name:
        _corrupt(where, "a plain file name of letters, digits, '.', '_' and '-'", repr(name))


def _check_checksum(raw: bytes, data: dict[str, object], where: str) -> None:
    found = _text(data, "checksum", where)
    if not re.fullmatch(r"[0-9a-f]{64}", found) or raw.count(found.encode()) != 1:
        _corrupt(where, "a checksum of 64 hexadecimal digits that occurs once", repr(found[:80]))
    actual = hashlib.sha256(raw.replace(found.encode(), _NO_CHECKSUM.encode())).hexdigest()
    if actual != found:
        _corrupt(where, f"bytes with the checksum {found[:16]}...", f"{actual[:16]}...")


def _corrupt(where: str, expected: str, found: str) -> NoReturn:
    raise ArtifactCorrupt(
        f"{where}: expected {expected}, found {found}; copy the artifact again or compile the model again"
    )


def _plain(value: object) -> object:
    """Records -> what JSON can hold. Values of reports must already be JSON values."""
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(v) for v in value)  # type: ignore[type-var]
    return value.item() if isinstance(value, np.generic) else value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return out


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "an integer"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")


def _field(data: Mapping[str, object], key: str, where: str) -> object:
    if key not in data:
        _corrupt(where, f"the key {key!r}", "none")
    return data[key]


def _text(data: Mapping[str, object], key: str, where: str) -> str:
    return _string(_field(data, key, where), f"{where}: {key}")


def _integer(data: Mapping[str, object], key: str, where: str, low: int) -> int:
    return _bounded(_field(data, key, where), f"{where}: {key}", low)


def _bounded(value: object, where: str, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _corrupt(where, "an integer", _kind(value))
    if not low <= value < 1 << 63:
        _corrupt(where, f"an integer from {low} to 2**63 - 1", str(value)[:40])
    return value


def _count(value: object, where: str) -> int:
    return _bounded(value, where, 0)


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        _corrupt(where, "a string", _kind(value))
    if len(value) > 1 << 16:
        _corrupt(where, "a string of at most 65536 characters", f"{len(value)}")
    return value


def _object(data: Mapping[str, object], key: str, where: str) -> dict[str, object]:
    return _mapping(_field(data, key, where), f"{where}: {key}")


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        _corrupt(where, "an object", _kind(value))
    return value


def _table(data: Mapping[str, object], key: str, where: str, item: Callable[[object, str], T]) -> dict[str, T]:
    return {name: item(value, f"{where}: {key}.{name}") for name, value in _object(data, key, where).items()}


def _list(data: Mapping[str, object], key: str, where: str, item: Callable[[object, str], T]) -> tuple[T, ...]:
    value = _field(data, key, where)
    if not isinstance(value, list):
        _corrupt(f"{where}: {key}", "a list", _kind(value))
    if len(value) > LIST_LIMIT:
        _corrupt(f"{where}: {key}", f"at most {LIST_LIMIT} items", str(len(value)))
    return tuple(item(v, f"{where}: {key}[{i}]") for i, v in enumerate(value))


def _dimension(value: object, where: str) -> int | str:
    return _string(value, where) if isinstance(value, str) else _bounded(value, where, 0)


def _pair(value: object, where: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        _corrupt(
            where, "a list of two integers", _kind(value) if not isinstance(value, list) else f"{len(value)} items"
        )
    low, high = (_bounded(v, where, -(1 << 63)) for v in value)
    if low > high:
        _corrupt(where, "bounds in ascending order", f"[{low}, {high}]")
    return low, high


def _tensor(value: object, where: str) -> TensorSpec:
    data = _mapping(value, where)
    shape = _list(data, "shape", where, _dimension)
    if len(shape) > RANK_LIMIT:
        _corrupt(f"{where}: shape", f"rank {RANK_LIMIT} or lower", f"rank {len(shape)}")
    values, default = data.get("values"), data.get("default")
    if default is not None and default not in _DEFAULTS:
        _corrupt(f"{where}: default", " or ".join(map(repr, _DEFAULTS)) + " or null", repr(default)[:80])
    return TensorSpec(
        name=_text(data, "name", where),
        shape=shape,
        dtype=_text(data, "dtype", where),
        values=None if values is None else _pair(values, f"{where}: values"),
        default=None if default is None else str(default),
    )


def _function(value: object, where: str) -> FunctionSpec:
    data = _mapping(value, where)
    spec = FunctionSpec(
        inputs=_list(data, "inputs", where, _tensor),
        outputs=_list(data, "outputs", where, _tensor),
        ranges=_table(data, "ranges", where, _pair),
        params=_list(data, "params", where, _string),
        state=_list(data, "state", where, _string),
        # older artifacts have no such list
        written=_list({"written": [], **data}, "written", where, _string),
    )
    for kind, names in (("inputs", [t.name for t in spec.inputs]), ("outputs", [t.name for t in spec.outputs])):
        if len(set(names)) != len(names):
            _corrupt(f"{where}: {kind}", "names that are all different", ", ".join(names)[:200])
    inputs = {t.name for t in spec.inputs}
    for kind, used in (("state", spec.state), ("written", spec.written)):
        if not inputs.issuperset(used):
            _corrupt(f"{where}: {kind}", "names of inputs", ", ".join(sorted(set(used) - inputs))[:200])
    return spec


def _variant(value: object, where: str) -> Variant:
    data = _mapping(value, where)
    params, device_code = data.get("params"), data.get("device_code")
    if device_code is not None and device_code not in _DEVICE_CODES:
        _corrupt(f"{where}: device_code", " or ".join(map(repr, _DEVICE_CODES)) + " or null", repr(device_code)[:80])
    return Variant(
        isa=_text(data, "isa", where),
        requires=_list(data, "requires", where, _string),
        machine=_list(data, "machine", where, _string),
        target=_text(data, "target", where),
        library=_text(data, "library", where),
        params=None if params is None else _string(params, f"{where}: params"),
        device_code=None if device_code is None else str(device_code),
    )


def _file_entry(value: object, where: str) -> FileEntry:
    data = _mapping(value, where)
    sha256 = _text(data, "sha256", where)
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        _corrupt(f"{where}: sha256", "64 hexadecimal digits", repr(sha256[:80]))
    return FileEntry(sha256=sha256, size_bytes=_integer(data, "size_bytes", where, low=0))
