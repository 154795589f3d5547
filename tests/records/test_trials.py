"""The trials beside a log: the good part is read, the rest counted by class, another target's left alone."""

import pytest
from log_lines import fingerprint, open_log, record

from halo_tvm.records import Trials
from halo_tvm.records.log import commit
from halo_tvm.records.store import append


def spoiled(tmp_path, spoil):
    """A log with two trials, the second of which `spoil` changed as text."""
    commit(tmp_path, fingerprint(), [record("w0"), record("w0", outcome="measured")])
    commit(tmp_path, fingerprint(), [record("w1", outcome="measured", tile=4)])
    path = tmp_path / fingerprint().key / "trials.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + spoil(second))
    return Trials.open([tmp_path], fingerprint())


SPOILED = {
    "torn": lambda line: line[:-30],
    "wrong_checksum": lambda line: line.replace('"tile":4', '"tile":5'),
    "future_schema": lambda line: line.replace('"schema":2', '"schema":3'),
    "malformed": lambda line: "[1]\n",
    "larger_isa": lambda line: record("w1", outcome="measured", isa="large").line(),
    "other_target": lambda line: record("w1", target={**fingerprint().facts(), "machine": "aarch64"}).line(),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_the_good_part_is_read(tmp_path, kind):
    trials = spoiled(tmp_path, SPOILED[kind])
    assert [r.workload for r in trials.latest("toy", 1, 9)] == ["w0"]
    assert trials.of("w0", "toy", 1) and not trials.of("w1", "toy", 1)
    assert trials.refused == {kind: 1}
    assert not open_log(tmp_path).report().refused  # compiling does not even see it


def test_another_version_of_the_rule_is_not_mixed_in(tmp_path):
    commit(tmp_path, fingerprint(), [record(outcome="measured", version=v) for v in (1, 2, 2)])
    trials = Trials.open([tmp_path], fingerprint())
    assert len(trials.latest("toy", 2, 9)) == 2
    assert len(trials.of("w0", "toy", 1)) == 1 and len(trials.of("w0", "toy", 2)) == 2
    assert not trials.latest("other", 1, 9)


def test_other_isa_levels_are_other_machines(tmp_path):
    """Times of a smaller level say nothing about this one."""
    commit(tmp_path, fingerprint("small"), [record(outcome="measured", isa="small")])
    assert not Trials.open([tmp_path], fingerprint()).latest("toy", 1, 9)


def test_directories_in_order(tmp_path):
    for name, tile in (("b", 2), ("a", 1)):
        commit(tmp_path / name, fingerprint(), [record(outcome="measured", tile=tile)])
    trials = Trials.open([tmp_path / "a", tmp_path / "b"], fingerprint())
    assert [r.decision["tile"] for r in trials.latest("toy", 1, 9)] == [1, 2]


def at(minute, **changes):
    return record(timestamp=f"2026-01-01T00:{minute:02}:00+00:00", **{"outcome": "measured", **changes})


def test_the_latest_in_time_whatever_the_workload(tmp_path):
    """By workload the latest of the file's first workload would come before all of the second's."""
    for tile, (workload, minute) in enumerate([("w0", 1), ("w1", 2), ("w0", 5), ("w1", 7)]):
        commit(tmp_path / "a", fingerprint(), [at(minute, workload=workload, tile=tile)])
    commit(tmp_path / "b", fingerprint(), [at(3, tile=10), at(6, tile=11), at(8, outcome="improved", tile=12)])
    trials = Trials.open([tmp_path / "a", tmp_path / "b"], fingerprint())
    assert [r.decision["tile"] for r in trials.latest("toy", 1, 99)] == [0, 1, 10, 2, 11, 3]
    assert [r.decision["tile"] for r in trials.latest("toy", 1, 3)] == [2, 11, 3]


def test_a_large_log_costs_what_is_taken_of_it(tmp_path, monkeypatch):
    from halo_tvm.records import trials as module

    parsed = []
    parse = module.parse_line
    monkeypatch.setattr(module, "parse_line", lambda line: parsed.append(line) or parse(line))
    others = [at(2, rule="other") for _ in range(200)]
    append(tmp_path, fingerprint().key, [*(at(1, tile=i) for i in range(2000)), *others], "trials.jsonl")
    found = Trials.open([tmp_path], fingerprint()).latest("toy", 1, 20)
    assert [r.decision["tile"] for r in found] == list(range(1980, 2000)) and len(parsed) == 20


@pytest.mark.parametrize("lines", [2.0, 2.5, 2.999])
def test_only_whole_lines_of_the_end(tmp_path, monkeypatch, lines):
    from halo_tvm.records import store

    monkeypatch.setattr(store, "_TAIL_BYTES", int(lines * len(at(1, tile=1).line())))
    path = append(tmp_path, fingerprint().key, [at(1, tile=i) for i in range(6)], "trials.jsonl")
    assert [r.decision["tile"] for r in Trials.open([tmp_path], fingerprint()).latest("toy", 1, 99)] == [4, 5]
    assert len(list(store.last_lines(path))) == 2


def test_places_that_are_no_file(tmp_path):
    (tmp_path / fingerprint().key / "trials.jsonl").mkdir(parents=True)
    assert not Trials.open([tmp_path, tmp_path / "missing"], fingerprint()).latest("toy", 1, 9)
