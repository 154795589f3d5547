"""The log: lines that cannot be used are counted by reason, the rest is used, nothing committed is lost."""

import hashlib
import json
import random
from dataclasses import replace

import pytest
from log_lines import ISAS, file_of, fingerprint, open_log, record

from halo_tvm.errors import UsageError
from halo_tvm.records import Trials, TuningLog, log_dirs
from halo_tvm.records.export import export
from halo_tvm.records.home import check_named_log
from halo_tvm.records.log import commit
from halo_tvm.records.record import parse_line
from halo_tvm.records.store import append


def test_round_trip(tmp_path):
    path = commit(tmp_path, fingerprint(), [record(), record("w1", outcome="crash", message="signal 11")])
    assert path == file_of(tmp_path)
    assert [parse_line(line) for line in path.read_text().splitlines()][0] == record()
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) == record()
    assert log.best("w1", "toy", 1, readable="linear[m]") is None
    assert Trials.open([tmp_path], fingerprint()).of("w1", "toy", 1)[0].message == "signal 11"
    report = log.report()
    assert (report.usable, report.failures, report.hits, report.misses) == (1, 0, 1, 1)  # compiling reads no trials
    assert report.missed == ("linear[m] (toy)",)
    assert json.loads(json.dumps(report.to_plain()))["hits"] == 1


def test_torn_last_line(tmp_path):
    path = commit(tmp_path, fingerprint(), [record("w0"), record("w1")])
    text = path.read_text()
    path.write_text(text[:-40])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) and not log.best("w1", "toy", 1)
    assert log.report().refused == {"torn": 1}
    # The next writer closes the torn line, so that its own is whole.
    commit(tmp_path, fingerprint(), [record("w2")])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) and log.best("w2", "toy", 1)
    assert log.report().refused == {"torn": 1}


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_binary_garbage_is_a_torn_line(tmp_path, cut):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    garbage = b"\x00\r\xff\x0b" + random.Random(cut).randbytes(cut).replace(b"\n", b"x")
    path.write_bytes(path.read_bytes() + garbage + b"\n")
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert sum(log.report().refused.values()) == 1


def test_wrong_checksum(tmp_path):
    path = commit(tmp_path, fingerprint(), [record("w0"), record("w1", tile=4)])
    path.write_text(path.read_text().replace('"tile":4', '"tile":5'))
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) and not log.best("w1", "toy", 1)
    assert log.report().refused == {"wrong_checksum": 1}
    assert "records.jsonl:2" in log.report().reasons[0]


def test_future_schema(tmp_path):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    path.write_text(path.read_text() + '{"schema":99,"anything":true}\n')
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert log.report().refused == {"future_schema": 1}


@pytest.mark.parametrize("line", ["[1]", "{}", '{"schema":1}', "null", '{"schema":"x"}'])
def test_malformed(tmp_path, line):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    path.write_text(line + "\n" + path.read_text())
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert sum(log.report().refused.values()) == 1


HOSTILE = [
    '{"a": NaN}',
    '{"a": -Infinity}',
    '{"a": 1e999}',
    '{"schema": NaN}',
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    "[" * 100_000,
    '{"schema":1,"checksum":{"a":1}}',
    '{"a":' + "9" * 10_000 + "}",
    '{"a":"\\ud800"}',
]


@pytest.mark.parametrize("line", HOSTILE, ids=[line[:20] for line in HOSTILE])
def test_hostile_lines_are_refused(tmp_path, line):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    path.write_text(line + "\n" + path.read_text())
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert sum(log.report().refused.values()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"speedup_low": "1.5"},
        {"speedup": 10**400},
        {"workload": ["w"]},
        {"rule": 3},
        {"decision": [1]},
        {"target": None},
        {"sizes": [{"dims": 3, "weight": 1}]},
        {"candidate_us": [["x"]]},
        {"rule_version": True},
        {"message": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_wrong_types_under_a_right_checksum_are_refused(tmp_path, change):
    commit(tmp_path, fingerprint(), [record("w0"), replace(record("w1"), **change)])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert log.report().refused == {"malformed": 1}


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [9, 900, 930, 960, 980, 990, 995])
@pytest.mark.parametrize("field", ["decision", "target", "versions"])
def test_deep_nesting_under_a_right_checksum_is_refused(tmp_path, depth, field):
    """Deeper than a record can be written again, and not too deep for the JSON reader."""
    path = commit(tmp_path, fingerprint(), [record("w0")])
    body = json.loads(record("w1").line())
    del body["checksum"]
    body[field]["deep"] = "x"
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).replace('"x"', "[" * depth + "]" * depth)
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    with open(path, "a") as file:
        file.write(text.replace('"decision"', f'"checksum":"{checksum}","decision"', 1) + "\n")
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) and not log.best("w1", "toy", 1)
    assert sum(log.report().refused.values()) == 1
    assert len(export([path], tmp_path / "kept")[1]) == 1


def test_what_a_record_may_nest(tmp_path):
    commit(tmp_path, fingerprint(), [record(decision={"a": nested(6)}, extents=(2**63 - 1, -(2**63)))])
    assert open_log(tmp_path).best("w0", "toy", 1).decision == {"a": nested(6)}


@pytest.mark.parametrize(
    "change",
    [
        {"decision": {"tile": 10**400}},
        {"decision": {"a": [1, [2**63]]}},
        {"extents": (2**63,)},
        {"seed": -(2**64)},
        {"target": {**fingerprint().facts(), "l2_bytes": 10**400}},
        {"rule_version": 2**70},
    ],
    ids=str,
)
def test_integers_that_no_reader_should_meet_are_refused(tmp_path, change):
    commit(tmp_path, fingerprint(), [record("w0"), replace(record("w1"), **change)])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1)
    assert log.report().refused == {"malformed": 1}


def test_other_rule_version_is_a_hint(tmp_path):
    commit(tmp_path, fingerprint(), [record(version=1)])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 2) is None
    assert log.hints("w0", "toy", 2) == [record(version=1)]
    assert log.report().hints["other_rule_version"] == 1


def test_isa_levels(tmp_path):
    for isa, tile in zip(ISAS, (1, 2, 3)):
        commit(tmp_path, fingerprint(isa), [record(f"only-{isa}", isa=isa, tile=tile), record(isa=isa, tile=tile)])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1).decision == {"tile": 2}
    assert log.best("only-small", "toy", 1) is None
    assert [r.decision["tile"] for r in log.hints("only-small", "toy", 1)] == [1]
    assert log.best("only-large", "toy", 1) is None and not log.hints("only-large", "toy", 1)
    assert log.report().refused == {"larger_isa": 2}
    assert log.report().hints["smaller_isa"] == 2


def test_larger_isa_in_the_own_file_is_refused(tmp_path):
    commit(tmp_path, fingerprint(), [record(isa="large")])
    assert open_log(tmp_path).best("w0", "toy", 1) is None
    assert open_log(tmp_path).report().refused == {"larger_isa": 1}


def test_another_machine_is_refused(tmp_path):
    other = record()
    commit(tmp_path, fingerprint(), [replace(other, target={**other.target, "machine": "aarch64"})])
    assert open_log(tmp_path).report().refused == {"other_target": 1}


def test_order_of_preference(tmp_path):
    commit(
        tmp_path, fingerprint(), [record(low=1.5, cores=64, tile=1), record(low=1.2, tile=2), record(low=1.3, tile=3)]
    )
    assert open_log(tmp_path).best("w0", "toy", 1).decision == {"tile": 3}
    assert open_log(tmp_path, cores=64).best("w0", "toy", 1).decision == {"tile": 1}


def test_the_latest_measurement_of_a_decision_counts(tmp_path):
    """A lucky interval does not outlive a sober one, wherever in the file they stand."""

    def at(day, **changes):
        return record(timestamp=f"2026-01-{day:02}T00:00:00+00:00", **changes)

    for number, order in enumerate([(0, 1, 2), (2, 1, 0), (1, 0, 2)]):
        lines = [at(1, low=1.9, tile=1), at(9, low=1.1, tile=1), at(5, low=1.3, tile=2)]
        commit(tmp_path / str(number), fingerprint(), [lines[i] for i in order])
        log = open_log(tmp_path / str(number))
        assert log.best("w0", "toy", 1) == lines[2] and log.report().usable == 3
    # Another version of the rule, and another machine, measure something else.
    other = {**fingerprint().facts(), "l2_bytes": 2 << 20}
    more = [at(8, low=1.7, tile=3), at(9, low=1.1, tile=3, version=2), at(9, low=1.05, tile=3, target=other)]
    commit(tmp_path / "0", fingerprint(), more)
    assert open_log(tmp_path / "0").best("w0", "toy", 1) == more[0]


def test_a_winner_that_was_withdrawn_is_not_used(tmp_path):
    """By its own machine, wherever the line stands; a later winner of the same decision counts again."""
    theirs = {**fingerprint().facts(), "l2_bytes": 2 << 20}
    won = [record(low=1.9, tile=1, target=theirs), record(low=1.5, tile=1), record(low=1.2, tile=2)]
    commit(tmp_path / "shipped", fingerprint(), [replace(r, timestamp="") for r in won])
    lost = record(tile=1, outcome="withdrawn", low=0.0, timestamp="2026-02-01T00:00:00+00:00")
    assert commit(tmp_path / "own", fingerprint(), [lost]) == file_of(tmp_path / "own")
    directories = [tmp_path / "own", tmp_path / "shipped"]
    log = TuningLog.open(directories, fingerprint())
    assert log.best("w0", "toy", 1).decision == {"tile": 2}
    assert [r.speedup_low for r in log.standing("w0", "toy", 1)] == [1.2, 1.9]
    assert (
        TuningLog.open(directories, replace(fingerprint(), l2_bytes=2 << 20)).best("w0", "toy", 1).decision["tile"] == 1
    )
    commit(tmp_path / "own", fingerprint(), [record(low=1.3, tile=1, timestamp="2026-03-01T00:00:00+00:00")])
    assert TuningLog.open(directories, fingerprint()).best("w0", "toy", 1).decision == {"tile": 1}


def test_the_same_caches_come_before_others(tmp_path):
    def with_l2(size_bytes, **changes):
        return record(target={**fingerprint().facts(), "l2_bytes": size_bytes}, **changes)

    commit(tmp_path, fingerprint(), [with_l2(2 << 20, low=1.9, tile=1), record(low=1.1, tile=2)])
    assert open_log(tmp_path).best("w0", "toy", 1).decision == {"tile": 2}
    third = replace(fingerprint(), l2_bytes=512 << 10)
    assert TuningLog.open([tmp_path], third).best("w0", "toy", 1).decision == {"tile": 1}


def test_first_directory_decides(tmp_path):
    commit(tmp_path / "a", fingerprint(), [record(low=1.1, tile=1)])
    commit(tmp_path / "b", fingerprint(), [record(low=1.9, tile=2), record("w1", tile=7)])
    log = TuningLog.open([tmp_path / "a", tmp_path / "missing", tmp_path / "b"], fingerprint())
    assert log.best("w0", "toy", 1).decision == {"tile": 1}
    assert log.best("w1", "toy", 1).decision == {"tile": 7}


def test_merging_is_concatenation(tmp_path):
    one = commit(tmp_path / "a", fingerprint(), [record("w0")])
    two = commit(tmp_path / "b", fingerprint(), [record("w1")])
    merged = file_of(tmp_path / "c")
    merged.parent.mkdir(parents=True)
    merged.write_bytes(one.read_bytes() + two.read_bytes())
    log = open_log(tmp_path / "c")
    assert log.best("w0", "toy", 1) and log.best("w1", "toy", 1)


def test_home_is_read_at_call_time(tmp_path, monkeypatch):
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path / "home"))
    named = tmp_path / "named"
    assert log_dirs(named)[:2] == (named, tmp_path / "home" / "tuning_logs")
    assert log_dirs()[0] == tmp_path / "home" / "tuning_logs"
    monkeypatch.delenv("HALO_TVM_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert log_dirs()[0] == tmp_path / "data" / "halo_tvm" / "tuning_logs"


def test_places_that_cannot_be_a_log(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="is a directory with .* but .* is a file"):
        log_dirs(file)
    check_named_log(tmp_path)
    with pytest.raises(UsageError, match="a tuning log was expected at .*nodir', but there is none: correct --log"):
        check_named_log(tmp_path / "nodir")
    with pytest.raises(UsageError, match="must be writable"):
        commit(file, fingerprint(), [record()])


def test_lines_of_schema_1_are_read(tmp_path):
    """As the first release wrote them: without family, extents, stage and run."""
    body = json.loads(record("w0", low=1.4).line())
    for name in ("checksum", "family", "extents", "stage", "run"):
        del body[name]
    body["schema"] = 1
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = file_of(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**body, "checksum": checksum}) + "\n")
    assert open_log(tmp_path).best("w0", "toy", 1) == record("w0", low=1.4)
    # A line that claims schema 1 and has the new fields is none.
    path.write_text(record().line().replace('"schema":2', '"schema":1'))
    assert open_log(tmp_path).best("w0", "toy", 1) is None


def test_the_outcome_decides_the_file(tmp_path):
    trial = record("w1", outcome="measured", low=0.5, stage="ranked", run="r1", family="f", extents=(1, 2))
    path = commit(tmp_path, fingerprint(), [record("w0"), trial, record("w1", outcome="crash", tile=4)])
    assert [parse_line(line).outcome for line in path.read_text().splitlines()] == ["improved"]
    assert parse_line(path.with_name("trials.jsonl").read_text().splitlines()[0]) == trial
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) and log.best("w1", "toy", 1) is None
    trials = Trials.open([tmp_path, tmp_path / "missing"], fingerprint())
    assert [r.outcome for r in trials.of("w1", "toy", 1)] == ["measured", "crash"]
    assert not trials.of("w1", "toy", 2) and not trials.of("w0", "toy", 1)
    assert trials.latest("toy", 1, 9) == trials.of("w1", "toy", 1)


def test_failures_that_old_releases_kept_among_records_are_trials(tmp_path):
    append(tmp_path, fingerprint().key, [record("w0"), record("w0", outcome="crash", tile=4)])
    log = open_log(tmp_path)
    assert log.report().failures == 1 and log.best("w0", "toy", 1).decision == {"tile": 8}
    trials = Trials.open([tmp_path], fingerprint())
    assert [r.decision for r in trials.of("w0", "toy", 1)] == [{"tile": 4}]


def test_nearest(tmp_path):
    def sized(workload, extents, tile, **changes):
        return record(workload, tile=tile, family=changes.pop("family", "f"), extents=extents, **changes)

    commit(
        tmp_path,
        fingerprint(),
        [
            sized("own", (8, 768), 1),
            sized("far", (8, 76800), 2),
            sized("near", (8, 1024), 3),
            sized("middle", (16, 1536), 4),
            sized("same decision", (16, 1540), 4),
            sized("other length", (8,), 5),
            sized("other family", (8, 768), 6, family="g"),
            sized("other version", (8, 768), 7, version=2),
            sized("trial", (8, 768), 8, outcome="measured"),
            record("no family", tile=9),
        ],
    )
    commit(tmp_path, fingerprint("small"), [sized("small", (8, 1024), 10, isa="small")])
    commit(tmp_path, fingerprint("large"), [sized("large", (8, 768), 11, isa="large")])
    log = open_log(tmp_path)

    def tiles(**options):
        return [r.decision["tile"] for r in log.nearest("f", (8, 768), "toy", 1, exclude="own", **options)]

    assert tiles() == [3, 10, 4, 2] and tiles(most=1) == [3]
    assert not log.nearest("", (), "toy", 1, exclude="own") and not log.nearest("f", (8, 768), "other", 1, exclude="")
