"""One line of a tuning log: a frozen record, its checksum, and reading it back with a reason when it cannot be."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..codec import Form, Unfit, parse, read

SCHEMA = 2
LONGEST = 1 << 20  # characters of a line; a record has some thousands
# Outcomes; every other one is an error class.
IMPROVED = "improved"  # a committed winner
WITHDRAWN = "withdrawn"  # a winner of before that lost when it was measured again
DECIDING = (IMPROVED, WITHDRAWN)  # what look-up reads
MEASURED = "measured"  # a trial that was timed; it may be slower than the default
_FORM = Form(deepest=7)  # maps and lists within each other; a decision has two or three
# Fields that lines of schema 1 do not have yet.
_SINCE_2 = frozenset({"family", "extents", "stage", "run"})


_CACHES = ("l1_bytes", "l2_bytes", "l3_bytes")
_MORE_CORES = 2  # times those of a record: it is used up to there
_CHECKSUM = re.compile(r',"checksum":"([0-9a-f]{16})"')


class BadLine(Exception):
    """Control flow: a line that cannot be used; `kind` is what it is counted as, the message says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Fingerprint:
    """The facts about a target that decide whether a record fits; plain values, so that any program can make one.

    `isas` are the levels of the machine from the smallest to the largest, as its manifest orders them.
    """

    kind: str  # "llvm"
    machine: str  # "x86_64"
    isa: str
    isas: tuple[str, ...]
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int = 0  # 0: not known

    def __post_init__(self) -> None:
        assert self.isa in self.isas, f"ISA level {self.isa} is none of {self.isas}"

    @property
    def key(self) -> str:
        """The directory of this target in a log, e.g. "llvm-x86_64-avx512-vnni"."""
        return self.key_of(self.isa)

    def key_of(self, isa: str) -> str:
        return f"{self.kind}-{self.machine}-{isa}"

    def facts(self) -> dict[str, object]:
        """What a record keeps of the target it was measured on."""
        return {**dataclasses.asdict(self), "isas": list(self.isas), "key": self.key}


@dataclass(frozen=True)
class Size:
    """Values of a workload's symbolic dimensions, in order of first appearance, and their weight (they sum to 1)."""

    dims: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class Record:
    """What was learned about one decision for one workload on one target.

    `candidate_us[i]` and `default_us[i]` are all samples in microseconds at `sizes[i]`, taken in turns.
    `speedup` is the weighted geometric mean over the sizes of default / candidate, `speedup_low` its
    lower 95 % bound. A failure has an error class as `outcome`, no samples and a message.
    `family` and `extents` are those of `workload.family_of`; `stage` is the part of the search that
    proposed the decision, `run` the tuning run it belongs to. Both are empty in lines of schema 1.
    """

    workload: str
    readable: str
    rule: str
    rule_version: int
    decision: Mapping[str, object]
    outcome: str
    target: Mapping[str, object]
    versions: Mapping[str, str]
    sizes: tuple[Size, ...] = ()
    candidate_us: tuple[tuple[float, ...], ...] = ()
    default_us: tuple[tuple[float, ...], ...] = ()
    speedup: float = 0.0
    speedup_low: float = 0.0
    message: str = ""
    seed: int = 0
    timestamp: str = ""  # UTC, ISO 8601
    family: str = ""
    extents: tuple[int, ...] = ()
    stage: str = ""  # "analytic", "records", "ranked" or "descent"
    run: str = ""

    def line(self) -> str:
        """The record as one line of JSON, newline included."""
        body = {"schema": SCHEMA, **dataclasses.asdict(self)}
        body["checksum"] = _checksum(body)
        return _dump(body) + "\n"

    @property
    def isa(self) -> str:
        return str(self.target["isa"])

    @property
    def cores(self) -> int:
        return int(str(self.target["cores"]))


def parse_line(line: str) -> Record:
    """The record in `line`; raises `BadLine` for a torn, altered or newer one, whatever it holds."""
    if len(line) > LONGEST:
        raise BadLine("malformed", f"longer than {LONGEST} characters")
    try:
        body = parse(line, unique=False)  # `_is_whole` looks for a name that stands twice
    except Unfit as unfit:
        raise BadLine("torn", f"no complete JSON object ({unfit.found})") from unfit
    if not isinstance(body, dict):
        raise BadLine("malformed", f"expected a JSON object, found {type(body).__name__}")
    schema = body.pop("schema", None)
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadLine("future_schema", f"schema {schema}, this release reads up to {SCHEMA}")
    checksum = body.pop("checksum", None)
    if not _is_whole(line, checksum, {"schema": schema, **body}):
        raise BadLine("wrong_checksum", f"checksum {str(checksum)[:40]} does not match the line")
    known = _FIELDS - (_SINCE_2 if schema == 1 else set())
    if type(schema) is not int or schema < 1 or set(body) != known:
        different = ", ".join(sorted(set(body) ^ known))[:200]
        raise BadLine("malformed", f"schema {str(schema)[:40]} with these fields too many or missing: {different}")
    try:
        record = read(Record, body, form=_FORM)
        _ = record.isa, record.cores  # read once here: what they are derived from may be malformed
    except (TypeError, KeyError, ValueError) as error:
        raise BadLine("malformed", f"a field of the wrong type ({error})") from error
    return record


def _is_whole(line: str, checksum: object, body: Mapping[str, object]) -> bool:
    """Whether the checksum is that of the line. `Record.line` hashed this very text, which needs no second dump;
    a line that another program wrote with the same content is dumped again."""
    found = _CHECKSUM.search(line)
    if found and found[1] == checksum and _hash((line[: found.start()] + line[found.end() :]).strip()) == checksum:
        return True
    try:
        parse(line)
        return checksum == _checksum(body)
    except (ValueError, RecursionError) as error:  # 1e999 reads as infinity
        raise BadLine("malformed", f"numbers or nesting no record has ({error})") from error


def check_target(record: Record, target: Fingerprint) -> None:
    """`BadLine` unless `record` was measured on the machine of `target`, at its ISA level or a smaller one."""
    facts = record.target
    if (facts.get("kind"), facts.get("machine")) != (target.kind, target.machine):
        raise BadLine("other_target", f"measured for {facts.get('key')}, this target is {target.key}")
    if record.isa not in target.isas:
        raise BadLine("larger_isa", f"ISA level {record.isa!r} is not known to {target.machine}")
    if target.isas.index(record.isa) > target.isas.index(target.isa):
        raise BadLine("larger_isa", f"measured for {record.isa}, larger than the target's {target.isa}")


def only_a_hint(record: Record, target: Fingerprint) -> str:
    """Why a compilation for `target` leaves a record that suits its machine: `smaller_isa`, `fewer_cores`; else "".

    What is cut into tasks for a few cores leaves most of many without any; the default knows how many there are.
    """
    if record.isa != target.isa:
        return "smaller_isa"
    return "fewer_cores" if _MORE_CORES * record.cores < target.cores else ""


def unlikeness(record: Record, target: Fingerprint) -> int:
    """0: measured with the cores and the caches of `target`; 1: with its cores; 2: with another number of them."""
    if record.cores != target.cores:
        return 2
    return int(any(record.target.get(name) != getattr(target, name) for name in _CACHES))


def measured_again(record: Record) -> str:
    """What is the same when a machine measures one decision again: look-up takes the latest of those."""
    machine = [record.isa, record.cores, *(record.target.get(name) for name in _CACHES)]
    parts = [record.workload, record.rule, record.rule_version, dict(record.decision), machine]
    return json.dumps(parts, sort_keys=True)


def standing(records: Iterable[Record]) -> list[Record]:
    """The winners among `records`: of one decision on one machine the latest, unless it has been withdrawn since."""
    deciding = sorted((r for r in records if r.outcome in DECIDING), key=lambda r: r.timestamp)
    return [r for r in {measured_again(r): r for r in deciding}.values() if r.outcome == IMPROVED]


_FIELDS = frozenset(f.name for f in dataclasses.fields(Record))


def _dump(body: Mapping[str, object]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(body: Mapping[str, object]) -> str:
    return _hash(_dump(body))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
