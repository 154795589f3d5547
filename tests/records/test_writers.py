"""Writers at once, and killed ones: nothing that was committed is lost, whichever file it is in."""

import errno
import os
import signal
import threading
import time

import pytest
from log_lines import fingerprint, open_log, record, writer

from halo_tvm.errors import UsageError
from halo_tvm.records import Trials
from halo_tvm.records.log import commit
from halo_tvm.records.record import parse_line
from halo_tvm.records.store import append_new, lines, replace_file


def outcomes(trials, name):
    return [r.outcome for r in trials.of(name, "toy", 1)]


def test_two_processes_append_at_once(tmp_path):
    writers = [writer(tmp_path, name, 60) for name in ("a", "b")]
    for process in writers:
        process.communicate()
        assert process.returncode == 0
    log, trials = open_log(tmp_path), Trials.open([tmp_path], fingerprint())
    names = [f"{name}-{i}" for name in "ab" for i in range(60)]
    assert all(log.best(name, "toy", 1) for name in names)
    assert all(outcomes(trials, name) == ["measured", "crash"] for name in names)
    assert not log.report().refused and not trials.refused
    for file in tmp_path.glob("*/*.jsonl"):
        for line in lines(file):
            parse_line(line.text)


@pytest.mark.parametrize("attempt", range(4))
def test_a_killed_writer_loses_nothing_it_committed(tmp_path, attempt):
    process = writer(tmp_path, "k", 100000)
    committed = [process.stdout.readline() for _ in range(5 + 7 * attempt)]
    time.sleep(0.003 * attempt)
    process.send_signal(signal.SIGKILL)
    committed += process.stdout.readlines()
    process.wait()
    done = [int(line) for line in committed if line.endswith("\n")]
    commit(tmp_path, fingerprint(), [record("after"), record("after", outcome="measured")])
    log, trials = open_log(tmp_path), Trials.open([tmp_path], fingerprint())
    assert done and all(log.best(f"k-{i}", "toy", 1) for i in done) and log.best("after", "toy", 1)
    assert all(outcomes(trials, f"k-{i}") == ["measured", "crash"] for i in done)
    assert outcomes(trials, "after") == ["measured"]
    assert set(log.report().refused) | set(trials.refused) <= {"torn"}


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch, call):
    """Also in the middle of a line: what was committed stays, and the next writer goes on."""
    commit(tmp_path, fingerprint(), [record("w0")])
    whole = getattr(os, call)

    def fails(handle, data=b""):
        if call == "write":
            whole(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(UsageError, match="must be writable.*No space left on device.*make room"):
        commit(tmp_path, fingerprint(), [record("w1")])
    with pytest.raises(UsageError, match="No space left on device"):
        append_new(tmp_path / fingerprint().key / "records.jsonl", [record("w2").line().encode()])
    monkeypatch.undo()
    commit(tmp_path, fingerprint(), [record("w3")])
    log = open_log(tmp_path)
    assert log.best("w0", "toy", 1) and log.best("w3", "toy", 1)


def test_a_full_disk_leaves_a_file_that_was_to_be_replaced(tmp_path, monkeypatch):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="Input/output error"):
        replace_file(path, lambda lines: b"")
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("name", ["records.jsonl", "trials.jsonl"])
@pytest.mark.parametrize("left", [1, 20, 400])
def test_a_line_cut_anywhere_spoils_only_itself(tmp_path, name, left):
    """What a kill in the middle of a write leaves behind."""
    both = [record("w0"), record("w0", outcome="crash")]
    path = commit(tmp_path, fingerprint(), both).with_name(name)
    with open(path, "ab") as file:
        file.write(path.read_bytes()[:left])
    commit(tmp_path, fingerprint(), [record("w1"), record("w1", outcome="crash")])
    log, trials = open_log(tmp_path), Trials.open([tmp_path], fingerprint())
    for workload in ("w0", "w1"):
        assert log.best(workload, "toy", 1) and outcomes(trials, workload) == ["crash"]
    assert sum(log.report().refused.values()) == (name == "records.jsonl")
    assert trials.refused == {"torn": 1}


def test_a_writer_that_waits_for_a_file_being_replaced_writes_to_the_new_one(tmp_path):
    path = commit(tmp_path, fingerprint(), [record("w0")])
    writers = [threading.Thread(target=commit, args=(tmp_path, fingerprint(), [record(f"n{i}")])) for i in range(4)]

    def change(before):
        for thread in writers:
            thread.start()
        time.sleep(0.1)  # they open the old file and wait for its lock
        return b"".join(line.data for line in before)

    replace_file(path, change)
    for thread in writers:
        thread.join()
    log = open_log(tmp_path)
    assert all(log.best(name, "toy", 1) for name in ("w0", "n0", "n1", "n2", "n3")) and log.report().usable == 5
