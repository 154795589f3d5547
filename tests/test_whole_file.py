"""Files that are replaced as a whole: what a reader sees, and what killed writers leave."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from halo_tvm import whole_file
from halo_tvm.whole_file import replaced, write_whole


def names(folder):
    return sorted(os.listdir(folder))


def test_the_file_is_replaced_and_nothing_else_is_left(tmp_path):
    write_whole(tmp_path / "a.json", b"1")
    write_whole(tmp_path / "a.json", b"2")
    assert (tmp_path / "a.json").read_bytes() == b"2" and names(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_whole(tmp_path / "a.json", b"1")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a.json", b"2")
    assert (tmp_path / "a.json").read_bytes() == b"1" and names(tmp_path) == ["a.json"]


def test_who_writes_piece_by_piece_and_stops_leaves_the_old_file(tmp_path):
    with replaced(tmp_path / "a.bin") as file:
        file.write(b"1")
        assert not (tmp_path / "a.bin").exists(), "nobody sees a part of it"
        file.write(b"2")
    with pytest.raises(KeyError), replaced(tmp_path / "a.bin") as file:
        file.write(b"3")
        raise KeyError
    assert (tmp_path / "a.bin").read_bytes() == b"12" and names(tmp_path) == ["a.bin"]


def test_where_files_cannot_be_locked_nothing_is_swept(tmp_path, monkeypatch):
    (tmp_path / ".a.json.0123.partial").write_bytes(b"half")
    monkeypatch.setattr(whole_file, "fcntl", None)
    write_whole(tmp_path / "a.json", b"1")
    assert names(tmp_path) == [".a.json.0123.partial", "a.json"]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    die = (
        "import os, sys, pathlib\n"
        "from halo_tvm import whole_file\n"
        "os.fsync = lambda _: os.kill(os.getpid(), 9)\n"
        "whole_file.write_whole(pathlib.Path(sys.argv[1]), b'half')\n"
    )
    killed = subprocess.run([sys.executable, "-c", die, str(tmp_path / "a.json")])
    assert killed.returncode == -signal.SIGKILL and len(names(tmp_path)) == 1
    write_whole(tmp_path / "b.json", b"another file")
    assert len(names(tmp_path)) == 2
    write_whole(tmp_path / "a.json", b"1")
    assert names(tmp_path) == ["a.json", "b.json"]


def test_what_living_writers_write_stays(tmp_path):
    kept = [".a.json.0123.partial", ".a.json.lock", ".b.json.0123.partial"]
    for name in kept:
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / kept[0]).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_whole(tmp_path / "a.json", b"1")
    assert names(tmp_path) == sorted([*kept, "a.json"])
    write_whole(tmp_path / "a.json", b"2")
    assert names(tmp_path) == sorted([*kept[1:], "a.json"])


@pytest.mark.parametrize("refused", ["listdir", "flock"])
def test_what_cannot_be_swept_stops_no_write(tmp_path, monkeypatch, refused):
    (tmp_path / ".a.json.0123.partial").write_bytes(b"half")

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr({"listdir": os, "flock": fcntl}[refused], refused, refuse)
    write_whole(tmp_path / "a.json", b"1")
    monkeypatch.undo()
    assert names(tmp_path) == [".a.json.0123.partial", "a.json"] and (tmp_path / "a.json").read_bytes() == b"1"


def test_who_is_swept_before_it_has_locked_begins_again(tmp_path, monkeypatch):
    """Another writer of the same file takes a new temporary file for abandoned until it is locked."""
    real, swept = fcntl.flock, []

    def flock(file, how):
        if how == fcntl.LOCK_EX and not swept:
            swept.extend(tmp_path.glob(".a.json.*"))
            swept[0].unlink()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    write_whole(tmp_path / "a.json", b"1")
    assert swept and (tmp_path / "a.json").read_bytes() == b"1" and names(tmp_path) == ["a.json"]
