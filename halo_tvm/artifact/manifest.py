"""The records of manifest.json and their JSON.

A manifest is untrusted input: every field is checked for its type and bounds (`codec`) before it
becomes a record. Top-level keys of a newer minor version are kept in `extra`, so that adding a
validation result to such an artifact loses nothing; unknown keys further down are ignored.

The file carries a checksum of its own bytes (SHA-256 with the 64 digits of the checksum itself
replaced by zeros), because every other file is vouched for by the manifest and nothing by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NoReturn

from ..codec import REST, Form, Must, Unfit, parse, plain, read
from ..errors import ArtifactCorrupt, EnvironmentProblem
from .conditions import Condition, names_of

ABI = 1
# High of a symbolic dimension that neither the file nor the user bounded: accepted, and planned for at run time.
UNBOUNDED = (1 << 29) - 1
RANDOM_STATE = "random_state"  # state of a model that draws numbers, int64 [2]: the seed, the calls before
MANIFEST_LIMIT_BYTES = 64 << 20
RANK_LIMIT = 32
_FORM = Form(other_fields=True, deepest=32, any_number=True)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_NO_CHECKSUM = "0" * 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGITS = "64 hexadecimal digits"
Count = Annotated[int, Must(lambda n: n >= 0, "an integer from 0 to 2**63 - 1")]
Positive = Annotated[int, Must(lambda n: n >= 1, "an integer from 1 to 2**63 - 1")]
Bounds = Annotated[tuple[int, int], Must(lambda pair: pair[0] <= pair[1], "bounds in ascending order")]
Room = tuple[Count | str, str]
Shape = Annotated[tuple[Count | str, ...], Must(lambda shape: len(shape) <= RANK_LIMIT, f"rank {RANK_LIMIT} or lower")]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output; a `str` in `shape` names a symbolic dimension."""

    name: str
    shape: Shape
    dtype: str
    values: Bounds | None = None  # allowed integers, inclusive
    default: Literal["ones", "zeros"] | None = None  # with one, it may be omitted at run time
    room: Room | None = None  # rows that go to each of the positions it holds, and the dimension that has room for them
    labels: tuple[str, ...] = ()  # what its integers stand for; of floats, its columns


@dataclass(frozen=True)
class FunctionSpec:
    """A function of the library: inputs in order, then `params` in order, are its arguments.

    An output of the name of an input in `written` is what that input's memory holds after the run; the library's
    function returns the others.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, Bounds] = field(default_factory=dict)  # dimension -> inclusive bounds
    params: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # inputs whose memory kernels write, as caches that are appended to in place
    drawn: tuple[str, ...] = ()  # outputs that are made of random numbers
    conditions: tuple[Condition, ...] = ()  # of the sizes of a run, beside their ranges
    alignment: Positive = 64  # bytes: inputs begin at a multiple of it, and where their elements may

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
    device_code: Literal["fatbin", "source"] | None = None  # of a GPU; source is compiled when the library is loaded


@dataclass(frozen=True)
class FileEntry:
    sha256: Annotated[str, Must(_DIGEST.fullmatch, _DIGITS)]
    size_bytes: Count


@dataclass(frozen=True)
class Manifest:
    """Everything an artifact says about itself; `files` is filled in by `write_artifact`."""

    name: str
    functions: Mapping[str, FunctionSpec]
    variants: tuple[Variant, ...]
    precision: str = "fp32"  # of the linears; what it costs is in `validation`
    language: Mapping[str, object] | None = None  # of a language model, see `runtime.language`
    pack_formats: Mapping[str, Count] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    source: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reports: Mapping[str, object] = field(default_factory=dict)
    validation: Mapping[str, object] | None = None
    benchmarks: tuple[object, ...] = ()
    abi: int = ABI
    extra: Mapping[str, object] = field(default_factory=dict, metadata=REST)

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names the variants refer to, each once, libraries first."""
        names = [v.library for v in self.variants] + [v.params for v in self.variants if v.params]
        return tuple(dict.fromkeys(names))

    def encode(self) -> bytes:
        """JSON of the manifest with its checksum; the same manifest gives the same bytes."""
        body = {**plain(self), "checksum": _NO_CHECKSUM}
        blank = (json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
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
            data = parse(raw)
            if not isinstance(data, dict):
                raise Unfit("a JSON object", f"a {type(data).__name__}")
        except Unfit as unfit:
            _corrupt(where, "a JSON object in UTF-8", unfit.found)
        try:
            abi = read(int, data.get("abi"), "abi")
            if abi < 1:
                raise Unfit("an integer from 1", str(abi), "abi")
            if abi > ABI:
                raise EnvironmentProblem(
                    f"{where}: expected an artifact of abi {ABI} or lower, found abi {abi}; "
                    "upgrade halo_tvm, or compile the model again with this version"
                )
            checksum = read(str, data.pop("checksum", None), "checksum")
            _check_checksum(raw, checksum, where)
            manifest = read(cls, data, form=_FORM)
        except Unfit as unfit:
            _corrupt(f"{where}: {unfit.where}" if unfit.where else where, unfit.expected, unfit.found)
        for name, function in manifest.functions.items():
            _check_names(function, f"{where}: functions.{name}")
        if not manifest.variants:
            _corrupt(where, "at least one variant", "an empty list")
        for name in (*manifest.file_names, *manifest.files):
            check_file_name(name, where)
        for name in manifest.file_names:
            if name not in manifest.files:
                _corrupt(f"{where}: files", f"an entry for {name!r}, which a variant names", "none")
        return manifest


def last_position(room: Room, sizes: Mapping[str, int]) -> int:
    """The largest position whose rows still fit; below 0 where none do."""
    rows, dimension = room
    return sizes[dimension] - (rows if isinstance(rows, int) else sizes[rows])


def check_file_name(name: str, where: str) -> None:
    """Refuse a name that could lead out of the artifact's directory or hide in it."""
    if not _FILE_NAME.fullmatch(name) or ".." in name:
        _corrupt(where, "a plain file name of letters, digits, '.', '_' and '-'", repr(name))


def _check_checksum(raw: bytes, found: str, where: str) -> None:
    if not _DIGEST.fullmatch(found) or raw.count(found.encode()) != 1:
        _corrupt(where, f"a checksum of {_DIGITS} that occurs once", repr(found[:80]))
    actual = hashlib.sha256(raw.replace(found.encode(), _NO_CHECKSUM.encode())).hexdigest()
    if actual != found:
        _corrupt(where, f"bytes with the checksum {found[:16]}...", f"{actual[:16]}...")


def _check_names(spec: FunctionSpec, where: str) -> None:
    for kind, names in (("inputs", [t.name for t in spec.inputs]), ("outputs", [t.name for t in spec.outputs])):
        if len(set(names)) != len(names):
            _corrupt(f"{where}.{kind}", "names that are all different", ", ".join(names)[:200])
    inputs = {t.name for t in spec.inputs}
    for kind, used in (("state", spec.state), ("written", spec.written)):
        if not inputs.issuperset(used):
            _corrupt(f"{where}.{kind}", "names of inputs", ", ".join(sorted(set(used) - inputs))[:200])
    dimensions = {d for t in spec.inputs for d in t.shape if isinstance(d, str)}
    for condition in spec.conditions:
        foreign = names_of(condition.formula) - dimensions
        if foreign:
            _corrupt(f"{where}.conditions", "dimensions of inputs", ", ".join(sorted(foreign))[:200])
    for tensor in spec.inputs:
        unknown = [d for d in tensor.room or () if isinstance(d, str) and d not in dimensions]
        if unknown:
            _corrupt(f"{where}.inputs.{tensor.name[:80]}.room", "dimensions of inputs", ", ".join(unknown)[:200])


def _corrupt(where: str, expected: str, found: str) -> NoReturn:
    raise ArtifactCorrupt(
        f"{where}: expected {expected}, found {found}; copy the artifact again or compile the model again"
    )
