"""A log made on one machine and merged on another is used there."""

from dataclasses import replace

import pytest
from log_lines import fingerprint, record

from halo_tvm.records import Trials, TuningLog
from halo_tvm.records.best import choices
from halo_tvm.records.log import commit
from halo_tvm.records.merge import merge
from halo_tvm.records.verify import files_at

# A server with many cores and large caches, and a small machine of the same ISA level.
SERVER = replace(fingerprint(cores=64), l2_bytes=2 << 20, l3_bytes=256 << 20)
SMALL = replace(fingerprint(cores=2), l3_bytes=0)


def made_on(target, workload, **changes):
    return record(workload, target=target.facts(), **changes)


@pytest.fixture
def log(tmp_path):
    """The small machine's log after the server's was merged into it."""
    theirs = [made_on(SERVER, "both", tile=1, low=1.9), made_on(SERVER, "theirs", tile=2, family="f", extents=(8,))]
    commit(tmp_path / "theirs", SERVER, [*theirs, made_on(SERVER, "theirs", tile=3, outcome="wrong_result")])
    commit(tmp_path / "own", SMALL, [made_on(SMALL, "both", tile=4, low=1.1)])
    lower = fingerprint("small")
    commit(tmp_path / "theirs", lower, [made_on(lower, "lower", isa="small", tile=5)])
    report = merge(tmp_path / "own", files_at([tmp_path / "theirs"]))
    assert report.added == {"records.jsonl": 3, "trials.jsonl": 1} and not report.refused
    return tmp_path / "own"


def test_what_only_the_other_machine_knows_is_used(log):
    opened = TuningLog.open([log], SMALL)
    assert opened.best("theirs", "toy", 1).decision == {"tile": 2}
    assert opened.report().hits == 1 and not opened.report().refused
    assert [r.workload for r in opened.nearest("f", (16,), "toy", 1, exclude="x")] == ["theirs"]
    trials = Trials.open([log], SMALL).of("theirs", "toy", 1)
    assert [(r.outcome, r.decision) for r in trials] == [("wrong_result", {"tile": 3})]


def test_each_machine_prefers_its_own_measurement(log):
    assert TuningLog.open([log], SMALL).best("both", "toy", 1).decision == {"tile": 4}
    assert TuningLog.open([log], SERVER).best("both", "toy", 1).decision == {"tile": 1}
    # A third machine takes what gained most.
    assert TuningLog.open([log], replace(SMALL, cores=8)).best("both", "toy", 1).decision == {"tile": 1}


def test_a_smaller_isa_is_a_hint_only(log):
    opened = TuningLog.open([log], SMALL)
    assert opened.best("lower", "toy", 1) is None and opened.report().misses == 1
    assert [r.decision for r in opened.hints("lower", "toy", 1)] == [{"tile": 5}]
    assert opened.report().hints["smaller_isa"] == 1
    assert TuningLog.open([log], fingerprint("small")).best("lower", "toy", 1).decision == {"tile": 5}
    # The other way about nothing is used: its instructions may not be there.
    assert TuningLog.open([log], fingerprint("small")).best("both", "toy", 1) is None


def test_far_fewer_cores_are_a_hint_only(tmp_path):
    commit(tmp_path, SMALL, [made_on(SMALL, "w", tile=3, low=1.3)])
    assert TuningLog.open([tmp_path], replace(SMALL, cores=4)).best("w", "toy", 1).decision == {"tile": 3}
    eight = replace(SMALL, cores=8)
    opened = TuningLog.open([tmp_path], eight)
    assert opened.best("w", "toy", 1) is None and opened.report().hints["fewer_cores"] == 1
    assert [r.decision for r in opened.hints("w", "toy", 1)] == [{"tile": 3}]
    assert choices([tmp_path], eight, {"toy": 1})[0].reason == "only hints: measured with 2 cores, far fewer than 8"


def test_the_choice_is_explained(log, tmp_path):
    found = {c.workload: c for c in choices([log, tmp_path / "theirs"], SMALL, {"toy": 1})}
    assert found["both"].record.decision == {"tile": 4} and found["both"].directory == log
    assert found["both"].reason == (
        "of 2 records the one measured with 2 cores and caches, as the target has, before later directories"
    )
    assert found["theirs"].reason == "the only record, measured with 64 cores, before later directories"
    assert found["lower"].record is None and "measured at small, smaller than middle" in found["lower"].reason
    newer = {c.workload: c for c in choices([log], SMALL, {"toy": 2})}
    assert newer["both"].record is None and "version 1 of the rule, which is now 2" in newer["both"].reason
    unknown = choices([log], SMALL, {})
    assert all(c.record is None and "no such rule" in c.reason for c in unknown) and len(unknown) == 3


def test_what_decided_between_several_is_said(tmp_path):
    def reason():
        return choices([tmp_path], SMALL, {"toy": 1})[0].reason

    other = replace(SMALL, l2_bytes=2 << 20)
    commit(tmp_path, SMALL, [made_on(SMALL, "w", low=1.9), made_on(SMALL, "w", low=1.2, timestamp="2027")])
    assert reason() == "the latest of 2 measurements of one decision"
    commit(tmp_path, SMALL, [made_on(other, "w", tile=2, low=1.8)])
    assert reason() == "of 2 records the one measured with 2 cores and caches, as the target has"
    commit(tmp_path, SMALL, [made_on(SMALL, "w", tile=3, low=1.3)])
    assert reason() == (
        "of 3 records the largest lower bound of the 2 measured with 2 cores and caches, as the target has"
    )
    assert choices([tmp_path], SMALL, {"toy": 1})[0].record.decision == {"tile": 3}
    third = choices([tmp_path], replace(SMALL, l1_bytes=1), {"toy": 1})[0]
    assert third.reason == (
        "the largest lower bound of 3 records, measured with 2 cores, as the target has, but other caches"
    )


def test_the_explanation_is_that_of_look_up(log, tmp_path):
    directories = [tmp_path / "theirs", log]
    opened = TuningLog.open(directories, SMALL)
    for choice in choices(directories, SMALL, {"toy": 1}):
        assert choice.record == opened.best(choice.workload, choice.rule, 1)
