"""`halo-tvm logs`: every action, its JSON, its exit code, and what hostile files come to."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import pytest
from log_lines import record

from halo_tvm.cli import main
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records.log import commit
from halo_tvm.targets import resolve

HOME = importlib.import_module("halo_tvm.records.home")  # the package has a function of this name
TARGET = fingerprint_of(resolve("x86:avx2", cores=2))
KEY = TARGET.key


def made(workload: str, **changes: object) -> object:
    return record(workload, target=TARGET.facts(), rule="gemm", **changes)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's log, with two records, a trial and a failure."""
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(HOME, "shipped_logs", lambda: None)
    directory = tmp_path / "home" / "tuning_logs"
    commit(directory, TARGET, [made("w0", tile=1), made("w1", readable="norm[m,8]", version=99)])
    commit(directory, TARGET, [made("w0", outcome="measured"), made("w0", outcome="crash", message="signal 11")])
    return directory


def run(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    assert main(["logs", *map(str, argv)]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and "internal error" not in captured.err
    return captured.out if code != 1 else captured.err


def run_json(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> object:
    return json.loads(run(capsys, *argv, "--json", code=code))


def test_list(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = run_json(capsys)
    assert row.pop("bytes") > 1000
    assert row == {
        "key": KEY,
        "records": 2,
        "trials": 1,
        "failures": 1,
        "unreadable": 0,
        "directory": str(log),
    }
    assert re.search(rf"{KEY}\s+2\s+1\s+1\s+0\s+[\d.]+ KiB", run(capsys, "list"))


def test_show(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["workload"] for row in run_json(capsys, "show")] == ["w0", "w1"]
    assert [row["workload"] for row in run_json(capsys, "show", KEY, "--workload", "norm")] == ["w1"]
    assert run_json(capsys, "show", "--rule", "attention") == []
    assert "no such records" in run(capsys, "show", "--rule", "attention")
    outcomes = [row["outcome"] for row in run_json(capsys, "show", "--trials", "--workload", "w0")]
    assert outcomes == ["improved", "measured", "crash"]
    assert "tile=1" in run(capsys, "show", KEY)
    assert "unknown tuning log 'llvm-x86_64-avx3'" in run(capsys, "show", "llvm-x86_64-avx3", code=1)


def test_best(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from halo_tvm.tir_schedules import RULES

    mine = [made("w0", tile=5, version=RULES["gemm"].version), made("w0", tile=6, low=2.0, version=0)]
    commit(tmp_path / "named", TARGET, mine)
    found = run_json(capsys, "best", "--log", tmp_path / "named", "--target", "x86:avx2")
    by = {row["workload"]: row for row in found["workloads"]}
    assert by["w0"]["decision"] == {"tile": 5} and by["w0"]["directory"] == str(tmp_path / "named")
    assert by["w1"]["decision"] is None and "version 99 of the rule" in by["w1"]["reason"]
    assert "norm[m,8]" in run(capsys, "best", "--target", "x86:avx2", "--workload", "norm")
    none = run(capsys, "best", "--target", "x86:avx2", "--rule", "attention")
    assert "no records for" in none and "of another precision may be for another level, which --target names" in none
    assert "unknown" in run(capsys, "best", "--target", "x87", code=1)


def test_merge(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "into"
    report = run_json(capsys, "merge", "--log", into, log, log / KEY / "records.jsonl")
    assert (report["added"], report["duplicates"]) == ({"records.jsonl": 2, "trials.jsonl": 2}, 0)
    text = run(capsys, "merge", log / KEY, "--log", into)
    assert "0 records and 0 trials and failures added" in text and "4 were there already" in text
    (log / KEY / "trials.jsonl").write_text("[1]\n" + (log / KEY / "trials.jsonl").read_text())
    text = run(capsys, "merge", log, "--log", into)
    assert "refused: 1 malformed" in text and "trials.jsonl:1: malformed" in text
    # Without --log the user's log is written to, never the shipped one.
    assert run_json(capsys, "merge", into)["directory"] == str(log)


def test_verify(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "verify").endswith("whole\n")
    path = log / KEY / "records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])  # a writer was killed
    found = run_json(capsys, "verify")
    assert found["bad"] == {"unfinished": 1} and not found["damaged"]
    path.write_bytes(whole + b'{"schema":99}\n')
    assert "1 future_schema" in run(capsys, "verify", log)
    path.write_bytes(whole.replace(b'"tile":1', b'"tile":2'))
    assert "records.jsonl:1: wrong_checksum" in run(capsys, "verify", log, code=3)
    found = run_json(capsys, "verify", path, log / KEY / "trials.jsonl", code=3)
    assert found["damaged"] and [f["damaged"] for f in found["files"]] == [1, 0]
    path.write_bytes(whole)
    (log / "llvm-x86_64-sse").mkdir()
    (log / "llvm-x86_64-sse" / "records.jsonl").write_bytes(whole)
    assert "2 misplaced" in run(capsys, "verify", code=3)
    assert "does not exist" in run(capsys, "verify", tmp_path / "missing", code=1)


def test_verify_names_the_first_and_counts_the_rest(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log / KEY / "records.jsonl").write_text("[]\n" * 1000)
    out = run(capsys, "verify", code=3)
    assert "1000 malformed" in out and "and 980 more" in out and out.count("\n") < 40


def test_export(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    assert run_json(capsys, "export", kept)["targets"] == [
        {"key": KEY, "new": 2, "better": 0, "kept": 0, "withdrawn": 0}
    ]
    assert 'timestamp":""' in (kept / KEY / "records.jsonl").read_text()
    assert re.search(rf"0\s+0\s+2\s+0\s+{KEY}", run(capsys, "export", kept))
    assert "one directory to export to was expected" in run(capsys, "export", code=1)
    assert "is a file" in run(capsys, "export", kept / KEY / "records.jsonl", code=1)
    assert "there is none" in run(capsys, "export", kept, "--log", tmp_path, code=1)


def test_actions_that_take_no_names(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("list", "best"):
        assert "takes no names" in run(capsys, action, "something", code=1)
    assert "none was given" in run(capsys, "merge", code=1)
    assert "one target key at most" in run(capsys, "show", KEY, KEY, code=1)


def test_help_names_every_action(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["logs", "--help"])
    out = capsys.readouterr().out
    assert all(f"{action} " in out for action in ("list", "show", "best", "merge", "verify", "export"))


def hostile(folder: Path, kind: str) -> None:
    """Something at folder/records.jsonl that is no log."""
    path = folder / "records.jsonl"
    folder.mkdir(parents=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "dangling link":
        path.symlink_to(folder / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(CONTENTS[kind])


CONTENTS = {
    "binary": bytes(range(256)) * 100,
    "empty": b"",
    "one huge line": b'{"candidate_us":[' + b"1," * (3 << 20),
    "nesting": b"[" * 500_000 + b"\n" + b'{"a":' * 200_000,
    "nulls": b"\0" * 100_000,
    "escapes": b'{"candidate_us":"\x1b]0;x\x07\x1b[2J"}\n',
    "numbers": b'{"candidate_us":' + b"9" * 100_000 + b"}\n" + b'{"schema":1e400,"checksum":NaN}\n',
}


@pytest.mark.parametrize("kind", ["directory", "link to itself", "dangling link", "pipe", "device", *CONTENTS])
def test_hostile_files(
    log: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "hostile"
    hostile(place / KEY, kind)
    before = {path: path.read_bytes() for path in log.rglob("*.jsonl")}
    for action in (["list"], ["show"], ["show", KEY], ["best", "--target", "x86:avx2"]):
        out = run(capsys, *action, "--log", place)
        assert "\x1b" not in out
    empty = kind == "empty"
    run(capsys, "verify", place, code=0 if empty else 3)
    assert "\x1b" not in run(capsys, "merge", place, code=0 if empty else 1)
    assert "\x1b" not in run(capsys, "export", tmp_path / "kept", "--log", place, code=0 if empty else 1)
    assert {path: path.read_bytes() for path in log.rglob("*.jsonl")} == before


def test_control_characters_of_a_record_do_not_reach_the_terminal(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(log, TARGET, [made("w5", readable="\x1b[2J\x1b]0;title\x07 done", decision={"a\x1b": "\x1b[1m"})])
    for action in (["show"], ["best", "--target", "x86:avx2"], ["show", "--json"]):
        assert "\x1b" not in run(capsys, *action)


def test_the_shipped_log_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = HOME.shipped_logs()
    assert shipped is not None and run(capsys, "verify", shipped).endswith("whole\n")
