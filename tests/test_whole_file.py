"""Files that are replaced as a whole: what a reader sees, and what killed writers leave."""

import os
import platform
import signal
import subprocess
import sys

import pytest

from halo_tvm.whole_file import write_whole


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
    host = platform.node().replace(".", "-")
    kept = [f".a.json.{host}.{os.getppid()}", ".a.json.elsewhere.999999999", f".a.json.{host}.tmp"]
    for name in kept:
        (tmp_path / name).write_bytes(b"half")
    write_whole(tmp_path / "a.json", b"1")
    assert names(tmp_path) == sorted([*kept, "a.json"])
