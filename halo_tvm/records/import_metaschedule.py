"""MetaSchedule's database (workloads and tuning records, one JSON value a line) as trials of our log.

A record that `--engine metaschedule` wrote names one of our rules, the values of its decision's fields and the
sampled indices: it becomes a trial. One of MetaSchedule's own space is a list of schedule primitives, which no
rule of ours carries out: it is skipped, with that reason. The files are a stranger's: records are read as plain
JSON here, workloads by TVM's reader in a confined process (`read_workloads`), whose death is a reason, too.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..codec import Unfit, parse
from ..confinement import Policy
from ..processes import python_path
from ..text import one_line
from .record import MEASURED, BadLine, Record, Size, parse_line

FIELD = "halo.decision."  # + a field's name: the index of its value, on the root block
HEADER = "halo.space"  # JSON on the root block: rule, rule_version, values by field, target, versions, seed, run, ...
STAGE = "metaschedule"

_FILE_BYTES = 1 << 30
_LINE_BYTES = 32 << 20
_START_S, _EACH_S = 180.0, 5.0  # importing TVM on a loaded machine; reading one workload
_MEMORY_BYTES = 2 << 30
_REPLY_BYTES = 64 << 20
_MOST_DEATHS = 8  # of the reader, before the rest is given up
_LONGEST_S = 1e9  # MetaSchedule notes failed trials at 1e10 s
_SAID = 200


class _Skip(Exception):
    """Control flow: a record that is left out; the message says why."""


@dataclass(frozen=True)
class _Found:
    """A record of ours, but for its workload."""

    line: int
    workload: int  # index into the workloads
    header: Mapping[str, object]
    decision: Mapping[str, object]
    us: float


def records_of(workloads_json: Path, records_json: Path) -> tuple[list[Record], list[str]]:
    """The trials in a database, in its order, and a reason for each record that is left out.

    Nothing in the files makes this raise; `OSError` when they cannot be opened.
    """
    found: list[_Found] = []
    skipped: list[str] = []
    for number, text in _lines(records_json, skipped):
        try:
            found.append(_found(number, text))
        except _Skip as reason:
            skipped.append(f"{records_json.name}:{number}: {reason}")
    wanted = {one.workload for one in found}
    texts = {}
    for index, (_, text) in enumerate(_lines(workloads_json, skipped)):  # numbered as MetaSchedule does
        if index in wanted:
            texts[index] = text
    known = read_workloads(texts) if texts else {}
    records = []
    for one in found:
        try:
            workload = known.get(one.workload, f"the database has no workload {one.workload}")
            records.append(_record(one, workload))
        except _Skip as reason:
            skipped.append(f"{records_json.name}:{one.line}: {reason}")
    return records, skipped


def read_workloads(texts: Mapping[int, str]) -> dict[int, dict[str, object] | str]:
    """Key, readable, family and extents of each workload, read by TVM in a confined process; else a sentence why not.

    A workload that ends the process, or keeps it too long, is blamed; the next process reads those behind it.
    """
    known: dict[int, dict[str, object] | str] = {}
    waiting, deaths = sorted(texts), 0
    while waiting and deaths < _MOST_DEATHS:
        replies, end = _read([texts[index] for index in waiting])
        for index, reply in zip(waiting, replies):
            known[index] = _reply(reply)
        waiting = waiting[len(replies) :]
        if waiting:
            known[waiting.pop(0)] = f"TVM's reader of its workload {end}"
            deaths += 1
    return known | dict.fromkeys(waiting, "not read: others of its file ended TVM's reader too often")


def _read(texts: Sequence[str]) -> tuple[list[str], str]:
    """The answers of one process, which may be fewer than asked for, and how it ended."""
    with tempfile.TemporaryDirectory(prefix="halo-tvm-workloads-") as directory:
        asked, answers = Path(directory, "asked.jsonl"), Path(directory, "answers.jsonl")
        asked.write_text("".join(text.strip() + "\n" for text in texts), encoding="utf-8")
        policy = Policy(directory, (), memory_bytes=_MEMORY_BYTES, file_bytes=_REPLY_BYTES)
        with asked.open("rb") as source, answers.open("wb") as sink:
            try:
                ended = subprocess.run(
                    [sys.executable, "-m", "halo_tvm.confinement", "halo_tvm.records.workload_reader", policy.text()],
                    stdin=source,
                    stdout=sink,
                    stderr=subprocess.DEVNULL,
                    cwd=directory,
                    start_new_session=True,
                    env={
                        "PYTHONPATH": python_path(sys.path),
                        "HOME": directory,
                        "LC_ALL": "C.UTF-8",
                        "OMP_NUM_THREADS": "1",
                    },
                    timeout=_START_S + _EACH_S * len(texts),
                    check=False,
                )
                code = ended.returncode
                how = f"ended with signal {-code}" if code < 0 else f"ended with exit status {code}"
            except subprocess.TimeoutExpired:
                how = "took too long"
        with answers.open(encoding="utf-8", errors="replace") as stream:
            # A last line without its end was being written.
            whole = [line for line in stream.read(_REPLY_BYTES).splitlines(keepends=True) if line.endswith("\n")]
    return whole[: len(texts)], how


def _reply(text: str) -> dict[str, object] | str:
    """One answer of the reader, which may be anything when a workload took it over."""
    try:
        reply = _json(text)
    except _Skip:
        reply = None
    if isinstance(reply, dict) and isinstance(reply.get("error"), str):
        return _printable(f"TVM cannot read its workload: {reply['error']}")
    if not isinstance(reply, dict) or set(reply) != {"workload", "readable", "family", "extents"}:
        return "TVM's reader of its workload gave no answer that makes sense"
    return reply


def _found(number: int, text: str) -> _Found:
    """The decision in one line of the records."""
    value = _json(text)
    workload, body = _list(value, 2, "a workload's index and a record")
    trace, run_secs = _list(body, 4, "a trace, times, a target and arguments")[:2]
    steps, decisions = _list(trace, 2, "instructions and decisions")
    if not _is_int(workload) or not isinstance(steps, list) or not isinstance(decisions, list):
        raise _Skip("no record of MetaSchedule: another structure")
    steps = [_list(step, 4, "an instruction of four parts") for step in steps]
    header = _header(steps)
    chosen = {step: index for step, index in (_list(d, 2, "a decision") for d in decisions) if _is_int(step)}
    if not isinstance(run_secs, list) or not run_secs or not all(_is_time(s) for s in run_secs):
        raise _Skip("a trial that failed, or was not timed")
    return _Found(number, workload, header, _decision(steps, chosen, header), 1e6 * sum(run_secs) / len(run_secs))


def _header(steps: Sequence[list]) -> Mapping[str, object]:
    texts = [step[1][1] for step in steps if step[2] == [HEADER] and _is_note(step)]
    if not texts:
        raise _Skip(
            "a trace of MetaSchedule's own space is a list of schedule primitives, and no decision of a rule of ours: "
            "tune with `halo-tvm tune --engine metaschedule`"
        )
    # TVM puts quotes around a string, and leaves those inside as they are.
    header = _json(texts[0].removeprefix('"').removesuffix('"')) if isinstance(texts[0], str) else None
    wanted = {"rule": str, "rule_version": int, "values": dict, "target": dict, "versions": dict, "seed": int}
    if not isinstance(header, dict) or not all(type(header.get(name)) is kind for name, kind in wanted.items()):
        raise _Skip(f"its note {HEADER} is damaged: {', '.join(wanted)} were expected")
    return header


def _decision(steps: Sequence[list], chosen: Mapping[int, object], header: Mapping[str, object]) -> dict[str, object]:
    """The decision's fields: sampled ones by their index, the others have one value."""
    sampled = {
        step[3][0]: chosen.get(at)
        for at, step in enumerate(steps)
        if step[0] == "SampleCategorical"
        and isinstance(step[3], list)
        and len(step[3]) == 1
        and isinstance(step[3][0], str)
    }
    index: dict[str, object] = {}
    for step in steps:
        if _is_note(step) and isinstance(step[2][0], str) and step[2][0].startswith(FIELD):
            variable = step[1][1]
            index[step[2][0].removeprefix(FIELD)] = sampled.get(variable) if isinstance(variable, str) else None
    decision = {}
    for name, values in header["values"].items():
        at = index.get(name, 0)
        many = isinstance(values, list) and (len(values) == 1 or name in index)
        if not many or not _is_int(at) or not 0 <= at < len(values):
            raise _Skip(f"its field {_printable(name)} has no value: the trace is damaged")
        decision[name] = values[at]
    return decision


def _record(one: _Found, workload: dict[str, object] | str) -> Record:
    if isinstance(workload, str):
        raise _Skip(workload)
    header = one.header
    default_us, sizes = header.get("default_us", 0.0), header.get("sizes", [])
    if default_us != 0 and not _is_time(default_us):
        raise _Skip(f"its note {HEADER} does not make a record: a default that takes {str(default_us)[:40]!r} us")
    try:
        is_one = isinstance(sizes, list) and len(sizes) == 1
        record = Record(
            **workload | {"extents": tuple(workload["extents"])},
            rule=header["rule"],
            rule_version=header["rule_version"],
            decision=one.decision,
            outcome=MEASURED,
            target=header["target"],
            versions=header["versions"],
            sizes=tuple(Size(tuple(size["dims"]), float(size["weight"])) for size in sizes),
            candidate_us=((round(one.us, 3),),) if is_one else (),
            default_us=((round(default_us, 3),),) if is_one and default_us else (),
            speedup=round(default_us / one.us, 4),
            message=f"{one.us:.3f} us, the weighted geometric mean over its sizes",
            seed=header["seed"],
            stage=STAGE,
            run=header.get("run", ""),
        )
        return parse_line(record.line())
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, BadLine) as reason:
        raise _Skip(_printable(f"its note {HEADER} does not make a record: {reason}")) from reason


def _lines(path: Path, skipped: list[str]) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of the lines of a file, up to the limits; what is beyond them becomes a reason."""
    read = 0
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES):
            number, read = number + 1, read + len(line)
            if read > _FILE_BYTES or (len(line) == _LINE_BYTES and not line.endswith(b"\n")):
                skipped.append(f"{path.name}:{number}: larger than any database: the rest is not read")
                return
            if line.strip():
                yield number, line.decode("utf-8", errors="replace")


def _json(text: str) -> object:
    try:
        return parse(text)
    except Unfit as unfit:
        raise _Skip(_printable(f"no complete JSON value ({unfit.found})")) from unfit


def _list(value: object, length: int, what: str) -> list:
    if not isinstance(value, list) or len(value) != length:
        raise _Skip(f"no record of MetaSchedule: {what} expected")
    return value


def _is_note(step: Sequence[object]) -> bool:
    """Whether an instruction annotates a block with one thing."""
    inputs, attributes = step[1], step[2]
    return (
        step[0] == "Annotate"
        and isinstance(inputs, list)
        and len(inputs) == 2
        and isinstance(attributes, list)
        and len(attributes) == 1
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 < value < _LONGEST_S
        and math.isfinite(value)
    )


def _printable(text: str) -> str:
    """Text of a file nobody vouches for, fit for a terminal."""
    return one_line(text)[:_SAID]
