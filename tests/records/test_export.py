"""Exporting: winners only, sorted, the same bytes for the same knowledge, and never a step back."""

import pytest
from log_lines import file_of, fingerprint, open_log, record

from halo_tvm.errors import UsageError
from halo_tvm.records.export import export
from halo_tvm.records.log import commit
from halo_tvm.records.record import parse_line
from halo_tvm.records.verify import files_at


def exported(tmp_path, *records):
    """Commit `records`, export them to tmp_path/kept, and return what became of them."""
    commit(tmp_path / "log", fingerprint(), records)
    found = [one.to_plain() for one in export(files_at([tmp_path / "log"]), tmp_path / "kept")[0]]
    return {name: found[0][name] for name in ("new", "better", "kept")}


def kept(tmp_path):
    return [parse_line(line) for line in file_of(tmp_path / "kept").read_text().splitlines()]


def test_winners_only_and_in_order(tmp_path):
    records = [
        record("w2", run="r1"),
        record("w1", low=1.1, tile=1),
        record("w1", low=1.3, tile=2),
        record("w1", low=1.9, tile=3, cores=64),
        record("w3", outcome="measured"),
        record("w3", outcome="crash"),
    ]
    assert exported(tmp_path, *records) == {"new": 3, "better": 0, "kept": 0}
    found = kept(tmp_path)
    assert [(r.workload, r.cores, r.decision["tile"]) for r in found] == [("w1", 2, 2), ("w1", 64, 3), ("w2", 2, 8)]
    assert not any(r.timestamp or r.run for r in found)
    assert not file_of(tmp_path / "kept").with_name("trials.jsonl").exists()
    assert open_log(tmp_path / "kept").best("w1", "toy", 1).decision == {"tile": 2}


def test_the_same_knowledge_gives_the_same_bytes(tmp_path):
    exported(tmp_path / "a", record("w0"), record("w1"))
    exported(tmp_path / "b", record("w1", timestamp="2027-01-01T00:00:00Z"), record("w0"))
    first = file_of(tmp_path / "a" / "kept").read_bytes()
    assert first == file_of(tmp_path / "b" / "kept").read_bytes()
    assert exported(tmp_path / "a") == {"new": 0, "better": 0, "kept": 2}
    assert file_of(tmp_path / "a" / "kept").read_bytes() == first


def test_only_what_is_better_replaces(tmp_path):
    exported(tmp_path, record("w0", low=1.5, tile=1), record("w1", low=1.5, tile=1))
    other = tmp_path / "other"
    commit(other, fingerprint(), [record("w0", low=1.4, tile=2), record("w1", low=1.6, tile=2), record("w2")])
    [done], _ = export(files_at([other]), tmp_path / "kept")
    assert (done.new, done.better, done.kept) == (1, 1, 1)
    assert [r.decision["tile"] for r in kept(tmp_path)] == [1, 2, 8]
    # A newer version of the rule replaces records that nobody uses any more.
    commit(other, fingerprint(), [record("w0", low=1.01, tile=3, version=2)])
    export(files_at([other]), tmp_path / "kept")
    assert [r.decision["tile"] for r in kept(tmp_path)] == [3, 2, 8]


def test_the_latest_measurement_of_a_decision_replaces_a_lucky_one(tmp_path):
    exported(tmp_path, record("w0", low=1.5), record("w0", low=1.9, timestamp="2025"))
    assert [r.speedup_low for r in kept(tmp_path)] == [1.5]
    assert exported(tmp_path, record("w0", low=1.2, timestamp="2027")) == {"new": 0, "better": 1, "kept": 0}
    assert [r.speedup_low for r in kept(tmp_path)] == [1.2]
    assert exported(tmp_path) == {"new": 0, "better": 0, "kept": 1}


def test_what_was_withdrawn_goes(tmp_path):
    exported(tmp_path, record("w0"), record("w1", low=1.5, tile=1), record("w1", low=1.2, tile=2))
    lost = [record(name, tile=tile, outcome="withdrawn", timestamp="2027") for name, tile in (("w0", 8), ("w1", 1))]
    commit(tmp_path / "log", fingerprint(), lost)
    [done], _ = export(files_at([tmp_path / "log"]), tmp_path / "kept")
    assert (done.new, done.better, done.kept, done.withdrawn) == (0, 1, 0, 1)
    assert [(r.workload, r.decision["tile"]) for r in kept(tmp_path)] == [("w1", 2)]


def test_lines_that_stay_stay_as_they_are(tmp_path):
    """Of an older schema, say, or with a timestamp."""
    commit(tmp_path / "kept", fingerprint(), [record("w9", low=9)])
    line = file_of(tmp_path / "kept").read_text()
    exported(tmp_path, record("w0"))
    assert file_of(tmp_path / "kept").read_text().splitlines(keepends=True)[1] == line


@pytest.mark.parametrize("damage", ['{"schema":99}\n', '{"candidate_us":[[1'])
def test_a_damaged_destination_is_left_alone(tmp_path, damage):
    exported(tmp_path, record("w0"))
    with open(file_of(tmp_path / "kept"), "a") as file:
        file.write(damage)
    before = file_of(tmp_path / "kept").read_bytes()
    with pytest.raises(UsageError, match="must verify before it is written anew, but line 2 does not"):
        exported(tmp_path, record("w1"))
    assert file_of(tmp_path / "kept").read_bytes() == before
    assert not list((tmp_path / "kept").rglob(".*"))


def test_damage_in_the_source_costs_only_itself(tmp_path):
    commit(tmp_path / "log", fingerprint(), [record("w0"), record("w1")])
    path = file_of(tmp_path / "log")
    path.write_text(path.read_text()[:-20])
    _, left_out = export(files_at([tmp_path / "log"]), tmp_path / "kept")
    assert len(left_out) == 1 and left_out[0].startswith(f"{path}:2: unfinished")
    assert [r.workload for r in kept(tmp_path)] == ["w0"]
