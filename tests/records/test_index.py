"""A large log costs what is looked up in it: nothing else is parsed, and the report says what was examined."""

from collections import Counter

import pytest
from log_lines import fingerprint, open_log, record

from halo_tvm.records import index
from halo_tvm.records.log import commit
from halo_tvm.records.store import append

MANY = 3000


@pytest.fixture
def parsed(monkeypatch):
    """How often each line was parsed, by workload."""
    counts = Counter()
    parse = index.parse_line

    def counted(line):
        found = parse(line)
        counts[found.workload] += 1
        return found

    monkeypatch.setattr(index, "parse_line", counted)
    return counts


@pytest.fixture
def large(tmp_path):
    """A log of MANY lines, two of them for each workload."""
    family = {"family": "f", "extents": (1,)}
    append(
        tmp_path,
        fingerprint().key,
        [record(f"w{i // 2}", tile=i, low=1 + i % 2, **(family if i < 10 else {})) for i in range(MANY)],
    )
    return tmp_path


def test_opening_parses_nothing_and_a_look_up_only_its_lines(large, parsed):
    log = open_log(large)
    assert not parsed and log.report().examined == 0 and log.report().lines == MANY
    assert log.best("w7", "toy", 1).decision == {"tile": 15}
    assert parsed == {"w7": 2} and log.report().examined == log.report().usable == 2
    assert log.best("w7", "toy", 1) and log.best("missing", "toy", 1) is None and log.hints("w7", "toy", 1)
    assert parsed == {"w7": 2}


def test_nearest_parses_only_the_family(large, parsed):
    found = open_log(large).nearest("f", (2,), "toy", 1, exclude="w0", most=9)
    assert sorted(r.workload for r in found) == ["w1", "w2", "w3", "w4"]
    assert set(parsed) == {f"w{i}" for i in range(5)}


def test_a_small_log_is_examined_whole(tmp_path):
    path = commit(tmp_path, fingerprint(), [record("w0"), record("w1", tile=4)])
    path.write_text(path.read_text().replace('"tile":4', '"tile":5'))
    report = open_log(tmp_path).report()
    assert report.refused == {"wrong_checksum": 1} and (report.lines, report.examined, report.usable) == (2, 2, 1)


def test_damage_in_a_large_log(large):
    """Lines that do not look whole are counted at once, a changed byte when its workload is asked for."""
    path = next(large.glob("*/records.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1][:-40] + "\n"  # w0
    lines[3] = lines[3][40:]  # w1
    lines[5] = lines[5].replace('"tile":5', '"tile":6')  # w2
    path.write_text("".join(lines))
    log = open_log(large)
    assert log.report().refused == {"torn": 2} and log.report().examined == 2
    for workload, tile in (("w0", 0), ("w1", 2), ("w2", 4)):
        assert log.best(workload, "toy", 1).decision == {"tile": tile}
    assert log.report().refused == {"torn": 2, "wrong_checksum": 1}
    assert any("records.jsonl:6" in reason for reason in log.report().reasons)


def test_lines_of_other_programs_are_found(large):
    """JSON with other spaces and order, as a tool between two logs may write it."""
    import json

    path = next(large.glob("*/records.jsonl"))
    body = json.loads(record("spaced", family="f", extents=(5,)).line())
    with open(path, "a") as file:
        file.write(json.dumps(dict(reversed(body.items()))) + "\r\n")
    log = open_log(large)
    assert log.best("spaced", "toy", 1) == record("spaced", family="f", extents=(5,))
    assert log.nearest("f", (5,), "toy", 1, exclude="", most=1)[0].workload == "spaced"
    assert log.report().examined == 11 and not log.report().refused


def test_a_workload_in_a_string_is_not_the_workload(large):
    path = next(large.glob("*/records.jsonl"))
    tricky = record("real", message='","workload":"w7"}', versions={"x": '"workload":"w7"}'})
    with open(path, "a") as file:
        file.write(tricky.line())
    log = open_log(large)
    assert len(log.hints("w7", "toy", 1)) == 2 and log.best("real", "toy", 1) == tricky


def test_places_that_are_no_file_are_named(tmp_path):
    folder = tmp_path / fingerprint().key
    (folder / "records.jsonl").mkdir(parents=True)
    small = tmp_path / fingerprint("small").key
    small.mkdir()
    (small / "records.jsonl").symlink_to("records.jsonl")
    report = open_log(tmp_path).report()
    assert report.refused == {"no_file": 2} and any("it is no file" in r for r in report.reasons)


def test_a_line_longer_than_any_record(tmp_path, monkeypatch):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    path.write_bytes(b"x" * (5 << 20) + b"\n" + path.read_bytes() + b'{"candidate_us":' + b"[" * (2 << 20))
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert log.report().refused == {"malformed": 2} and "records.jsonl:3" in log.report().reasons[1]


def test_a_log_that_shrinks_while_it_is_open(large):
    log = open_log(large)
    next(large.glob("*/records.jsonl")).write_text("")
    assert log.best("w7", "toy", 1) is None
    assert log.report().refused == {"torn": 2}
