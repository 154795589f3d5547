"""The trials beside a log: the good part is read, the rest counted by class, another target's left alone."""

import pytest
from log_lines import fingerprint, open_log, record

from halo_tvm.records import Trials
from halo_tvm.records.log import commit


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
    assert [r.workload for r in trials.all("toy", 1)] == ["w0"]
    assert trials.refused == {kind: 1}
    assert not open_log(tmp_path).report().refused  # compiling does not even see it


def test_another_version_of_the_rule_is_not_mixed_in(tmp_path):
    commit(tmp_path, fingerprint(), [record(outcome="measured", version=v) for v in (1, 2, 2)])
    trials = Trials.open([tmp_path], fingerprint())
    assert len(trials.of("w0", "toy", 1)) == 1 and len(trials.of("w0", "toy", 2)) == 2
    assert not trials.all("other", 1)


def test_other_isa_levels_are_other_machines(tmp_path):
    """Times of a smaller level say nothing about this one."""
    commit(tmp_path, fingerprint("small"), [record(outcome="measured", isa="small")])
    assert not Trials.open([tmp_path], fingerprint()).all("toy", 1)


def test_directories_in_order(tmp_path):
    for name, tile in (("b", 2), ("a", 1)):
        commit(tmp_path / name, fingerprint(), [record(outcome="measured", tile=tile)])
    trials = Trials.open([tmp_path / "a", tmp_path / "b"], fingerprint())
    assert [r.decision["tile"] for r in trials.all("toy", 1)] == [1, 2]
