"""Merging: every line that verifies, once, to the file it belongs to; nothing of what was there is lost."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_lines import HERE, file_of, fingerprint, open_log, record, writer

from halo_tvm.errors import UsageError
from halo_tvm.records import Trials
from halo_tvm.records.log import commit
from halo_tvm.records.merge import merge
from halo_tvm.records.record import BadLine, parse_line
from halo_tvm.records.verify import files_at, verify_file

FILES = ("records.jsonl", "trials.jsonl")


def content(directory):
    return {path.relative_to(directory): path.read_bytes() for path in sorted(directory.rglob("*.jsonl"))}


def merged(directory, *sources):
    return merge(directory, files_at(sources))


def two_logs(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    commit(a, fingerprint(), [record("w0"), record("w1", outcome="measured")])
    commit(b, fingerprint(), [record("w0"), record("w2"), record("w2", outcome="crash")])
    commit(b, fingerprint("small"), [record("w3", isa="small")])
    return a, b


def test_lines_come_once_and_to_their_files(tmp_path):
    a, b = two_logs(tmp_path)
    report = merged(a, b)
    assert report.added == {"records.jsonl": 2, "trials.jsonl": 1} and report.duplicates == 1 and not report.refused
    log = open_log(a)
    assert all(log.best(w, "toy", 1) for w in ("w0", "w2")) and log.hints("w3", "toy", 1)
    assert {r.workload for r in Trials.open([a], fingerprint()).latest("toy", 1, 9)} == {"w1", "w2"}
    before = content(a)
    again = merged(a, b, a, b / "llvm-x86_64-small", file_of(b))
    assert content(a) == before and not any(again.added.values())


def test_order_does_not_matter(tmp_path):
    a, b = two_logs(tmp_path)
    merged(tmp_path / "one", a, b)
    merged(tmp_path / "other", b, a)

    def sets(directory):
        return {path: set(data.splitlines()) for path, data in content(directory).items()}

    assert sets(tmp_path / "one") == sets(tmp_path / "other")


def test_failures_among_old_records_become_trials(tmp_path):
    source = tmp_path / "old.jsonl"
    source.write_text(record().line() + record(outcome="crash").line())
    assert merged(tmp_path / "log", source).added == {"records.jsonl": 1, "trials.jsonl": 1}


def test_lines_that_do_not_verify_are_refused_and_named(tmp_path):
    lines = [
        record("w0").line(),
        record("w1").line()[:-30] + "\n",
        record("w2").line().replace('"tile":8', '"tile":9'),
        '{"schema":9}\n',
        "[]\n",
        record("w3").line(),
    ]
    source = tmp_path / "source.jsonl"
    source.write_text("".join(lines))
    report = merged(tmp_path / "log", source)
    assert report.refused == {"unfinished": 1, "wrong_checksum": 1, "future_schema": 1, "malformed": 1}
    assert [name.split(": ")[0] for name in report.named] == [f"{source}:{n}" for n in (2, 3, 4, 5)]
    assert file_of(tmp_path / "log").read_text() == lines[0] + lines[5]


@pytest.mark.parametrize("key", ["../../x", "llvm-x86_64-middle/..", "", "x" * 300, "other"])
def test_a_line_cannot_choose_its_place(tmp_path, key):
    changed = replace(record(), target={**record().target, "key": key})
    evil = replace(record(), target={**record().target, "kind": "../..", "machine": "", "key": "../..--middle"})
    source = tmp_path / "source.jsonl"
    source.write_text("".join(one.line() for one in (changed, evil, record())))
    report = merged(tmp_path / "log", source)
    assert report.refused == {"malformed": 2} and report.added == {"records.jsonl": 1}
    assert set(content(tmp_path)) == {Path("source.jsonl"), Path("log/llvm-x86_64-middle/records.jsonl")}


def test_a_torn_last_line_of_the_log_is_closed(tmp_path):
    a, b = two_logs(tmp_path)
    with open(file_of(a), "ab") as file:
        file.write(b'{"candidate_us":[[1')
    merged(a, b)
    report = verify_file(file_of(a))
    assert report.records == 2 and report.bad == {"unfinished": 1} and not report.damaged


def test_a_merge_beside_writers_loses_nothing(tmp_path):
    source = tmp_path / "source"
    commit(source, fingerprint(), [record(f"m{i}") for i in range(200)])
    process = writer(tmp_path / "log", "k", 30)
    threads = [threading.Thread(target=merged, args=(tmp_path / "log", source)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.communicate()
    log = open_log(tmp_path / "log")
    assert all(log.best(f"m{i}", "toy", 1) for i in range(200)) and all(log.best(f"k-{i}", "toy", 1) for i in range(30))
    assert log.report().usable == 230 and not log.report().refused


def test_a_killed_merge_is_finished_by_the_next(tmp_path):
    source = tmp_path / "source"
    commit(source, fingerprint(), [record(f"m{i}", message="x" * 20000) for i in range(300)])
    code = (
        "import sys; from pathlib import Path; from halo_tvm.records.merge import merge; print('go', flush=True)\n"
        "merge(Path(sys.argv[1]), [Path(sys.argv[2])])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log"), str(file_of(source))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=HERE)
    process.stdout.readline()
    process.kill()
    process.wait()
    merged(tmp_path / "log", source)
    report = verify_file(file_of(tmp_path / "log"))
    assert report.records == 300 and not report.damaged


def test_places_that_are_no_logs(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)) * 50)
    for place, what in ((tmp_path / "missing", "does not exist"), (Path("/dev/null"), "is neither")):
        with pytest.raises(UsageError, match=what):
            files_at([place])
    with pytest.raises(UsageError, match="there is none"):
        files_at([tmp_path])
    with pytest.raises(UsageError, match="none of the 51 lines .* is a record"):
        merged(tmp_path / "log", binary)
    folder = tmp_path / "folder" / "llvm-x86_64-middle"
    (folder / "records.jsonl").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be read .*it is no file"):
        merged(tmp_path / "log", tmp_path / "folder")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "llvm-x86_64-middle").symlink_to(tmp_path / "nowhere" / "at all")
    source = tmp_path / "source.jsonl"
    source.write_text(record().line())
    with pytest.raises(UsageError, match="must be writable"):
        merged(tmp_path / "log", source)


# ---- whatever happens to a valid file --------------------------------------------------------------------------------

GOOD = [record(f"w{i}", tile=i, outcome=("improved", "measured", "crash")[i % 3]).line() for i in range(6)]
NOISE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"{", b"}", b"[", b'"', b"\\", b"\n", b"\r\n", b"null", b"1e999", b"NaN", b'"schema":2', b"[" * 3000]
    ),
    st.text(max_size=20).map(lambda text: text.encode(errors="replace")),
)


@st.composite
def mutations(draw):
    """The text of GOOD with pieces cut out, put in and doubled."""
    data = "".join(GOOD).encode()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 300)))
        data = (
            draw(st.sampled_from([data[:at] + data[end:], data[:end] + data[at:]]))
            if draw(st.booleans())
            else (data[:at] + draw(NOISE) + data[at:])
        )
    return data


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=mutations())
def test_mutated_files(tmp_path_factory, data):
    """`parse_line` raises BadLine only, and a merge keeps exactly the lines that are still whole."""
    whole = {line.strip() for line in data.split(b"\n")} & {line.strip().encode() for line in GOOD}
    for line in data.split(b"\n"):
        try:
            parse_line(line.decode(errors="replace"))
        except BadLine:
            pass
    folder = tmp_path_factory.mktemp("mutated")
    source = folder / "source.jsonl"
    source.write_bytes(data)
    try:
        merged(folder / "log", source)
    except UsageError as nothing:
        assert not whole, nothing
    found = {line for text in content(folder / "log").values() for line in text.split(b"\n") if line}
    assert whole <= found and {parse_line(line.decode()).line() for line in found} <= set(GOOD)
    report = verify_file(source)
    assert report.records + report.trials + report.failures >= len(whole)
    open_log(folder / "log").best("w0", "toy", 1)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(json.loads(GOOD[0]))), VALUES, st.booleans())
def test_any_value_in_any_field(name, value, checksum):
    """Whatever a field holds, with a checksum that fits or not: a record that a log can hold again, or BadLine."""
    from halo_tvm.records.record import _checksum

    body = json.loads(GOOD[0])
    body[name] = value
    if checksum:
        del body["checksum"]
        try:
            body["checksum"] = _checksum(body)
        except ValueError:
            return  # NaN
    try:
        found = parse_line(json.dumps(body))
    except BadLine:
        return
    assert parse_line(found.line()) == found


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(codec=None), max_size=60))
def test_any_text(text):
    with pytest.raises(BadLine):
        parse_line(text)
